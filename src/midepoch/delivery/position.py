"""A position: where the next pass of a dataset or a Loader starts, and the passes that were started from there."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakSet

from midepoch._common.checks import check_integer
from midepoch._common.world import torch_worker
from midepoch.checkpoint.state import MOST_EPOCHS, State, checked_state
from midepoch.delivery.passes import Pass
from midepoch.delivery.plan import Plan, settled
from midepoch.errors import CheckpointMismatchError, UnknownStateError
from midepoch.pipeline.adopt import adopt

EPOCHS_SET, EPOCH, STATES_LOADED, HAVE_READ = range(4)


class SharedWithWorkers:
    """Shared memory of a few numbers: what the main process has chosen, and what the workers have read since.

    The main process writes how often ``set_epoch`` was called, its epoch, and the number of states loaded. Workers
    write that they have started to read.
    """

    def __init__(self) -> None:
        from multiprocessing.sharedctypes import RawArray

        self._numbers = RawArray("Q", 4)
        self._seen = (0, 0)

    @property
    def have_read(self) -> bool:
        """True if a worker has started to read since the main process last set an epoch or loaded a state."""
        return bool(self._numbers[HAVE_READ])

    def set_epoch(self, epoch: int) -> None:
        """Send the epoch to the workers, including those that are already running."""
        self._numbers[EPOCH] = epoch
        self._choose(EPOCHS_SET)

    def state_loaded(self) -> None:
        """Record that a state was loaded. Only workers that start later receive it."""
        self._choose(STATES_LOADED)

    def _choose(self, counter: int) -> None:
        self._numbers[counter] += 1
        self._numbers[HAVE_READ] = 0
        self._seen = (self._numbers[EPOCHS_SET], self._numbers[STATES_LOADED])

    def enter(self) -> int | None:
        """In a worker, before a loop: the epoch that was set since the last call, or None."""
        epochs_set, states_loaded = self._numbers[EPOCHS_SET], self._numbers[STATES_LOADED]
        self._numbers[HAVE_READ] = 1
        if states_loaded != self._seen[1]:
            raise CheckpointMismatchError(
                "A state was loaded while persistent workers of a DataLoader were running, and cannot reach them. "
                "Load it before the first loop, or use midepoch.Loader."
            )
        changed = epochs_set != self._seen[0]
        self._seen = (epochs_set, states_loaded)
        return self._numbers[EPOCH] if changed else None


log = logging.getLogger("midepoch")


class Position:
    """Where the next pass starts, and which pass delivered last.

    A pass starts at the beginning of an epoch, or at a state that was loaded. Only a pass that reaches its end moves
    the position: to the next epoch. Passes do not disturb each other.
    """

    def __init__(self, start: State, chosen_epoch: int | None = None) -> None:
        self._start = start
        self._chosen_epoch = chosen_epoch  # the last that set_epoch named, also after its pass
        self._started: WeakSet[Pass] = WeakSet()  # passes that are neither closed nor out of date
        self._open: dict[Pass, None] = {}  # those of them that have delivered
        self._last_started: Pass | None = None
        self._left: Pass | None = None  # the last one that was closed after delivering, while no other was open
        self._deliveries = 0  # how many were numbered
        self._revision = 0
        self._warned = False
        self._of_loaders: WeakSet[Position] = WeakSet()
        self.is_of_loader = False
        self.workers: SharedWithWorkers | None = None
        self.finished: Pass | None = None
        """The pass that reached its end last, until an epoch is set or a state is loaded."""
        self.waits_for_ranks = False
        """True while other ranks are still in the epoch of the finished pass."""

    def __getstate__(self) -> dict[str, Any]:
        return {"start": self._start, "chosen_epoch": self._chosen_epoch}

    def __setstate__(self, values: dict[str, Any]) -> None:
        Position.__init__(self, **values)

    def for_derived(self) -> "Position":
        """The position of a dataset that is made of this one: the beginning of the epoch that set_epoch named."""
        made = Position(State())
        if self._chosen_epoch is not None:
            made.set_epoch(self._chosen_epoch)
        return made

    def for_loader(self) -> "Position":
        """A copy for a Loader. ``set_epoch`` of this one also sets the epoch of the Loader."""
        return self.linked_to(Position(self._start))

    def linked_to(self, of_loader: "Position") -> "Position":
        """The position of a Loader, which ``set_epoch`` of this one reaches from now on."""
        of_loader.is_of_loader = True
        self._of_loaders.add(of_loader)
        return of_loader

    def begin(self, plan: Plan) -> Pass:
        """Start a pass from the start point, as it is now."""
        error, self.waits_for_ranks = None, False
        if torch_worker() is not None:
            error = self._enter_worker(plan)
        elif self._left is not None and self._left.start is self._start and not self._warned:
            self._warned = True
            log.warning(
                "The last pass was left before its end, and this one starts again at the same point. To continue after "
                "the last item instead, call x.load_state_dict(x.state_dict()) first; for another epoch, set_epoch."
            )
        run = Pass(self, plan, self._start, self._revision)
        run.error = error
        self._started.add(run)
        self._last_started = run
        return run

    def note_delivery(self, run: Pass) -> bool:
        """Note that a pass is about to deliver. True if no other pass is open, so that it may deliver many at a time.

        While several are open, each delivery of all but one is noted; that one hands over what it had when the others
        began, and whether it did so since is seen by its mark.
        """
        others = [other for other in list(self._open) if other is not run]
        for other in [other for other in others if not other.is_of_this_process]:
            self._open.pop(other, None)
            others.remove(other)
        if others or run not in self._open:
            self._look(others)
            self._number(run)
            self._open[run], self._left = None, None
        return not others

    def _number(self, run: Pass) -> None:
        self._deliveries += 1
        run.delivered_at, run.mark_then = self._deliveries, run.mark

    def _look(self, runs: Iterable[Pass]) -> None:
        """Number those that have delivered since we last looked: one at most."""
        for run in runs:
            if run.mark != run.mark_then:
                self._number(run)

    def closed(self, run: Pass) -> None:
        """Called when a pass is closed. If it reached its end, the position moves to the next epoch."""
        self._look(list(self._open))
        if run in self._open:
            self._open.pop(run, None)
            self._left = None if self._open else run
        if run.is_finished and run in self._started and torch_worker() is None:
            self._start, self._left, self.finished = run.state(), None, run
            for other in list(self._open):
                other.delivered_at = 0
        self._started.discard(run)

    def latest(self, plan: Plan) -> Pass:
        """The open pass that delivered last. If none is open, the last that was left early, else a new one."""
        run = self._last_to_deliver()
        return Pass(self, plan, self._start) if run is None else run

    def _last_to_deliver(self) -> Pass | None:
        """The open pass that delivered last, unless another one has reached its end since."""
        runs = list(self._open)
        self._look(runs)
        last = max(runs, key=lambda run: run.delivered_at, default=None)
        return last if last is not None and last.delivered_at else self._left

    @property
    def epoch(self) -> int:
        """The epoch of the pass that delivered last, or of the start point."""
        run = self._last_to_deliver()
        return self._start.epoch if run is None else run.epoch

    def set_epoch(self, epoch: int) -> None:
        """Start from the beginning of an epoch. If the start point is in that epoch already, it stays.

        The next pass yields what is left of that epoch, which is nothing after its last item. Passes in other epochs
        are out of date.
        """
        epoch = check_integer("epoch", epoch, most=MOST_EPOCHS)
        self._chosen_epoch, self.finished, self.waits_for_ranks = epoch, None, False
        self._go_to(epoch)
        if self.workers is not None and torch_worker() is None:
            self.workers.set_epoch(epoch)
        for loader in self._of_loaders:
            loader.set_epoch(epoch)

    def _go_to(self, epoch: int) -> None:
        self._expire([run for run in self._started if run.epoch != epoch], f"set_epoch({epoch}) was called")
        if self._left is not None and self._left.epoch != epoch:
            self._left = None
        if self._start.epoch != epoch:
            self._start = self._start.start_of(epoch)
            self._revision += bool(self._deliveries)

    def _expire(self, runs: list[Pass], reason: str) -> None:
        for run in runs:
            run.expire(reason)
            self._started.discard(run)
            self._open.pop(run, None)

    def check_known(self) -> None:
        """Raise if only workers of a DataLoader, or a Loader, know the state."""
        is_read_here = any(run.is_of_this_process for run in list(self._open))
        if self.workers is not None and self.workers.have_read and torch_worker() is None and not is_read_here:
            raise UnknownStateError(
                "Workers of a DataLoader have read this dataset, and this process does not know what they delivered: "
                "any state would be wrong. Use midepoch.Loader, or torchdata's StatefulDataLoader and its state_dict()."
            )
        if not self._deliveries and not self.is_of_loader and any(loader._deliveries for loader in self._of_loaders):
            raise UnknownStateError(
                "A Loader of this dataset has delivered items, and the dataset itself has not: use the Loader's "
                "state_dict()."
            )

    def load_state_dict(self, plan: Plan, values: Mapping[str, Any]) -> None:
        """Start from a state. If it does not fit, raise and change nothing. Passes from before are out of date."""
        if len(self._of_loaders) and not self.is_of_loader:
            raise CheckpointMismatchError(
                "A Loader of this dataset has a position of its own, which this would not change. Call the Loader's "
                "load_state_dict(), or load the state before the Loader is built."
            )
        values = checked_state(values)
        state = adopt(plan.pipeline, State.from_dict(values), values.get("fingerprint"))
        plan.check(state)
        state = settled(plan.pipeline, state)
        self._expire([*self._started, *self._open], "a state was loaded")
        self._start, self._left, self._last_started, self.finished = state, None, None, None
        self.waits_for_ranks = False
        self._revision += bool(self._deliveries)
        if self.workers is not None and torch_worker() is None:
            self.workers.state_loaded()

    def _enter_worker(self, plan: Plan) -> CheckpointMismatchError | None:
        """Prepare a pass in a worker of a plain DataLoader, where the main process chooses the epoch.

        A worker that has started a pass before begins its epoch again, as a newly started worker would. Returns the
        error that the pass raises, because a DataLoader reports an error only if it is raised while iterating.
        """
        earlier = self._last_started
        if earlier is not None and earlier.is_of_this_process:
            # A pass of several epochs begins again at the first of them, which all workers know. They read ahead, so
            # the epoch that each has reached is its own.
            epoch = earlier.epoch if plan.epochs_per_loop == 1 else earlier.start.epoch
            later = tuple(state for state in self._start.later if state.epoch > epoch)
            self._start, self._left = State(epoch=epoch, later=later), None
        if self.workers is None:
            return None
        try:
            chosen = self.workers.enter()
        except CheckpointMismatchError as error:
            return error
        if chosen is not None:
            self._go_to(chosen)
        return None
