"""A pipeline, and who reads it."""

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
    """A pipeline, and who reads it. Only the pipeline is part of a checkpoint."""

    pipeline: Pipeline
    ranks: int = 1
    rank: int = 0
    mode: ShardMode = "example"
    lanes: int | None = None
    passes: int | None = 1

    def begin(self, state: State) -> Progress:
        """Where this process, which may be a worker of a DataLoader, goes on from a state."""
        worker, workers = torch_worker() or (0, 1)
        reader, readers = self.rank + self.ranks * worker, self.ranks * workers
        return begin(
            self.pipeline, state, reader=reader, readers=readers, workers=workers, lanes=self.lanes, mode=self.mode
        )

    def ends_loop(self, begun: State, progress: Progress, *, empty: bool, over: bool, named: bool) -> bool:
        """Whether a loop that went through the rest of an epoch ends there.

        Where nothing was left for any reader of an epoch that had begun, that is no epoch, and the loop goes on to
        the next, unless it was asked for this one by name; a loop of many epochs does so anyway. What is left for
        others a reader knows of a uniform pipeline only, by ``over``.
        """
        if named and self.passes == 1:
            return True
        if empty and begun.lanes is not None and (over or progress.session.assignment.readers == 1 or self.passes != 1):
            return False
        return empty or (self.passes is not None and (begun.epoch + 1) % self.passes == 0)
