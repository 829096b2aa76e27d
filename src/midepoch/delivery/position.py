"""The position of an iteration, and the loop that moves it: the only thing about a dataset that changes."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from midepoch._common.checks import check_integer
from midepoch._common.world import torch_worker
from midepoch.checkpoint.migrations import upgrade
from midepoch.checkpoint.state import State
from midepoch.delivery.plan import Plan
from midepoch.delivery.progress import Progress
from midepoch.delivery.session import Session
from midepoch.delivery.workers import SharedWithWorkers
from midepoch.errors import CheckpointMismatchError, UnknownStateError


class Position:
    """The position of an iteration: a state, or the progress of the loop that is running."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._progress: Progress | None = None
        self._running_loops = 0
        self._refused: CheckpointMismatchError | None = None
        self.requested_epoch: int | None = None  # by set_epoch, for the next loop
        self.workers: SharedWithWorkers | None = None

    def state(self) -> State:
        """The state, as a value."""
        return self._state if self._progress is None else self._progress.state()

    def progress(self, plan: Plan) -> Progress:
        """The progress of the loop that is running, or of one that would start now."""
        return plan.begin(self._state) if self._progress is None else self._progress

    def start_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self._state, self._progress = State(epoch=epoch), None

    def run(
        self,
        plan: Plan,
        items_of: Callable[[Progress], Iterator[Iterable[Any]]],
        is_over: Callable[[Session], bool] = Session.is_over,
    ) -> Iterator[Any]:
        """The items from this position to the end of the loop.

        ``items_of`` yields those of the rest of an epoch, many at a time so that no Python code runs for a single one.
        ``is_over`` returns True if a session of a uniform pipeline started with nothing left for any reader.
        """
        return chain.from_iterable(self._run(plan, items_of, is_over))

    def _run(
        self,
        plan: Plan,
        items_of: Callable[[Progress], Iterator[Iterable[Any]]],
        is_over: Callable[[Session], bool],
    ) -> Iterator[Iterable[Any]]:
        """The same, many items at a time.

        A loop after one that was left early continues its session, so that this reader stays in step with the others.
        """
        if self._refused is not None:
            raise self._refused
        self._running_loops += 1
        requested, self.requested_epoch = self.requested_epoch, None
        try:
            while True:
                start = self.state()
                earlier = self._progress
                if earlier is not None and earlier.belongs_to(plan.pipeline):
                    progress = earlier.resumed()
                else:
                    progress = plan.begin(start)
                self._progress = progress
                before = progress.items
                yield from items_of(progress)
                if self._progress is not progress:
                    return  # another loop, or set_epoch, has moved the position
                empty = progress.items == before
                over = empty and plan.pipeline.uniform and is_over(plan.begin(start).session)
                ends = plan.ends_loop(start, progress, empty=empty, over=over, requested=start.epoch == requested)
                if not (ends and torch_worker()):
                    self.start_epoch(start.epoch + 1)
                if ends:
                    return
        finally:
            self._running_loops -= 1

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless it is the present one.

        The next loop yields what is left of that epoch, which is nothing after its last item. Otherwise a training
        loop that counts epochs would get the next epoch twice.
        """
        epoch = check_integer("epoch", epoch)
        self._request(epoch)
        if self.workers is not None and torch_worker() is None:
            self.workers.set_epoch(epoch)

    def _request(self, epoch: int) -> None:
        self.requested_epoch = epoch
        if epoch != self.state().epoch:
            self.start_epoch(epoch)

    def state_dict(self, plan: Plan) -> dict[str, Any]:
        """The state as plain values."""
        if self.workers is not None and self.workers.have_read and torch_worker() is None:
            raise UnknownStateError(
                "Workers of a DataLoader have read this dataset, and this process does not know what they delivered: "
                "any state would be wrong. Use midepoch.Loader, or torchdata's StatefulDataLoader and its state_dict()."
            )
        return self.state().to_dict(plan.pipeline.fingerprint)

    def load_state_dict(self, plan: Plan, values: Mapping[str, Any]) -> None:
        """Go to the position of a state. If the state does not fit, raise and change nothing."""
        if self._running_loops:
            raise CheckpointMismatchError(
                "load_state_dict was called too late: a loop is running and would continue from where it is. "
                "Load the state before the loop, or del its iterator first."
            )
        values = upgrade(values)
        state = plan.pipeline.adopt(State.from_dict(values), values.get("fingerprint"))
        plan.begin(state).session.check()
        self._state, self._progress = state, None
        if self.workers is not None and torch_worker() is None:
            self.workers.state_loaded()

    def enter_worker(self) -> None:
        """Prepare a loop in a worker of a plain DataLoader, where the main process chooses the epoch.

        A worker that has run a loop begins its epoch again, as a newly started one would: what it had read ahead when
        that loop was left is not skipped. If another epoch was set since, it goes there.
        """
        if torch_worker() is None:
            return
        if self._progress is not None and self._progress.process == os.getpid():
            self.start_epoch(self.state().epoch)
        try:
            epoch = self.workers.enter() if self.workers is not None else None
        except CheckpointMismatchError as error:
            self._refused = error  # raised by the loop itself, where the DataLoader passes errors on
            return
        if epoch is not None:
            self._request(epoch)
