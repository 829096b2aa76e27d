"""torchft: the micro-batches of each step, shared anew among the replica groups that take part in it.

batches = QuorumLoader(manager, loader, micro_batches=64)
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from midepoch._common.checks import check_integer
from midepoch.delivery.plan import check_shard
from midepoch.delivery.session import Session
from midepoch.distributed import own_state, repeated_batch
from midepoch.loader import Loader


class Dealt(NamedTuple):
    """The step that was shared last."""

    step: int
    batches: int
    groups: int
    readers: int


class QuorumLoader:
    """The steps of a training run with torchft: each has the same micro-batches, whoever takes part.

    ``manager`` is the ``torchft.Manager`` of this process, and ``loader`` a Loader of one shard whose batches are
    micro-batches, of a counted pipeline. A step has ``micro_batches`` of them, all groups together; the last of an
    epoch has what is left. If a group has several ranks, they read different micro-batches: ``group_rank`` is this one,
    of ``group_world_size``.

    Groups that join get the position from torchft, with the model, under the name ``key``. A step that was not
    committed is shared again.
    """

    def __init__(
        self,
        manager: Any,
        loader: Loader,
        *,
        micro_batches: int,
        group_rank: int = 0,
        group_world_size: int = 1,
        key: str = "midepoch",
    ) -> None:
        self._manager, self.loader = manager, loader
        self._micro_batches = check_integer("micro_batches", micro_batches, least=1)
        self._group_ranks, self._group_rank = check_shard(group_world_size, group_rank)
        plan = loader.plan
        if (reason := plan.why_not_counted()) is not None:
            raise ValueError(f"QuorumLoader needs a pipeline whose number of items is known: {reason}.")
        if plan.mode == "file" or plan.items_per_step > 1 or plan.even == "drop" or plan.pipeline.balanced is not None:
            raise ValueError(
                "QuorumLoader shares micro-batches itself: make the Loader without global_batch_size, balance, "
                "even='drop' and shard(mode='file'), with the micro-batch as batch_size."
            )
        self._start = own_state(loader)
        self._session: Session | None = None
        self._place: tuple[int | None, int] = (None, 1)
        self._shard = 0
        self._done = self._read = 0  # items of the session: in committed steps, and taken from the loader
        self._dealt: Dealt | None = None
        self._batches: Iterator[Any] = iter(())
        self._padding: list[Any] = []
        manager.register_state_dict_fn(key, self.load_state_dict, self.state_dict)

    def step(self) -> Iterator[tuple[Any, float]]:
        """The micro-batches of this rank in the step, each with the factor of its loss. All ranks get as many.

            optimizer.zero_grad()  # starts torchft's quorum
            for batch, weight in batches.step():
                (loss(model(batch)) * weight).backward()
            optimizer.step()  # commits

        With these factors the gradient that torchft averages over groups is the mean over the micro-batches of the
        step. The factor is 0 for micro-batches that only keep ranks even, and for groups that do not take part. Call
        this after the quorum of the step was started.
        """
        manager = self._manager
        rank, groups = manager.participating_rank(), manager.num_participants()
        if groups == 0:
            raise RuntimeError("No quorum yet: call optimizer.zero_grad(), or manager.start_quorum(), before step().")
        if rank is not None and not manager.is_participating():
            raise RuntimeError(
                "torchft counts this group, and drops its gradients, because it is still loading the model: its rows "
                "would be lost. Use Manager(use_async_quorum=False), or init_sync=False and models that start alike."
            )
        self._settle()
        readers = groups * self._group_ranks
        self._dealt = Dealt(manager.current_step(), manager.batches_committed(), groups, readers)
        return self._deal(None if rank is None else rank * self._group_ranks + self._group_rank, readers)

    def _deal(self, reader: int | None, readers: int) -> Iterator[tuple[Any, float]]:
        if self._session is None or self._place != (reader, readers) or self._read != self._done:
            self._open(reader, readers)
        items = self._items_of_step() or self._open(reader, readers, next_epoch=True)
        if not items:
            raise ValueError("An epoch of this pipeline has no items.")
        first, self._read = self._done, -1
        own = 0 if reader is None else len(range(first + (self._shard - first) % readers, first + items, readers))
        for turn in range(-(-items // readers)):
            yield (next(self._batches), readers / items) if turn < own else (self._repeated(), 0.0)
        self._read = first + items

    def _open(self, reader: int | None, readers: int, *, next_epoch: bool = False) -> int:
        """Go on from the committed position as another reader. Returns the number of items of the next step."""
        self._start, loader = self._at(self._done), self.loader
        if next_epoch and self._session is not None:
            self._start = self._describe(self._session.start.following())
        # Counted from step 0, so that groups share a step alike whenever each of them has come here.
        self._shard = ((reader or 0) - self._manager.current_step() * self._micro_batches) % readers
        loader.reshard(readers, self._shard, at=self._start)
        session = loader.position.latest(loader.plan).progress().session
        assert isinstance(session, Session), "only counted items are shared"
        self._session, self._place, self._done, self._read = session, (reader, readers), 0, 0
        self._batches, self._padding = iter(loader), []
        return self._items_of_step()

    def _items_of_step(self) -> int:
        """The number of items in the step after the committed ones."""
        assert self._session is not None
        rounds, end = self._session.rounds, self._done + self._micro_batches
        return self._micro_batches if rounds.has(end - 1) else rounds.total() - self._done

    def _repeated(self) -> Any:
        """A micro-batch for ranks that have none left in a step."""
        if not self._padding:
            self._padding.append(repeated_batch(self.loader, int(self._start["epoch"])))
        return self._padding[0]

    @property
    def epoch(self) -> int:
        """The epoch of the next step."""
        self._settle()
        if self._session is None:
            self._open(None, 1)
        return int(self._start["epoch"]) + (not self._items_of_step())

    def _settle(self) -> None:
        """Move the position past the step that was shared last, if torchft has committed it."""
        dealt, manager = self._dealt, self._manager
        if dealt is None or manager.current_step() == dealt.step:
            return
        if manager.batches_committed() != dealt.batches + dealt.groups:
            raise RuntimeError(
                f"Step {dealt.step} was shared among {dealt.groups} groups, and another number has committed it. Start "
                "the quorum before step(), not after it: call optimizer.zero_grad() first."
            )
        items = 0 if self._session is None else self._items_of_step()
        if not items:  # this group was loading the model during the step
            items = self._open(None, dealt.readers) or self._open(None, dealt.readers, next_epoch=True)
        self._done, self._dealt = self._done + items, None

    def _at(self, items: int) -> dict[str, Any]:
        """The state after some items of the session."""
        return self._describe(self._session.after_items(items)) if self._session and items else self._start

    def _describe(self, state: Any) -> dict[str, Any]:
        return self.loader.plan.pipeline.state_dict(replace(state, digest=None))  # nobody knows the rows of all groups

    def state_dict(self) -> dict[str, Any]:
        """The position after the last committed step, the same on all groups. It fits any number of them."""
        self._settle()
        return self._at(self._done)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the position of ``state_dict``, that of a checkpoint or of another group."""
        self._start, self._session, self._done = dict(state_dict), None, 0
        if self._dealt is not None and self._dealt.step != self._manager.current_step():
            self._dealt = None  # what this group did in that step does not count
