"""What a Loader reads and what it has delivered: its plan, its position, and the states of these.

The state moves when the loop receives a batch, so what is prefetched and never received is not consumed.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader

from midepoch.checkpoint.row_digest import RowDigest
from midepoch.dataset.dataset import Item, plan_of
from midepoch.delivery.passes import Pass
from midepoch.delivery.plan import Plan, check_shard
from midepoch.delivery.position import StartPoint
from midepoch.loader.options import LoaderOptions

log = logging.getLogger("midepoch")


class PositionedLoader(DataLoader[Item]):
    """A DataLoader with a plan and a position. :class:`midepoch.Loader` has the constructor."""

    _plan: Plan
    _options: LoaderOptions
    _start_point: StartPoint
    _number: int | None
    """The number of this Loader among those that ranks compare; None if they do not."""
    _waiting: Pass | None = None
    """The finished pass in whose epoch other ranks still are."""
    _finished_run: Pass | None = None
    _warned_of_saving = False

    @property
    def plan(self) -> Plan:
        """How this loader reads its dataset: the dataset's plan with the loader's lanes and batches."""
        return self._plan

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self._start_point.epoch

    @property
    def start_point(self) -> StartPoint:
        """Where the next pass starts, and which pass delivered last."""
        return self._start_point

    def set_epoch(self, epoch: int) -> None:
        """Start the next loop at the beginning of an epoch. If a state of that epoch was loaded, it starts there.

            for epoch in range(loader.epoch, 3):
                loader.set_epoch(epoch)
                for batch in loader:
                    pass

        ``epoch`` counts from 0. The next loop yields what is left of that epoch. Iterators in other epochs are out of
        date.
        """
        self._waiting = self._finished_run = None
        self._start_point.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """What the loop has received, including its present batch, and nothing else.

            torch.save({"loader": loader.state_dict()}, "checkpoint.pt")

        With several iterators it is the state of the open one that delivered last, else of the last that was left;
        before any, of the start point.
        """
        state = self.own_state()
        of_one_rank = not self._plan.counted or state.get("part") is not None or "earlier" in state
        if self._plan.ranks > 1 and of_one_rank and not self._warned_of_saving:
            self._warned_of_saving = True
            log.warning(
                "This state holds what rank %s of %s delivered, and restores that rank only, because %s. Save "
                "midepoch.distributed.gather_state(loader), or every rank's state.",
                self._plan.rank,
                self._plan.ranks,
                self._plan.why_not_counted() or "it continues the state of that rank",
            )
        elif "+" in (state["digest"] or "") and not self._warned_of_saving:
            self._warned_of_saving = True
            log.warning(
                "This state holds the digest of rank %s of %s alone. It restores all ranks, but not the digest. Save "
                "midepoch.distributed.gather_state(loader), or merge_states of every rank's state.",
                self._plan.rank,
                self._plan.ranks,
            )
        return state

    def own_state(self) -> dict[str, Any]:
        """The state of this rank, without a warning that it is one of several."""
        if self._waiting is not None:
            return self.describe_state(self._waiting.in_last_epoch())
        return self.describe_state(self._start_point.latest(self._plan))

    def describe_state(self, run: Pass) -> dict[str, Any]:
        """The state of a pass as plain values."""
        state, pipeline = run.state(), run.plan.pipeline
        if pipeline.digest and state.lanes is None:  # some checkpoints restore only keys that a state always has
            state = replace(state, digest=RowDigest())
        return pipeline.state_dict(state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Start from a state. If it does not fit, this raises, says what differs, and changes nothing.

            loader.load_state_dict(torch.load("checkpoint.pt", weights_only=True)["loader"])

        ``state_dict`` is what :meth:`state_dict` returned, in this run or another, or what
        :func:`midepoch.merge_states` or ``midepoch.distributed.gather_state`` made of the states of all ranks. After
        the state of the last batch of an epoch the next loop yields nothing, and the one after it is the next epoch.
        This may be called at any time. Iterators from before are out of date: they raise when they are advanced.
        """
        self._start_point.load_state_dict(self._plan, state_dict)
        self._waiting = self._finished_run = None

    save_state = state_dict
    restore_state = load_state_dict

    def reshard(self, num_shards: int, index: int, *, at: Mapping[str, Any]) -> None:
        """Continue as rank ``index`` of ``num_shards``, from a state, without opening anything again.

            loader.reshard(num_shards=5, index=2, at=last_committed_state)
            for batch in loader: ...

        For elastic trainers: when a process leaves or joins, the others call this with the state of the last step that
        all had finished, and what was delivered since is delivered again. One state does for all ranks if the pipeline
        is counted; else ``at`` is what ``merge_states`` made of the states of all ranks. Iterators from before are out
        of date. Ranks are not compared from then on. If it raises, nothing has changed.
        """
        ranks, rank = check_shard(num_shards, index)
        of_dataset = plan_of(self.dataset)  # type: ignore[arg-type]
        plan = self._options.plan(replace(of_dataset, ranks=ranks, rank=rank, sharded_by="user"))
        self._start_point.load_state_dict(plan, at)
        self._plan, self._waiting, self._finished_run, self._number = plan, None, None, None

    @property
    def is_padding(self) -> bool:
        """True if the last batch that the loop received is one that keeps ranks even. It is in no state."""
        return self._waiting is not None or self._start_point.latest(self._plan).is_padding

    def wait_for_other_ranks(self, finished: Pass | None) -> None:
        """Stay in the epoch of a finished pass, because other ranks are still in it; None ends the wait.

        Meanwhile the state is that of the end of the epoch, so that the states of all ranks can be merged.
        """
        self._waiting = finished
