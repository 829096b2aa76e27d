"""A pipeline, and which part of it this process reads."""

from dataclasses import dataclass
from typing import Literal

from midepoch._common.checks import check_integer
from midepoch._common.world import torch_worker
from midepoch.checkpoint.state import State
from midepoch.delivery.progress import AnyProgress
from midepoch.delivery.resume import begin
from midepoch.delivery.session import AnySession, Session
from midepoch.pipeline.pipeline import Pipeline
from midepoch.pipeline.surveyed import count_ahead

ShardMode = Literal["file", "example"]
ShardedBy = Literal["user", "launcher"]
Even = Literal["pad", "drop"]


def check_shard(num_shards: int, index: int) -> tuple[int, int]:
    """The number of shards and the index of one; raises if they do not fit each other."""
    ranks, rank = check_integer("num_shards", num_shards, least=1), check_integer("index", index)
    if rank >= ranks:
        raise ValueError(f"index is {rank} of {ranks} shards; it must be between 0 and {ranks - 1}.")
    return ranks, rank


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A pipeline and its readers. Only the pipeline is part of a checkpoint."""

    pipeline: Pipeline
    ranks: int = 1
    rank: int = 0
    mode: ShardMode = "example"
    sharded_by: ShardedBy | None = None
    """Who chose the shard; None if nobody did. A shard that the user chooses replaces one of the launcher."""
    lanes: int | None = None
    epochs_per_loop: int | None = 1
    items_per_step: int = 1
    """The number of items of each rank in a training step. Ranks that are kept even get whole steps."""
    even: Even | None = None
    """Gives all ranks the same number of items in an epoch, by repeating or leaving out at most one per rank."""

    def begin(self, state: State) -> AnyProgress:
        """The progress of this process, which may be a worker of a DataLoader, when it starts from a state."""
        worker, workers = torch_worker() or (0, 1)
        reader, readers = self.rank + self.ranks * worker, self.ranks * workers
        return begin(
            self.pipeline, state, reader=reader, readers=readers, workers=workers, lanes=self.lanes, mode=self.mode
        )

    def check(self, state: State) -> None:
        """Raise if this process cannot resume from a state, or no run can have reached it."""
        for one in (state, *state.later):
            self.begin(one).check()

    @property
    def counted(self) -> bool:
        """True if every rank knows how many items each rank gets, and what all have delivered."""
        return self.why_not_counted() is None

    def why_not_counted(self) -> str | None:
        """What keeps the items from being counted, and what to do; None if they are counted."""
        if self.mode == "file" and not self.pipeline.uniform and self.pipeline.counted:
            return "shard(mode='file') gives ranks whole files, which may hold any number of items: use mode='example'"
        return self.pipeline.why_not_counted()

    def keeps_even(self, session: AnySession) -> bool:
        """True if ranks get the same number of items of a session, which has to be counted and to end."""
        return self.even is not None and session.counted and not session.is_endless

    def items_per_rank(self, session: AnySession) -> int | None:
        """The number of items that every rank gets from a session, or None if ranks may get different numbers."""
        if not isinstance(session, Session) or not self.keeps_even(session):
            return None
        items = [session.reader_items(reader) for reader in range(session.readers)]
        steps = -(-max(items) // self.items_per_step) if self.even == "pad" else min(items) // self.items_per_step
        return steps * self.items_per_step

    def length(self, epoch: int) -> int:
        """The number of items that this rank gets in the loop that has this epoch. Raises if it is not known."""
        reason = self.why_not_counted()
        if reason is not None:
            raise TypeError(f"The length is unknown: {reason}.")
        if self.epochs_per_loop is None:
            raise TypeError("The length is unknown: repeat() never ends.")
        if self.pipeline.uniform:
            return self.epochs_per_loop * self._items_of_epoch(0)
        first = epoch - epoch % max(1, self.epochs_per_loop)
        return sum(map(self._items_of_epoch, range(first, first + self.epochs_per_loop)))

    def _items_of_epoch(self, epoch: int) -> int:
        progress = self.begin(State(epoch=epoch))
        if not self.pipeline.uniform:
            count_ahead(progress.session.lanes)
        items = self.items_per_rank(progress.session)
        return progress.session.reader_items(progress.reader) if items is None else items

    def ends_pass(self, start: State, *, empty: bool) -> bool:
        """True if a pass that has read the rest of an epoch, from ``start``, ends there.

        ``empty`` means that nothing was left for this reader. If nothing was left of an epoch under way, a pass of
        several epochs still goes into the next one. An epoch that was empty from its beginning ends every pass, which
        might never end otherwise.
        """
        if empty and start.lanes is None:
            return True
        return self.epochs_per_loop is not None and (start.epoch + 1) % self.epochs_per_loop == 0
