"""A pipeline, and which part of it this process reads."""

from dataclasses import dataclass
from typing import Literal

from midepoch._common.world import torch_worker
from midepoch.checkpoint.state import State
from midepoch.delivery.progress import Progress
from midepoch.delivery.resume import begin
from midepoch.pipeline.pipeline import Pipeline

ShardMode = Literal["file", "example"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A pipeline and its readers. Only the pipeline is part of a checkpoint."""

    pipeline: Pipeline
    ranks: int = 1
    rank: int = 0
    mode: ShardMode = "example"
    lanes: int | None = None
    passes: int | None = 1

    def begin(self, state: State) -> Progress:
        """The progress of this process, which may be a worker of a DataLoader, when it starts from a state."""
        worker, workers = torch_worker() or (0, 1)
        reader, readers = self.rank + self.ranks * worker, self.ranks * workers
        return begin(
            self.pipeline, state, reader=reader, readers=readers, workers=workers, lanes=self.lanes, mode=self.mode
        )

    def ends_loop(self, start: State, progress: Progress, *, empty: bool, over: bool, requested: bool) -> bool:
        """True if a loop that has read the rest of an epoch, from ``start``, ends there.

        If a resumed epoch is already finished for all readers, the loop continues with the next one, unless set_epoch
        requested this epoch. A loop of many epochs continues anyway. Whether anything is left for other readers is
        known for uniform pipelines only: ``over`` says so.
        """
        if requested and self.passes == 1:
            return True
        if empty and start.lanes is not None and (over or progress.session.assignment.readers == 1 or self.passes != 1):
            return False
        return empty or (self.passes is not None and (start.epoch + 1) % self.passes == 0)
