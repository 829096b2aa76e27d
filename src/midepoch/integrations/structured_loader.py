"""The loader of StructuredDataset: it shares a position with its dataset, and shows progress."""

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Literal

from midepoch._common.jobs import ProgressBar
from midepoch.dataset import position_of
from midepoch.delivery.passes import Pass
from midepoch.loader import Loader


class StructuredLoader(Loader):
    """A :class:`midepoch.Loader` that shares its states with its dataset."""

    show_progress = False
    """Whether a terminal shows how much of the epoch is delivered."""

    def __setstate__(self, values: dict[str, Any]) -> None:
        super().__setstate__(values)
        if not position_of(self.dataset).is_of_loader:  # type: ignore[arg-type]
            self.dataset.share_position_of(self)  # type: ignore[attr-defined]

    def _describe_state(self, run: Pass) -> dict[str, Any]:
        """The state of a pass, with the splits that are done."""
        return {**super()._describe_state(run), **self.dataset.own_keys(run)}  # type: ignore[attr-defined]

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, new_files: Literal["error", "append"] = "error"
    ) -> None:
        """Resume at a state; see :meth:`midepoch.StructuredDataset.load_state_dict`."""
        self.dataset.load_state_dict(state_dict, new_files=new_files)  # type: ignore[attr-defined]

    def _batches(self, run: Pass) -> Iterator[Iterable[Any]]:
        """The batches of a pass, with a progress bar if that was asked for."""
        batches = super()._batches(run)
        return self._with_progress(run, batches) if self.show_progress else batches

    def _with_progress(self, run: Pass, in_bulk: Iterator[Iterable[Any]]) -> Iterator[Iterable[Any]]:
        """The batches, with a progress bar on the terminal: rows of this rank's epoch, and batches per second."""
        start, total = time.monotonic(), 0
        with ProgressBar(f"epoch {run.epoch}", unit="rows") as bar:
            for number, batch in enumerate(chain.from_iterable(in_bulk), start=1):
                if bar.is_due or number == 1:
                    rows, total = self._rows_delivered(run)
                    pace = number / max(1e-9, time.monotonic() - start)
                    bar.update(rows, total=total, note=f"{pace:,.1f} batches/s")
                yield (batch,)
            bar.update(total)

    def _rows_delivered(self, run: Pass) -> tuple[int, int]:
        """How many rows of this rank's epoch were delivered, and about how many there are."""
        progress = run.progress()
        session = progress.session
        rows = sum(session.lanes.size(lane) for lane in range(len(session.positions)))
        total = rows // session.readers
        return min(total, progress.items * self.plan.pipeline.item_rows), total
