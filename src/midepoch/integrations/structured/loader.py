"""The loader of structured files: a Loader whose states name splits, and which may say how far it is."""

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from midepoch.loader import Loader

EVERY_SECONDS = 0.2


class StructuredLoader(Loader):
    """A :class:`midepoch.Loader` whose state is that of its data set."""

    show_progress = False
    """Whether a terminal is told how far the epoch is."""

    def state_dict(self) -> dict[str, Any]:
        """What the loop has received, with the splits that are done."""
        state: dict[str, Any] = self.dataset.state_dict()  # type: ignore[attr-defined]
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, new_files: Literal["error", "append"] = "error") -> None:
        """Go to where a state says; whatever does not fit is told, and nothing changes."""
        self.dataset.load_state_dict(state, new_files=new_files)  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Go on from where the loader stands."""
        batches = super().__iter__()
        return self._told(batches) if self.show_progress and sys.stderr.isatty() else batches

    def _told(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches, with a line on the terminal that follows them."""
        begun = told = time.monotonic()
        for number, batch in enumerate(batches, start=1):
            now = time.monotonic()
            if now - told >= EVERY_SECONDS or number == 1:
                told = now
                self._tell(number, now - begun, end="")
            yield batch
        self._tell(None, time.monotonic() - begun, end="\n")

    def _tell(self, batches: int | None, seconds: float, end: str) -> None:
        """Write the line: how many rows of this rank's epoch are delivered, of how many, and how quickly."""
        if batches is None:
            line = f"epoch done in {seconds:,.0f} s"
        else:
            progress = self._position.progress(self._plan)
            cuts = progress.session.lanes
            total = sum(cuts.size(lane) for lane in progress.rotation) // progress.session.assignment.stride
            rows = progress.items * self._plan.pipeline.item_rows
            share = min(100, 100 * rows // max(1, total))
            pace = f"{batches / max(seconds, 1e-9):,.1f} batches/s"
            line = f"epoch {self.epoch}: {rows:,} of about {total:,} rows ({share} %), {pace}"
        print(f"\r\033[Kmidepoch: {line}", end=end, file=sys.stderr, flush=True)  # noqa: T201
