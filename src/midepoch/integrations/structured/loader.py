"""The loader of structured files: its states name splits, and it can show a progress bar."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from midepoch._common.progress_bar import ProgressBar
from midepoch.loader import Loader


class StructuredLoader(Loader):
    """A :class:`midepoch.Loader` that shares its states with its dataset."""

    show_progress = False
    """Whether a terminal shows how much of the epoch is delivered."""

    def state_dict(self) -> dict[str, Any]:
        """What the loop has received, with the splits that are done: the state of the dataset."""
        state: dict[str, Any] = self.dataset.state_dict()  # type: ignore[attr-defined]
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, new_files: Literal["error", "append"] = "error") -> None:
        """Resume at a state; see :meth:`midepoch.StructuredDataset.load_state_dict`."""
        self.dataset.load_state_dict(state, new_files=new_files)  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Continue from the position of the loader."""
        batches = super().__iter__()
        return self._with_progress(batches) if self.show_progress else batches

    def _with_progress(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches, with a progress bar on the terminal: rows of this rank's epoch, and batches a second."""
        start, total = time.monotonic(), 0
        with ProgressBar(f"epoch {self.epoch}", unit="rows") as bar:
            for number, batch in enumerate(batches, start=1):
                if bar.is_due or number == 1:
                    rows, total = self._rows_delivered()
                    pace = number / max(1e-9, time.monotonic() - start)
                    bar.update(rows, total=total, note=f"{pace:,.1f} batches/s")
                yield batch
            bar.update(total)

    def _rows_delivered(self) -> tuple[int, int]:
        """How many rows of this rank's epoch were delivered, and about how many there are."""
        progress = self.dataset.position.progress(self.plan)  # type: ignore[attr-defined]
        lanes = progress.session.lanes
        total = sum(lanes.size(lane) for lane in progress.rotation) // progress.session.assignment.stride
        return min(total, progress.items * self.plan.pipeline.item_rows), total
