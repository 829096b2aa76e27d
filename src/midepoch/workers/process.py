"""A worker of a Loader that is a process of this machine: what it runs, and what the main process has of it.

It takes its part of the rank's turns, from each resume point that it is sent.
"""

import gc
import importlib
import os
import pickle
import random
import select
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_workers

from midepoch.delivery.metrics import Tally
from midepoch.delivery.plan import Plan, progress_from
from midepoch.delivery.reader import take_turns
from midepoch.delivery.turns import Turns, in_succession
from midepoch.sources.blocks import CURRENT_READS, written
from midepoch.stages.stage import name_of
from midepoch.workers.interface import Message, ResumePoint, WorkerDiedError, WorkerSettings
from midepoch.workers.messages import MESSAGE_BYTES, Frame, frames_of, read_message
from midepoch.workers.ring import Places, SharedMemory

GRACE_SECONDS = 5
"""How long workers may take to finish the item that they make, before they are stopped."""
UNTOLD = 1 / 4
"""The part of what a worker may be ahead that can be received before the worker is told of it."""

Order = tuple[int, ResumePoint | None] | list[int] | None
"""What the main process sends: the number of a round and its resume point, or None to do nothing more; where messages
were that it has received; or None, which is the end."""


class Report(NamedTuple):
    """What a worker sends."""

    round: int
    start: int
    """Where items are in its memory."""
    size: int
    """Their bytes; 0 if there are none."""
    tally: Tally
    """What was done since the last report."""
    end: bytes | None
    """What comes in place of the next items: an error, or nothing, so that it has no more; None if more may come."""


MESSAGE_ITEMS = 1024
"""The most items of a message."""
AHEAD_BYTES = 32 << 20
"""How far a worker is ahead, unless the user says how many items: what it has made and nobody has received."""
AHEAD_ITEMS = 2
"""Large items that a worker may always be ahead, whatever their bytes."""
AHEAD_MESSAGES = 128
"""The most messages that a worker is ahead. The connection has room for all of them, so that nobody waits to send."""
PAUSE = 0.002
"""What was made is sent after this number of seconds, unless the main process has much to do: then messages become as
large as they may be, because each takes time to receive."""
CHECK_SECONDS = 5
"""How often a worker that waits looks whether the main process is still there."""
GUARD = (
    ' If its output says "bootstrapping phase", the script starts workers while it is imported: put what it does '
    "under if __name__ == '__main__'."
)
"""What may be wrong if workers that are not forked could not start."""
MOST_LETTERS = 50_000
"""The longest text of an error that is sent. The connection has room for it, so that the worker does not wait."""


class MessageWorker(ABC):
    """A worker that runs :func:`run_worker` somewhere: what it sends, and what it is told."""

    def __init__(self, settings: WorkerSettings, number: int) -> None:
        self._ahead, self.name = settings.ahead, f"worker {number} of {settings.workers}"
        self._received: list[int] = []  # where messages began that the worker may overwrite, and does not know it yet
        self._received_bytes = 0
        self._round = 0
        """How often it was started: what it sent before is of a loop that was left."""

    @abstractmethod
    def _send(self, content: bytes) -> None:
        """Tell the worker something. Raises an OSError if it is known to have ended."""

    @abstractmethod
    def _read(self, seconds: float) -> bytes | None:
        """What the worker has sent; None if nothing comes in that time. Raises if nothing can come any more.

        Before a wait the worker is told of all that was received, because it may wait for that.
        """

    @abstractmethod
    def _view(self, start: int, size: int) -> memoryview:
        """The items of the message that was read last, which are at that place of the worker's memory."""

    @abstractmethod
    def _death(self) -> WorkerDiedError:
        """The error of a worker that has died."""

    @abstractmethod
    def free(self, deadline: float) -> None:
        """Wait for its end until a time, end it otherwise, and leave nothing of it."""

    def start(self, resume_point: ResumePoint) -> None:
        """Let the worker start from a resume point, whatever it does now."""
        self._round += 1
        try:
            self._send(pickle.dumps((self._round, resume_point)))
        except OSError as error:
            raise self._death() from error

    def interrupt(self) -> None:
        """Let the worker do nothing more until it is started again."""
        self._tell((self._round, None))

    def _tell(self, order: Order) -> None:
        """Tell the worker something. One that has died has sent everything that is in its memory."""
        with suppress(OSError):
            self._send(pickle.dumps(order))

    def receive(self, seconds: float) -> Message | None:
        """The next message since the start; None if none comes in that time. Raises if none can come any more."""
        while (content := self._read(seconds)) is not None:
            report = Report(*pickle.loads(content))
            message = self._message(report) if report.round == self._round else None
            if report.size:
                self._note_received(report.start, report.size)
            if message is not None:
                return message
        return None

    def _message(self, report: Report) -> Message:
        """What a report says, and the items in memory. An error about one of these comes after those before it."""
        parts, begun = list[Turns](), time.perf_counter()
        try:
            if report.size:
                parts.extend(read_message(self._view(report.start, report.size)))
            if report.end:
                pickle.loads(report.end).reraise()
            error = None
        except Exception as raised:
            error = raised
        tally = report.tally._replace(received=time.perf_counter() - begun)
        return Message(in_succession(parts) if parts else None, error, tally, report.end == b"")

    def _note_received(self, start: int, size: int) -> None:
        """Note that a message was copied. The worker is told, of many at once.

        To tell it of each would wake it each time, and on a busy machine it then runs in place of this process.
        """
        self._received.append(start)
        self._received_bytes += size
        is_much = self._received_bytes >= UNTOLD * AHEAD_BYTES or len(self._received) >= UNTOLD * AHEAD_MESSAGES
        if is_much or self._ahead is not None:
            self.tell_received()

    def tell_received(self) -> None:
        """Tell the worker of all messages that were received."""
        if self._received:
            self._tell(self._received)
            self._received, self._received_bytes = [], 0

    def stop(self) -> None:
        """Let the worker end after the item that it makes."""
        self._tell(None)


class ProcessWorker(MessageWorker):
    """A worker that is a process of this machine: the connection to it, and the memory through which it sends items."""

    def __init__(self, context: Any, settings: WorkerSettings, number: int) -> None:
        super().__init__(settings, number)
        self.memory = SharedMemory()
        self._connection, of_worker = context.Pipe()
        self._process = context.Process(target=run_worker, args=(settings, number, of_worker, self.memory), daemon=True)
        self._process.start()
        of_worker.close()  # so that the connection ends with the process
        self._poll = select.poll()  # the connection's own way takes ten times as long
        self._poll.register(self._connection, select.POLLIN)
        self._is_gone = self._has_sent = False
        self._is_forked = context.get_start_method() == "fork"

    def _send(self, content: bytes) -> None:
        self._connection.send_bytes(content)

    def _view(self, start: int, size: int) -> memoryview:
        return self.memory.view(start, start + size)

    def _read(self, seconds: float) -> bytes | None:
        if seconds:
            self.tell_received()
        is_dead = self._is_gone or (seconds > 0 and self._process.exitcode is not None)
        if not self._is_gone and self._poll.poll(0 if is_dead else 1000 * seconds):
            try:
                content = bytes(self._connection.recv_bytes())
                self._has_sent = True
                return content
            except (EOFError, OSError):
                self._is_gone = is_dead = True
        if is_dead and seconds:
            raise self._death()
        return None

    def _death(self) -> WorkerDiedError:
        """The error of a worker that has died, in torch's words."""
        self._process.join(GRACE_SECONDS)
        pid, code = self._process.pid, self._process.exitcode
        by_signal = f", {signal.Signals(-code).name}" if code in _ENDED_BY else ""
        # Python ended with an error before the worker sent anything, as it would again
        could_not_start = code == 1 and not self._has_sent and not self._is_forked
        return WorkerDiedError(
            f"DataLoader worker (pid {pid}) exited unexpectedly with exit code {code}.",
            who=f"{self.name} (pid {pid}, exit code {code}{by_signal})",
            reads=self._last_reads(),
            remedy=GUARD if could_not_start else "",
        )

    def _last_reads(self) -> str:
        """A sentence about what the worker read when it died; nothing if it read nothing."""
        reads = ""
        with suppress(OSError, ValueError):  # it died before it had memory
            reads = written(self.memory.note())
        return f" When it died, {self.name} was reading {reads}." if reads else ""

    def free(self, deadline: float) -> None:
        """Wait for the end of the process, or stop it, and give its memory back."""
        self._process.join(max(0.0, deadline - time.monotonic()))
        if self._process.exitcode is None:
            self._process.terminate()
            self._process.join(GRACE_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()
        self._connection.close()
        self.memory.free()


@dataclass(frozen=True, slots=True)
class ProcessWorkers:
    """Starts workers as processes of this machine, in a context of multiprocessing."""

    context: Any

    def starter(self, settings: WorkerSettings) -> Callable[[int], ProcessWorker]:
        """What starts worker number ``n``. Raises, naming the function, if a pipeline cannot be sent to a process."""
        method = self.context.get_start_method()
        if method == "fork":
            importlib.import_module("pyarrow.compute")  # once, and not in each worker before its first batch
        else:
            _check_importable(settings.plan, method)
            check_functions(
                settings.plan,
                pickle.dumps,
                to=f"workers started by {method!r}",
                remedy="Define it at the top level of a module, or pass multiprocessing_context='fork'.",
            )
        return partial(ProcessWorker, self.context, settings)


def _check_importable(plan: Plan, method: str) -> None:
    for function in plan.pipeline.functions:
        if _is_of_no_file(function):
            raise TypeError(
                f"The function {name_of(function)} was defined in a notebook or a shell, and workers started by "
                f"{method!r} cannot import it from there. Write it into a module, such as functions.py, and import it, "
                "or pass num_workers=0. For files on this machine, multiprocessing_context='fork' works too."
            )


def _is_of_no_file(function: Any) -> bool:
    """True if a function belongs to a notebook or a shell, whose code no other process can import."""
    while isinstance(function, partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, partial) else function.__wrapped__
    return getattr(function, "__module__", None) == "__main__" and not hasattr(sys.modules["__main__"], "__file__")


def check_functions(plan: Plan, dumps: Callable[[Any], bytes], *, to: str, remedy: str) -> None:
    """Raise, naming the function, if one of a pipeline cannot be sent."""
    for function in plan.pipeline.functions:
        try:
            dumps(function)
        except Exception as error:
            raise TypeError(f"The function {name_of(function)} cannot be sent to {to}: {error}. {remedy}") from error


_ENDED_BY = {-number for number in signal.Signals}


class _Interrupted(BaseException):
    """The main process wants something else."""


class _Stopped(BaseException):
    """The main process wants nothing more, or is gone."""


def run_worker(settings: WorkerSettings, number: int, connection: Connection, memory: SharedMemory) -> None:
    """Take turns from one resume point after the other, until the main process says stop or is gone."""
    try:
        _prepare(settings, number)
        outbox, init = Outbox(connection, memory, ahead=settings.ahead), settings.init
        with suppress(OSError, ValueError):  # a limit of file sizes
            CURRENT_READS.write_to(memory.note())
        while True:
            resume_point = outbox.next_start()
            try:
                if init is not None:
                    init(number)
                    init = None
                _take_turns(settings, resume_point, outbox)
                outbox.report(end=b"")
            except _Interrupted:
                continue
            except Exception:
                outbox.report(end=_error(number))
    except (OSError, KeyboardInterrupt, _Stopped):
        pass  # the main process is gone, or stops its workers itself


def _prepare(settings: WorkerSettings, number: int) -> None:
    """Let this process be like a worker of torch's DataLoader: one thread, seeds of its own, and get_worker_info()."""
    gc.freeze()  # what a fork inherits is not collected: it may belong to CUDA, which ends a fork that touches it
    pa.set_memory_pool(pa.system_memory_pool())  # which keeps memory too; Arrow's own gives it back
    torch.set_num_threads(1)
    seed = settings.seed + number
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(torch_workers._generate_state(settings.seed, number))  # type: ignore[no-untyped-call]
    info = {"id": number, "num_workers": settings.workers, "seed": seed, "dataset": settings.plan}
    torch_workers._worker_info = torch_workers.WorkerInfo(**info)  # type: ignore[arg-type]


def _take_turns(settings: WorkerSettings, resume_point: ResumePoint, outbox: "Outbox") -> None:
    start, delivered, ranks, rank, first = resume_point
    progress = progress_from(settings.plan.pipeline, start, rank, ranks, delivered)
    all_turns = take_turns(progress, first, settings.workers, deferred=True)
    outbox.begin(progress.reading.tally)
    try:
        for turns in all_turns:
            outbox.send(turns)
            del turns  # so that the next items are made in their memory, which is still in the CPU cache
    finally:
        all_turns.close()
        outbox.flush()  # what was made before an error is delivered


def _error(worker: int) -> bytes:
    """The exception that is being handled, for the main process."""
    error: Any = ExceptionWrapper(where=f"in DataLoader worker process {worker}")  # type: ignore[no-untyped-call]
    if len(error.exc_msg) > MOST_LETTERS:
        half = MOST_LETTERS // 2
        error.exc_msg = f"{error.exc_msg[:half]}\n[...]\n{error.exc_msg[-half:]}"
    try:
        return pickle.dumps(error)
    except Exception:  # a class of the user's that cannot be sent
        error.exc_type = RuntimeError
        return pickle.dumps(error)


class Outbox:
    """Writes the turns of a worker to shared memory, and tells the main process where they are.

    Only numbers go through the connection: where a message is. The main process answers when it has copied the items,
    and their place is used again.
    """

    def __init__(self, connection: Connection, memory: SharedMemory, *, ahead: int | None) -> None:
        """``ahead`` is the number of items that the worker may be ahead; None bounds the bytes instead."""
        self._connection, self._memory, self._ahead = connection, memory, ahead
        self._most_items = MESSAGE_ITEMS if ahead is None else max(1, ahead // 2)
        self._places = Places()
        self._parent, parent = os.getppid(), parent_process()
        self._waits_for: list[Any] = [connection] if parent is None else [connection, parent.sentinel]
        self._order: tuple[int, ResumePoint | None] | None = None
        self._round = 0
        self.begin(Tally)

    def begin(self, tally: Callable[[], Tally]) -> None:
        """Begin a round. ``tally`` says what making items has taken so far in it."""
        self._tally, self._told = tally, Tally()
        self._start = self._used = self._room = self._turns = 0  # of the message under way
        self._last_sent = time.monotonic()
        self._begun = self._returned = time.perf_counter()
        self._made = self._idle = 0.0  # seconds in which items were made, and it was as far ahead as it may be

    def next_start(self) -> ResumePoint:
        """Wait for a resume point."""
        while True:
            while self._order is None:
                self._read()
            (self._round, resume_point), self._order = self._order, None
            self.begin(Tally)
            if resume_point is not None:
                return resume_point

    def report(self, start: int = 0, size: int = 0, end: bytes | None = None) -> None:
        """Say where items are, or that none follow, and what was done since the last report."""
        now = time.perf_counter()
        if end is not None:
            self._made += now - self._returned
        sent = now - self._begun - self._made - self._idle
        tally = self._tally()._replace(made=self._made, sent=sent, idle=self._idle)
        report = Report(self._round, start, size, tally.minus(self._told), end)
        self._connection.send_bytes(pickle.dumps(tuple(report)))
        self._told = tally

    def send(self, turns: Turns) -> None:
        """Write some turns. They are sent at once if they took long to make, else when there are enough of them."""
        self._made += time.perf_counter() - self._returned
        is_due = time.monotonic() - self._last_sent > PAUSE
        for frame in frames_of(turns, self._most_items):
            self._write(frame)
        if is_due and self._is_wanted():
            self.flush()  # the next ones may take as long
        self._returned = time.perf_counter()

    def _write(self, frame: Frame) -> None:
        if self._turns and (self._used + frame.size > self._room or self._turns + frame.turns > self._most_items):
            self.flush()
        if not self._turns:
            self._make_room(max(MESSAGE_BYTES, frame.size))
        start = self._start + self._used
        frame.write(self._memory.view(start, start + frame.size))
        self._used, self._turns = self._used + frame.size, self._turns + frame.turns
        if self._turns >= self._most_items:
            self.flush()

    def _make_room(self, size: int) -> None:
        """Begin a message, where there is room for one of ``size`` bytes."""
        while not self._may_be_ahead(size):
            begun = time.perf_counter()
            self._release(wait=True)
            self._idle += time.perf_counter() - begun
        self._start, self._used, self._room = self._places.find(size), 0, size
        self._memory.grow(self._start + size)

    def _may_be_ahead(self, size: int) -> bool:
        places = self._places
        if not places:
            return True
        if self._ahead is not None:
            return places.turns < self._ahead and len(places) < AHEAD_MESSAGES
        is_small = places.bytes + size <= AHEAD_BYTES and len(places) < AHEAD_MESSAGES
        return is_small or places.turns < AHEAD_ITEMS

    def _is_wanted(self) -> bool:
        """True unless the main process has much to do before it gets to the message under way."""
        return not self._places or self._places.bytes < AHEAD_BYTES // 2

    def flush(self) -> None:
        """Send what is written."""
        if self._turns:
            self._places.take(self._start, self._used, self._turns)
            self._turns = 0
            self.report(self._start, self._used)
        self._release(wait=False)
        self._last_sent = time.monotonic()

    def _release(self, *, wait: bool) -> None:
        """Use the places of received messages again. If the main process wants something else, it raises."""
        while self._connection.poll(0) or wait:
            wait = not self._read() and wait
            if self._order is not None:
                raise _Interrupted

    def _read(self) -> bool:
        """Wait for the next order of the main process. True if it has received messages."""
        while not (ready := wait_for(self._waits_for, CHECK_SECONDS)):
            if os.getppid() != self._parent:
                raise _Stopped
        if self._connection not in ready:
            raise _Stopped
        try:
            order: Order = pickle.loads(self._connection.recv_bytes())
        except EOFError as error:
            raise _Stopped from error
        if order is None:
            raise _Stopped
        if isinstance(order, tuple):
            self._order = order
            return False
        for start in order:
            self._places.release(start)
        return True
