"""The loader of StructuredDataset: it shares a position with its dataset, and shows progress."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Literal

from midepoch._common.jobs import ProgressBar
from midepoch.dataset import position_of
from midepoch.delivery.passes import Pass
from midepoch.delivery.trace import epoch_progress
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
        """The batches, with a progress bar on the terminal that counts them."""
        step, steps = 0, None
        with ProgressBar(f"epoch {run.epoch}", unit="batches") as bar:
            for number, batch in enumerate(chain.from_iterable(in_bulk)):
                if bar.is_due or not number:
                    _, step, steps = epoch_progress(run)
                    bar.update(step, total=steps)
                yield (batch,)
            bar.update(steps or step)
