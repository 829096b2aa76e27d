"""The workers of a Loader: how the main process starts them, and receives what they send.

Workers take a rank's turns in parallel and send, with each item, the cursor after it. A worker sends an empty turn, at
a lane that has run out, without an item, which keeps the workers in step. :mod:`midepoch.workers.process` has what a
worker runs.
"""

import importlib
import os
import pickle
import sys
import time
import weakref
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import torch.multiprocessing
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from midepoch.delivery.gather import in_turn, without_waits
from midepoch.delivery.layout import Chunk, Destination
from midepoch.delivery.plan import Plan
from midepoch.delivery.progress import Progress, Turns
from midepoch.delivery.ring import MOST_GROWTH, MOST_PINNED_GROWTH, SharedMemory
from midepoch.delivery.tally import Tally
from midepoch.delivery.transport import AHEAD_BYTES, AHEAD_MESSAGES, PLACE, message_size, receive
from midepoch.errors import StaleIteratorError
from midepoch.stages.stage import name_of
from midepoch.values.received import copied
from midepoch.workers.device import Copies, Mark, copies_to, one_ahead, start_copies
from midepoch.workers.process import (
    CHECK_SECONDS,
    COUNT,
    END,
    ITEMS,
    RECEIVED,
    ROUND,
    START,
    STOP,
    ResumePoint,
    WorkerSettings,
    run_worker,
)

GRACE_SECONDS = 5
"""How long workers may take to finish the item that they make, before they are stopped."""
GUARD = (
    ' If its output says "bootstrapping phase", the script starts workers while it is imported: put what it does '
    "under if __name__ == '__main__'."
)
UNTOLD = 1 / 4
"""The part of what a worker may be ahead that can be received before the worker is told of it."""


class WorkerPool:
    """The processes that read for a loader; persistent workers stay for all epochs."""

    _hint = ""
    """What may be wrong if workers that are not forked die."""

    def __init__(
        self, loader: DataLoader[Any], plan: Plan, *, ahead: int | None, device: torch.device | None = None
    ) -> None:
        """Start workers with the settings of a loader. ``ahead`` is as for a :class:`~delivery.transport.Sender`.

        Tensors are copied to a ``device``, if there is one, straight from the memory that is shared with the workers.
        """
        context = loader.multiprocessing_context or torch.multiprocessing
        if context.get_start_method() != "fork":
            _check_sendable(plan, context.get_start_method())
            self._hint = GUARD
        else:
            importlib.import_module("pyarrow.compute")  # once, and not in each worker before its first batch
        self._process, self._round = os.getpid(), 0
        self._timeout = loader.timeout
        self.copies = None if device is None else copies_to(device)
        self._to = _destination(device, self.copies, pin=pins(loader))
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
        self._workers: list[Worker] = []
        self._progress: Progress | None = None
        self._stop = weakref.finalize(self, _stop, self._workers, self._process)  # also at the interpreter's end
        for number in range(loader.num_workers):
            settings = WorkerSettings(
                plan=plan,
                number=number,
                workers=loader.num_workers,
                seed=seed,
                ahead=ahead,
                init=loader.worker_init_fn,
            )
            self._workers.append(Worker(context, settings, self.copies))

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

    def work(self, progress: Progress) -> Generator[Turns, None, None]:
        """Start all workers from where a progress is, and receive what they send, in the order of the rank's turns."""
        arriving = self._arriving(progress)
        return without_waits(arriving) if self.copies is None else one_ahead(arriving, self.copies)

    def _arriving(self, progress: Progress) -> Generator[Turns | None, None, None]:
        """What the workers send, with a None before each wait."""
        self._round += 1
        self._progress = progress
        session = progress.session
        resume_point = session.start, progress.reader_progress(), session.assignment.readers, progress.reader
        try:
            for worker in self._workers:
                worker.start(self._round, resume_point)
            ports = [self._port(worker, progress) for worker in self._workers]
            arrived = in_turn(
                ports,
                len(progress.rotation),
                tracks_cursors=session.tracks_cursors,
                on_device=self.copies is not None,
                has_sums=session.pipeline.digest,
            )
            for turns in arrived:
                yield turns
                del turns
                if self.is_closed:
                    raise StaleIteratorError("This iterator is out of date: its Loader was closed. Call iter() again.")
        except Exception as error:
            dead = [] if self.is_closed else [worker.describe() for worker in self._workers if worker.has_died]
            if dead:
                error.add_note(
                    f"midepoch: {', '.join(dead)} died. Nothing is lost: the loader's state is that of the last batch "
                    "received. To continue after it, load that state and iterate again, here or in a new process."
                    f"{self._hint}"
                )
            raise
        finally:
            self._progress = None
            if not self.is_closed and self.is_of_this_process:
                for worker in self._workers:
                    worker.interrupt(self._round)

    def _port(self, worker: "Worker", progress: Progress) -> "WorkerPort":
        return WorkerPort(worker, self._round, progress, timeout=self._timeout, to=self._to)


class Worker:
    """One process, the connection to it, and the memory through which it sends items."""

    def __init__(self, context: Any, settings: WorkerSettings, copies: Copies | None) -> None:
        self.memory = SharedMemory(MOST_GROWTH if copies is None else MOST_PINNED_GROWTH)
        self._ahead, self._copies = settings.ahead, copies
        self._being_copied: deque[tuple[int, Mark]] = deque()  # messages, with the point where their copies are done
        self._received: list[int] = []  # the bytes of each message of which the worker does not know yet
        self._connection, of_worker = context.Pipe()
        self._name = f"worker {settings.number} of {settings.workers}"
        self.process = context.Process(target=run_worker, args=(settings, of_worker, self.memory), daemon=True)
        self.process.start()
        of_worker.close()  # so that the connection ends with the process
        self.memory.pin = None if copies is None else copies.pin  # in this process only

    def start(self, round_number: int, resume_point: ResumePoint) -> None:
        """Let the worker start from a resume point, whatever it does now."""
        self._send(START + pickle.dumps((round_number, resume_point)))

    def interrupt(self, round_number: int) -> None:
        """Let the worker do nothing more in a round."""
        with suppress(OSError):
            self._connection.send_bytes(START + pickle.dumps((round_number, None)))

    def note_received(self, size: int) -> None:
        """Note that the copies of a message have begun. When they are done, the worker is told, of many at once.

        To tell it of each would wake it each time, and on a busy machine it then runs in place of this process.
        """
        if self._copies is None:
            self._received.append(size)
        else:
            self._being_copied.append((size, self._copies.next_mark()))
            self._note_copied(wait=False)
        is_much = sum(self._received) >= UNTOLD * AHEAD_BYTES or len(self._received) >= UNTOLD * AHEAD_MESSAGES
        if is_much or self._ahead is not None:
            self._tell_received()

    def _note_copied(self, *, wait: bool) -> None:
        while self._being_copied and (wait or self._being_copied[0][1].is_done()):
            size, copied = self._being_copied.popleft()
            copied.wait()
            self._received.append(size)

    def _tell_received(self) -> None:
        if self._received:
            with suppress(OSError):  # a worker that died has sent everything that is in its memory
                self._connection.send_bytes(RECEIVED + COUNT.pack(len(self._received)))
            self._received.clear()

    def stop(self) -> None:
        """Let the worker end after the item that it makes."""
        with suppress(OSError):
            self._connection.send_bytes(STOP)

    def _send(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError as error:
            raise self._death() from error

    def message(self, *, waits: bool, timeout: float) -> bytes | None:
        """What the worker sends next; None if that has not arrived and nobody wants to wait."""
        begun = time.monotonic()
        try:
            while not self._connection.poll(0):
                if not waits:
                    return None
                self._note_copied(wait=True)
                self._tell_received()  # the worker may wait for this
                passed = time.monotonic() - begun
                if timeout and passed >= timeout:
                    raise RuntimeError(f"DataLoader timed out after {timeout} seconds")
                seconds = min(CHECK_SECONDS, timeout - passed) if timeout else CHECK_SECONDS
                wait([self._connection, self.process.sentinel], seconds)
                if not self.process.is_alive() and not self._connection.poll(0):
                    raise self._death()
            return bytes(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            if not waits:  # others have turns to deliver before
                return None
            raise self._death() from error

    def _death(self) -> RuntimeError:
        self.process.join(GRACE_SECONDS)
        code = self.process.exitcode
        return RuntimeError(f"DataLoader worker (pid {self.process.pid}) exited unexpectedly with exit code {code}.")

    @property
    def has_died(self) -> bool:
        """True if the process has ended."""
        return self.process.exitcode is not None

    def describe(self) -> str:
        """The worker and how it ended, in words."""
        return f"{self._name} (pid {self.process.pid}, exit code {self.process.exitcode})"

    def free(self, deadline: float) -> None:
        """Wait for the end of the process, or stop it, and give its memory back."""
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.exitcode is None:
            self.process.terminate()
            self.process.join(GRACE_SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.process.close()
        self._connection.close()
        self.memory.free()


class WorkerPort:
    """Where the turns of one worker arrive in one round."""

    def __init__(
        self, worker: Worker, round_number: int, progress: Progress, *, timeout: float, to: Destination
    ) -> None:
        self._worker, self._round, self._timeout, self._to = worker, round_number, timeout, to
        self._progress = progress
        self._chunks: deque[Chunk] = deque()
        self._end: bytes | None = None
        """The last message of the worker: that there are no more turns, or an error."""

    def chunk(self, *, wait: bool) -> Chunk | None:
        """The turns that are next; None at the end, or, without ``wait``, if none have arrived yet."""
        while not self._chunks and self._end is None:
            message = self._worker.message(waits=wait, timeout=self._timeout)
            if message is None:
                return None
            self._note(message)
        if self._chunks:
            return self._chunks.popleft()
        if wait and self._end:
            pickle.loads(self._end).reraise()  # not earlier: others have turns to deliver before
        return None

    def _note(self, message: bytes) -> None:
        kind, content = message[:1], message[1 + ROUND.size :]
        content, told = (content[: PLACE.size], content[PLACE.size :]) if kind == ITEMS else (content, b"")
        is_of_round = ROUND.unpack(message[1 : 1 + ROUND.size]) == (self._round,)
        if kind == ITEMS:
            if is_of_round:  # not of a loop that was left
                begun = time.perf_counter()
                self._chunks.extend(receive(self._worker.memory, content, self._to))
                of_worker = Tally.read_back(told)._replace(received=time.perf_counter() - begun)
                self._progress.of_workers = self._progress.of_workers.plus(of_worker)
            self._worker.note_received(message_size(content))
        elif is_of_round:
            self._end = b"" if kind == END else content


def _destination(device: torch.device | None, copies: Copies | None, *, pin: bool) -> Destination:
    """What happens to tensors that arrive."""
    if device is not None and copies is not None:
        return Destination(copies.start, partial(start_copies, device=device, copies=copies))
    return Destination(partial(copied, pin=True), pinned) if pin else Destination()


def pins(loader: DataLoader[Any]) -> bool:
    """True if a loader's tensors are to be in pinned memory, and there is a device for which that is of use."""
    return bool(loader.pin_memory and torch.cuda.is_available())


def pinned(item: Any) -> Any:
    """The item with its tensors in pinned memory, as with torch's DataLoader. Those that are there already stay."""
    return pin_memory(item)  # type: ignore[no-untyped-call]


def _stop(workers: list[Worker], process: int) -> None:
    """Stop workers, unless this process was forked from the one that started them."""
    if process != os.getpid():
        return
    for worker in workers:
        worker.stop()
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in workers:
        worker.free(deadline)


def _is_of_no_file(function: Any) -> bool:
    """True if a function belongs to a notebook or a shell, whose code no other process can import."""
    while isinstance(function, partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, partial) else function.__wrapped__
    return getattr(function, "__module__", None) == "__main__" and not hasattr(sys.modules["__main__"], "__file__")


def _check_sendable(plan: Plan, method: str) -> None:
    """Raise, naming the function, if a pipeline cannot be sent to a process that is not forked."""
    for function in plan.pipeline.functions:
        if _is_of_no_file(function):
            raise TypeError(
                f"The function {name_of(function)} was defined in a notebook or a shell, and workers started by "
                f"{method!r} cannot import it from there. Write it into a module, such as functions.py, and import it, "
                "or pass num_workers=0. For files on this machine, multiprocessing_context='fork' works too."
            )
        try:
            pickle.dumps(function)
        except Exception as error:
            raise TypeError(
                f"The function {name_of(function)} cannot be sent to workers started by {method!r}: {error}. "
                "Define it at the top level of a module, or pass multiprocessing_context='fork'."
            ) from error
