"""Where an iteration stands, and the loop that moves it: the one thing about a data set that changes."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from midepoch._common.checks import check_integer
from midepoch._common.world import torch_worker
from midepoch.checkpoint.state import State
from midepoch.delivery.plan import Plan
from midepoch.delivery.progress import Progress
from midepoch.delivery.session import Session
from midepoch.delivery.workers import SharedWithWorkers
from midepoch.errors import CheckpointMismatchError, UnknownStateError


class Position:
    """Where an iteration stands: at a state, or as far as the loop under way has come."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._progress: Progress | None = None
        self._loops = 0
        self._refused: CheckpointMismatchError | None = None
        self.named: int | None = None  # by set_epoch, for the loop that follows
        self.workers: SharedWithWorkers | None = None

    def now(self) -> State:
        """The state, as a value."""
        return self._state if self._progress is None else self._progress.state()

    def progress(self, plan: Plan) -> Progress:
        """How far the loop under way has come, or where one would begin."""
        return plan.begin(self._state) if self._progress is None else self._progress

    def go_to(self, epoch: int) -> None:
        """Stand at the beginning of an epoch."""
        self._state, self._progress = State(epoch=epoch), None

    def run(
        self,
        plan: Plan,
        items_of: Callable[[Progress], Iterator[Iterable[Any]]],
        is_over: Callable[[Session], bool] = Session.is_over,
    ) -> Iterator[Any]:
        """The items from here to the end of the loop.

        ``items_of`` gives those of the rest of an epoch, many at a time so that no Python code runs for a single one,
        and ``is_over`` says of a uniform pipeline whether there are any left for any reader.
        """
        return chain.from_iterable(self._run(plan, items_of, is_over))

    def _run(
        self,
        plan: Plan,
        items_of: Callable[[Progress], Iterator[Iterable[Any]]],
        is_over: Callable[[Session], bool],
    ) -> Iterator[Iterable[Any]]:
        """The same, many at a time.

        A loop that was left is gone on with in its own leg: so a reader that does this alone stays in step with the
        others.
        """
        if self._refused is not None:
            raise self._refused
        self._loops += 1
        named, self.named = self.named, None
        try:
            while True:
                begun = self.now()
                left = self._progress
                progress = left.again() if left is not None and left.is_of(plan.pipeline) else plan.begin(begun)
                self._progress = progress
                before = progress.items
                yield from items_of(progress)
                if self._progress is not progress:
                    return  # another loop, or set_epoch, has moved on
                empty = progress.items == before
                over = empty and plan.pipeline.uniform and is_over(plan.begin(begun).session)
                ends = plan.ends_loop(begun, progress, empty=empty, over=over, named=begun.epoch == named)
                if not (ends and torch_worker()):
                    self.go_to(begun.epoch + 1)
                if ends:
                    return
        finally:
            self._loops -= 1

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless it is the one in which this stands.

        The next loop gives what is left of it, which is nothing behind its last item: a loop that counts epochs would
        otherwise have the one after it twice.
        """
        epoch = check_integer("epoch", epoch)
        self.named = epoch
        if epoch != self.now().epoch:
            self.go_to(epoch)
        if self.workers is not None and torch_worker() is None:
            self.workers.set_epoch(epoch)

    def state_dict(self, plan: Plan) -> dict[str, Any]:
        """The state as plain values."""
        if self.workers is not None and self.workers.have_read and torch_worker() is None:
            raise UnknownStateError(
                "Workers of a DataLoader have read this data set, and nobody told this process what they delivered: "
                "any state would be wrong. Use midepoch.Loader, or torchdata's StatefulDataLoader and its state_dict()."
            )
        return self.now().to_dict(plan.pipeline.fingerprint)

    def load_state_dict(self, plan: Plan, values: Mapping[str, Any]) -> None:
        """Go to where a state says. Whatever does not fit is told, and nothing changes."""
        if self._loops:
            raise CheckpointMismatchError(
                "load_state_dict came too late: a loop is under way and would go on where it is. "
                "Load the state before the loop, or del its iterator first."
            )
        state = State.from_dict(values)
        state = plan.pipeline.adopt(state, values.get("fingerprint"))
        plan.begin(state).session.check()
        self._state, self._progress = state, None
        if self.workers is not None and torch_worker() is None:
            self.workers.loaded()

    def enter_worker(self) -> None:
        """Before a loop in a worker of a foreign DataLoader, where epochs are chosen by the main process.

        A worker that has been through a loop begins its epoch again, as one that is started anew would; what it had
        read ahead when that loop was left is not skipped. If another epoch was chosen since, it goes there.
        """
        if torch_worker() is None:
            return
        if self._progress is not None and self._progress.process == os.getpid():
            self.go_to(self.now().epoch)
        try:
            epoch = self.workers.enter() if self.workers is not None else None
        except CheckpointMismatchError as error:
            self._refused = error  # raised by the loop itself, where the DataLoader passes errors on
            return
        if epoch is not None:
            self.named = epoch
            if epoch != self.now().epoch:
                self.go_to(epoch)
