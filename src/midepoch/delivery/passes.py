"""A pass: one iteration over a dataset or a Loader, independent of every other."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import chain
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from midepoch._common.world import torch_worker
from midepoch.checkpoint.state import State
from midepoch.delivery.plan import Plan
from midepoch.delivery.progress import AnyProgress, Turns
from midepoch.delivery.uncounted import ReportedProgress
from midepoch.errors import MidepochError, StaleIteratorError

Item = TypeVar("Item")


class Owner(Protocol):
    """What a pass reports to."""

    def note_delivery(self, run: "Pass") -> bool:
        """Note that a pass is about to deliver. True if no other pass is open."""

    def closed(self, run: "Pass") -> None:
        """Note that a pass is closed: it reached its end, was left, or failed."""


class Pass:
    """Where one iteration started, and what it has delivered.

    Use it as a context manager. Inside, :meth:`epochs` yields the progress of each epoch, and :meth:`deliver` hands
    over the items of that epoch.
    """

    def __init__(
        self,
        owner: Owner,
        plan: Plan,
        start: State,
        *,
        revision: int = 0,
        error: MidepochError | None = None,
    ) -> None:
        """Start from a state.

        ``revision`` counts the states that were loaded and the epochs that were set after a delivery: ranks use it to
        compare the same loop. ``error`` is raised when the first item is asked for.
        """
        self.plan, self.start, self.revision = plan, start, revision
        self.mark_at_finish: tuple[int, int] | None = None
        """The mark when another pass last reached its end, which counts as later than what this one had delivered."""
        self.is_finished = False
        self._owner, self._error = owner, error
        self._state, self._progress, self._last_progress = start, None, None
        self._process = os.getpid()

    _progress: AnyProgress | None
    _last_progress: AnyProgress | None
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

    def progress(self) -> AnyProgress:
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
        self._error = StaleIteratorError(
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
            self._owner.closed(self)

    def epochs(self) -> Iterator[AnyProgress]:
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

    def _check_empty(self, progress: AnyProgress) -> None:
        """Raise if a stage left out all items of a reader's rows, unless the number of items was known before.

        In a worker of a plain DataLoader, what other workers left out says nothing.
        """
        if not isinstance(progress, ReportedProgress):
            return
        if not any(map(progress.session.lanes.size, progress.rotation)):
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
            if self._owner.note_delivery(self):
                yield items
                self._check()
                continue
            for item in items:
                self._owner.note_delivery(self)
                yield (item,)
                self._check()

    def pad(self, item: Any) -> Iterable[Any]:
        """Hand over an item that keeps ranks even. It is counted, and in no state."""
        self._check()
        self._owner.note_delivery(self)
        self.progress().repeated += 1
        return (item,)

    def _check(self) -> None:
        if self._error is not None:
            raise copy(self._error)  # a kept error would keep its traceback, and with it workers and rows
        if not self.is_of_this_process:
            raise StaleIteratorError.forked(self._process)


class PassIterator(chain[Item]):
    """The items of a pass. Its :meth:`state_dict` is always that of this pass."""

    _run: Pass
    _describe: Callable[[Pass], dict[str, Any]]

    @classmethod
    def over(
        cls, run: Pass, items_in_bulk: Iterator[Iterable[Item]], describe: Callable[[Pass], dict[str, Any]]
    ) -> "PassIterator[Item]":
        """Iterate over a pass; ``describe`` makes its state plain values. A subclass of ``chain`` stays as fast."""
        made = cls.from_iterable(items_in_bulk)
        assert isinstance(made, PassIterator)
        made._run, made._describe = run, describe
        return made

    @property
    def run(self) -> Pass:
        """The pass."""
        return self._run

    def state_dict(self) -> dict[str, Any]:
        """What this iterator has delivered. Load it into the dataset or the Loader: iterators load no state."""
        return self._describe(self._run)
