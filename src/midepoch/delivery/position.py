"""Where an iteration stands, and the loop that moves it: the one thing about a data set that changes."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from midepoch.checkpoint.state import State
from midepoch.delivery.session import Leg, Progress, begin
from midepoch.errors import CheckpointMismatchError, UnknownStateError
from midepoch.pipeline.pipeline import Pipeline

Cut = Literal["file", "example"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A pipeline, and who reads it. Only the pipeline is part of a checkpoint."""

    pipeline: Pipeline
    ranks: int = 1
    rank: int = 0
    mode: Cut = "example"
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
        if empty and begun.lanes is not None and (over or progress.leg.deal.readers == 1 or self.passes != 1):
            return False
        return empty or (self.passes is not None and (begun.epoch + 1) % self.passes == 0)


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
        is_over: Callable[[Leg], bool] = Leg.is_over,
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
        is_over: Callable[[Leg], bool],
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
                over = empty and plan.pipeline.uniform and is_over(plan.begin(begun).leg)
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
        epoch = whole_number("epoch", epoch)
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
        plan.begin(state).leg.check()
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


class SharedWithWorkers:
    """What a data set shares with its copies in the workers of a foreign DataLoader: four numbers."""

    def __init__(self) -> None:
        from multiprocessing.sharedctypes import RawArray

        self._numbers = RawArray("q", 4)  # how often set_epoch was called, its epoch, loads, whether workers have read
        self._seen = (0, 0)

    @property
    def have_read(self) -> bool:
        """Whether a worker has begun to read since the main process last chose where to stand."""
        return bool(self._numbers[3])

    def set_epoch(self, epoch: int) -> None:
        """Tell the workers, also those that are running already."""
        self._numbers[1] = epoch
        self._numbers[0] += 1
        self._numbers[3] = 0
        self._seen = (self._numbers[0], self._numbers[2])

    def loaded(self) -> None:
        """Remember that a state was loaded, which only workers started later get."""
        self._numbers[2] += 1
        self._numbers[3] = 0
        self._seen = (self._numbers[0], self._numbers[2])

    def enter(self) -> int | None:
        """In a worker: the epoch that was chosen since it last asked, if any."""
        chosen, loads = self._numbers[0], self._numbers[2]
        self._numbers[3] = 1
        if loads != self._seen[1]:
            raise CheckpointMismatchError(
                "A state was loaded while persistent workers of a DataLoader were running, and cannot reach them. "
                "Load it before the first loop, or use midepoch.Loader."
            )
        changed = chosen != self._seen[0]
        self._seen = (chosen, loads)
        return self._numbers[1] if changed else None


def whole_number(name: str, value: Any, *, least: int | None = 0) -> int:
    """The value as an int, if it is a whole number that is large enough."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {value!r}.")
    number = int(value.__index__())
    if least is not None and number < least:
        raise ValueError(f"{name} is {number}; it must be at least {least}.")
    return number


def torch_worker() -> tuple[int, int] | None:
    """Which worker of a DataLoader this process is, and of how many; None outside of one."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return None if info is None else (info.id, info.num_workers)
