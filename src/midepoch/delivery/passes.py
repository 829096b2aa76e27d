"""A pass: one iteration over a dataset or a Loader, independent of every other, and what it has handed over."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import replace
from itertools import chain
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from midepoch._common.checks import cached_property
from midepoch._common.world import torch_worker
from midepoch.checkpoint.digest import WORD
from midepoch.checkpoint.lanes import Cursor
from midepoch.checkpoint.state import ReaderProgress, State
from midepoch.delivery.metrics import Reading, Tally
from midepoch.delivery.session import AnySession, Session
from midepoch.delivery.tokens import EpochAmounts
from midepoch.delivery.turns import NO_TURNS, Turns
from midepoch.errors import MidepochError, StaleIteratorError

if TYPE_CHECKING:
    from midepoch.delivery.plan import Plan
    from midepoch.delivery.position import Position

Item = TypeVar("Item")


class Progress:
    """What one reader of a session has delivered: a number of items, if they are counted.

    It moves as items are handed over, never earlier.
    """

    session: Any

    def __init__(
        self, session: AnySession, reader: int, delivered: ReaderProgress | None = None, workers: int = 1
    ) -> None:
        """Start with the session, or after what was ``delivered`` of it. A rank has ``workers`` readers."""
        self.session, self.reader, self.workers = session, reader, workers
        self.reading = Reading(session.lanes)
        """What this process has taken to make items."""
        self.of_workers = Tally()
        """What making the items has taken in worker processes."""
        self.repeated = 0
        self._current = NO_TURNS
        self._remaining: Iterator[Any] = iter(())
        self._turns_before_current = 0 if delivered is None else delivered.turns
        self._sum_before_current = 0 if session.start.digest is None else session.start.digest.own

    def check(self) -> None:
        """Raise if the state from which this was restored says what no run can have reached."""
        self.session.check()

    def reader_progress(self) -> ReaderProgress:
        """What this reader has delivered of its session, as a value."""
        return ReaderProgress(readers=self.session.readers, workers=self.workers, items=(self.turns_taken,))

    @property
    def items(self) -> int:
        """The number of items handed over, including those repeated to keep ranks even."""
        return self.turns_taken + self.repeated

    has_rows = False
    """True if it takes reading to know what lanes of this reader have, and they have rows."""

    def upcoming(self) -> tuple[int, Cursor] | None:
        """The lane of the next turn that may have an item, and the cursor in it from which reading continues."""
        session: Session = self.session
        return session.upcoming(self.reader, self.turns_taken)

    @cached_property
    def amounts(self) -> EpochAmounts | None:
        """The amounts of the epoch; None if items are not counted."""
        return EpochAmounts(self.session) if isinstance(self.session, Session) else None

    def following(self) -> State:
        """The state in the next epoch, once this reader has delivered everything of this one."""
        start: State = self.session.start
        return start.following()

    def _state(self) -> State:
        """The state at this moment, without a digest."""
        session: Session = self.session
        if self.workers == 1:
            return session.after(self.items)
        return replace(session.start, reader_progress=self.reader_progress())

    def state(self) -> State:
        """The state at this moment."""
        start = self.session.start
        if start.digest is None:
            return self._state()
        return replace(self._state(), digest=start.digest.after(self.own_sum, self.reader, self.session.readers))

    @property
    def turns_taken(self) -> int:
        """The number of turns up to the last that had an item, empty ones included."""
        current, items = self._handed_over()
        return self._turns_before_current + current.turns_until(items)

    def _handed_over(self) -> tuple[Turns, int]:
        """The current ``Turns``, and the number of their items that the iterator has handed over."""
        current = self._current  # once: another thread may iterate over the same object
        return current, len(current.items) - length_hint(self._remaining)

    def follow(self, all_turns: Iterable[Turns]) -> Iterator[Iterable[Any]]:
        """Hand over the items of this reader's turns, many at a time. Each iterable must be used up before the next.

        No Python code runs for a single item: the iterator of the items knows how many are handed over.
        """
        for turns in all_turns:
            self._current, self._remaining = turns, iter(turns.items)
            if len(turns.items):
                yield self._remaining
            self._finish_current()
            del turns  # so that the next rows are made in the memory of these, which is still in the cache

    def cut_off(self) -> None:
        """Hand over none of the items that are ready. Those that were handed over stay delivered."""
        items = self._current.items
        self._finish_current()
        if isinstance(items, list):
            items.clear()  # which ends the iterator that hands them over

    def _finish_current(self) -> None:
        self._settle()
        current, items = self._handed_over()
        if current.hashes is not None:
            self._sum_before_current = self.own_sum
        self._turns_before_current += current.number if items == len(current.items) else current.turns_until(items)
        self._current, self._remaining = NO_TURNS, iter(())

    def _settle(self) -> None:
        """Take note of the items handed over of the current turns."""

    @property
    def own_sum(self) -> int:
        """The sum of the hashes of what this reader delivered, if a digest is kept."""
        current, items = self._handed_over()
        own = 0 if current.hashes is None else int(current.hashes[:items].sum(dtype=np.uint64))
        return (self._sum_before_current + own) % WORD


class Pass:
    """Where one iteration started, and what it has delivered.

    Use it as a context manager. Inside, :meth:`epochs` yields the progress of each epoch, and :meth:`deliver` hands
    over the items of that epoch.
    """

    def __init__(self, position: "Position", plan: "Plan", start: State, revision: int = 0) -> None:
        """Start from a state.

        ``revision`` counts the states that were loaded and the epochs that were set after a delivery: ranks use it to
        compare the same loop.
        """
        self.plan, self.start, self.revision = plan, start, revision
        self.delivered_at = 0
        """The number of the last delivery among those of all passes; 0 if another has reached its end since."""
        self.mark_then: tuple[int, int] | None = None
        """The mark when that was last looked at."""
        self.is_finished = False
        self.error: MidepochError | None = None
        """What is raised when the next item is asked for."""
        self._position = position
        self._state, self._progress, self._last_progress = start, None, None
        self._process = os.getpid()

    _progress: Progress | None
    _last_progress: Progress | None
    _is_exiting = staticmethod(sys.is_finalizing)  # kept here, because modules are emptied at the interpreter's end

    def state(self) -> State:
        """The state after the last item that was delivered."""
        return self._state if self._progress is None else self._progress.state()

    def in_last_epoch(self) -> "Pass":
        """A finished pass, still at the end of its last epoch: other ranks may be in it."""
        last = copy(self)
        if self._last_progress is not None:
            last._state, last._progress = self._last_progress.session.start, self._last_progress
        return last

    def progress(self) -> Progress:
        """The progress in the present epoch."""
        return self.plan.begin(self._state) if self._progress is None else self._progress

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self._state.epoch

    @property
    def mark(self) -> tuple[int, int]:
        """Changes whenever items are delivered: compare two marks to see if any were."""
        progress = self._progress
        return self._state.epoch, 0 if progress is None else progress.turns_taken + progress.repeated

    @property
    def is_padding(self) -> bool:
        """True if the last item was one that is repeated to keep ranks even."""
        return self._progress is not None and self._progress.repeated > 0

    @property
    def is_of_this_process(self) -> bool:
        """False in a process that was forked from the one that started the pass."""
        return self._process == os.getpid()

    def expire(self, reason: str) -> None:
        """Deliver nothing more. The next item that is asked for raises, and says why."""
        self.error = StaleIteratorError(
            f"This iterator is out of date: {reason} after it was started. Call iter() again to start from there."
        )
        if self._progress is not None:
            self._progress.cut_off()

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_exiting() and self.is_of_this_process:
            self._position.closed(self)

    def epochs(self) -> Iterator[Progress]:
        """The rest of the epoch from which the pass starts, if there is any; with ``repeat``, the next ones too."""
        while self.plan.epochs_per_loop != 0:
            start = self._state
            progress = self._progress = self.plan.begin(start)
            before = progress.items
            yield progress
            empty = progress.items == before
            if empty and start.lanes is None:
                self._check_empty(progress)
            last = self.plan.ends_pass(start, empty=empty)
            # In a worker of a plain DataLoader the main process chooses the next epoch.
            if not (last and torch_worker()):
                self._state, self._progress = progress.following(), None
            if last:
                self.is_finished, self._last_progress = True, progress
                return

    def _check_empty(self, progress: Progress) -> None:
        """Raise if a stage left out all items of a reader's rows, unless the number of items was known before.

        In a worker of a plain DataLoader, what other workers left out says nothing.
        """
        if not progress.has_rows:
            return
        process = os.getpid() if torch_worker() else None
        for stage in self.plan.pipeline.stages:
            if (error := stage.why_empty(self.epoch, process)) is not None:
                raise error

    def deliver(self, all_turns: Iterable[Turns]) -> Iterator[Iterable[Any]]:
        """Hand over the items of the present epoch's turns, many at a time. Each iterable is used up before the next.

        No Python code runs for a single item, unless several passes are open: then each item is noted, so that it is
        known which pass delivered last.
        """
        for items in self.progress().follow(all_turns):
            self._check()  # the pass may have expired while the items were made
            if self._position.note_delivery(self):
                yield items
                self._check()
                continue
            for item in items:
                self._position.note_delivery(self)
                yield (item,)
                self._check()

    def pad(self, item: Any) -> Iterable[Any]:
        """Hand over an item that keeps ranks even. It is counted, and in no state."""
        self._check()
        self.progress().repeated += 1
        self._position.note_delivery(self)
        return (item,)

    def _check(self) -> None:
        if self.error is not None:
            raise copy(self.error)  # a kept error would keep its traceback, and with it workers and rows
        if not self.is_of_this_process:
            raise StaleIteratorError.forked(self._process)


class PassIterator(chain[Item]):
    """The items of a pass. Its :meth:`state_dict` is always that of this pass."""

    run: Pass
    """The pass."""
    _describe: Callable[[Pass], dict[str, Any]]

    @classmethod
    def over(
        cls, run: Pass, items_in_bulk: Iterator[Iterable[Item]], describe: Callable[[Pass], dict[str, Any]]
    ) -> "PassIterator[Item]":
        """Iterate over a pass; ``describe`` makes its state plain values. A subclass of ``chain`` stays as fast."""
        made = cls.from_iterable(items_in_bulk)
        assert isinstance(made, PassIterator)
        made.run, made._describe = run, describe
        return made

    def state_dict(self) -> dict[str, Any]:
        """What this iterator has delivered. Load it into the dataset or the Loader: iterators load no state."""
        return self._describe(self.run)
