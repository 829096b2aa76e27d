"""The workers of a Loader: how the main process starts them, and receives what they send.

Workers take a rank's turns in parallel, one turn of each worker after the other. If items are not counted, each comes
with the cursor after it, and a turn at a lane that has run out is empty, which keeps the workers in step.
:mod:`midepoch.workers.interface` says what a worker is, and :mod:`midepoch.workers.process` has what it runs.
"""

import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch.multiprocessing
from torch.utils.data import DataLoader

from midepoch._common.checks import count
from midepoch.delivery.metrics import Tally
from midepoch.delivery.passes import Progress
from midepoch.delivery.plan import Plan
from midepoch.delivery.turns import Turns, round_robin
from midepoch.errors import StaleIteratorError
from midepoch.workers.interface import Message, Worker, WorkerDiedError, Workers, WorkerSettings
from midepoch.workers.process import CHECK_SECONDS, GRACE_SECONDS, ProcessWorkers

log = logging.getLogger("midepoch")


class WorkerPool:
    """The workers that read for a loader; persistent workers stay for all epochs."""

    def __init__(
        self, loader: DataLoader[Any], plan: Plan, *, ahead: int | None, restarts: int, workers: Workers | None
    ) -> None:
        """Start workers with the settings of a loader. ``ahead`` is as for an :class:`~workers.process.Outbox`.

        Without ``workers`` they are processes. A worker that dies is started again, ``restarts`` times since it last
        sent a turn.
        """
        self._process, self._restarts = os.getpid(), restarts
        self._timeout = loader.timeout
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
        self._workers: list[Worker] = []
        self._progress: Progress | None = None
        self._stop = weakref.finalize(self, _stop, self._workers, self._process)  # also at exit
        settings = WorkerSettings(
            plan=plan, workers=loader.num_workers, seed=seed, ahead=ahead, init=loader.worker_init_fn
        )
        if workers is None:
            workers = ProcessWorkers(loader.multiprocessing_context or torch.multiprocessing)
        self._start_worker = workers.starter(settings)
        for number in range(loader.num_workers):
            self._workers.append(self._start_worker(number))

    @property
    def is_of_this_process(self) -> bool:
        """False in a process that was forked from the one that started the workers."""
        return self._process == os.getpid()

    @property
    def is_closed(self) -> bool:
        """True if the workers were stopped."""
        return not self._stop.alive

    def close(self) -> None:
        """Stop the workers, in the process that started them. What they have sent is not delivered."""
        self._stop()
        if self._progress is not None:
            self._progress.cut_off()

    def work(self, progress: Progress) -> Generator[Turns | None, None, None]:
        """Start all workers from where a progress is, and receive what they send, in the order of the rank's turns.

        There is a None before each wait, so that who is one ahead can hand over what it has.
        """
        self._progress = progress
        try:
            inboxes = [Inbox(self, number, progress, timeout=self._timeout) for number in range(len(self._workers))]
            for inbox in inboxes:
                inbox.start()
            for turns in in_turn(inboxes):
                yield turns
                del turns
                self._check_open()
        finally:
            self._progress = None
            if not self.is_closed and self.is_of_this_process:
                for worker in self._workers:
                    worker.interrupt()

    def _check_open(self) -> None:
        if self.is_closed:
            raise StaleIteratorError("This iterator is out of date: its Loader was closed. Call iter() again.")

    def worker(self, number: int) -> Worker:
        """One of the workers."""
        return self._workers[number]

    @property
    def step(self) -> int:
        """The number of workers. Each takes every turn of the rank that is this far from its last one."""
        return len(self._workers)

    def replace(self, number: int, deaths: list[str], death: WorkerDiedError) -> None:
        """Start a new worker in place of one that died, unless it died too often since it last sent a turn.

        ``deaths`` says what it was reading each of these times.
        """
        self._check_open()
        deaths.append(death.reads)
        if len(deaths) > self._restarts or death.remedy:
            death.add_note(
                f"midepoch: {death.who} died{_again_and_again(deaths)}. Nothing is lost: the loader's state is that of "
                "the last batch received. To continue after it, load that state and iterate again, here or in a new "
                f"process.{death.reads}{death.remedy}"
            )
            raise death
        left = self._restarts - len(deaths)
        log.warning(
            "midepoch: %s died. It is started again at the first batch that was not received, and %s left until it "
            "sends one.%s",
            death.who,
            f"{count('restart', left)} {'is' if left == 1 else 'are'}",
            death.reads,
        )
        self._workers[number].free(time.monotonic())
        self._workers[number] = self._start_worker(number)


def _again_and_again(deaths: Sequence[str]) -> str:
    if len(deaths) == 1:
        return ""
    same = ", each time in the same place" if len(set(deaths)) == 1 and deaths[0] else ""
    return (
        f" {len(deaths)} times before it sent the next batch{same}. If a row or a function of yours ends it, "
        "num_workers=0 shows where"
    )


class Inbox:
    """The turns of one worker, to be taken one after the other. Messages are received as needed.

    If the worker dies, a new one makes the turns that were not received: which they are follows from their number.
    """

    def __init__(self, pool: WorkerPool, number: int, progress: Progress, *, timeout: float) -> None:
        self._pool, self._number, self._progress, self._timeout = pool, number, progress, timeout
        self._next = progress.turns_taken + number  # the turn of the rank that the worker sends next
        self._deaths: list[str] = []  # since it last sent a turn
        self._arrived: deque[Turns] = deque()
        self._taken = 0  # of the first of these
        self._error: Exception | None = None  # that comes after these
        self._has_ended = False

    def ready(self, *, wait: bool) -> int:
        """How many turns can be taken at once; 0 at the end, or if none have arrived and we do not wait.

        An error is raised with ``wait`` only: others have turns before.
        """
        self._waiting_since = time.monotonic()
        while not self._arrived and not self._has_ended and self._error is None:
            seconds: float = CHECK_SECONDS if wait else 0
            if wait and self._timeout:
                seconds = min(seconds, self._timeout + self._waiting_since - time.monotonic())
                if seconds <= 0:
                    raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
            message = self._receive(seconds)
            if message is not None:
                self._take_in(message)
            elif not wait:
                return 0
        if not self._arrived and self._error is not None and wait:
            raise self._error
        return self._arrived[0].number - self._taken if self._arrived else 0

    def start(self) -> None:
        """Let the worker start with its first turn that was not received."""
        self._waiting_since = time.monotonic()
        progress, session = self._progress, self._progress.session
        place = session.readers, progress.reader, self._next - progress.turns_taken
        try:
            self._pool.worker(self._number).start((session.start, progress.reader_progress(), *place))
        except WorkerDiedError as death:
            self._replace(death)

    def _replace(self, death: WorkerDiedError) -> None:
        self._pool.replace(self._number, self._deaths, death)
        self._progress.of_workers = self._progress.of_workers.plus(Tally(restarts=1))
        self.start()

    def _receive(self, seconds: float) -> Message | None:
        worker = self._pool.worker(self._number)
        try:
            return worker.receive(0) or (worker.receive(seconds) if seconds else None)
        except WorkerDiedError as death:
            self._replace(death)
            return None

    def take(self, count: int) -> Turns:
        """The next turns, of which no more are taken than are ready."""
        turns, begin = self._arrived[0], self._taken
        self._taken += count
        if self._taken == turns.number:
            self._arrived.popleft()  # so that the next items are made in their memory
            self._taken = 0
        return turns.cut(begin, begin + count)

    def _take_in(self, message: Message) -> None:
        if message.turns is not None:
            self._next += self._pool.step * message.turns.number
            self._deaths.clear()
            self._arrived.append(message.turns)
        self._error, self._has_ended = message.error, message.is_last
        self._progress.of_workers = self._progress.of_workers.plus(message.tally)


def in_turn(inboxes: Sequence[Inbox]) -> Iterator[Turns | None]:
    """The turns of all workers, many at a time where they have arrived.

    There is a None before each wait, so that who is one ahead can hand over what it has.
    """
    first = ended = 0
    while ended < len(inboxes):
        order = [*inboxes[first:], *inboxes[:first]]
        if not order[0].ready(wait=False):
            yield None
        if not order[0].ready(wait=True):  # all lanes of this worker have run out
            ended, first = ended + 1, (first + 1) % len(inboxes)
            continue
        if ended:
            yield Turns((), empty=ended)
        ended, ready = 0, [one.ready(wait=False) for one in order]
        parts = [one.take(min(ready)) for one in order] if all(ready) else [order[0].take(1)]
        first = (first + len(parts)) % len(inboxes)
        turns = round_robin(parts)
        del parts
        yield turns
        del turns


def _stop(workers: list[Worker], process: int) -> None:
    """Stop workers, unless this process was forked from the one that started them."""
    if process != os.getpid():
        return
    for worker in workers:
        worker.stop()
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in workers:
        worker.free(deadline)
