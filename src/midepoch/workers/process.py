"""What a worker of a Loader runs: it takes its part of the rank's turns, from each resume point that it is sent."""

import gc
import os
import pickle
import random
import struct
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_workers

from midepoch.checkpoint.state import ReaderProgress, State
from midepoch.delivery.plan import Plan, progress_from
from midepoch.delivery.reader import take_turns
from midepoch.delivery.ring import Places, SharedMemory
from midepoch.delivery.tally import Tally
from midepoch.delivery.transport import Sender
from midepoch.values.memory import keep_memory

ResumePoint = tuple[State, ReaderProgress, int, int]
"""Where a session of all ranks started, what this rank has delivered of it, the number of ranks, and the rank."""

START, RECEIVED, STOP = b"s", b"r", b"x"
"""What the main process sends: a resume point, or None to do nothing more; which messages it received; the end."""
ITEMS, END, ERROR = b"i", b"e", b"!"
"""What a worker sends, with the number of the round: where items are; that it has no more; or an error, with the turn
in place of which it comes."""
ROUND = TURN = struct.Struct("<q")
CHECK_SECONDS = 5
"""How often a worker that waits looks whether the main process is still there."""
MOST_LETTERS = 50_000
"""The longest text of an error that is sent. The connection has room for it, so that the worker does not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker gets when it is started."""

    plan: Plan
    number: int
    workers: int
    seed: int
    """The first number of the seeds of all workers."""
    ahead: int | None
    init: Callable[[int], None] | None
    copies_tensors: bool
    """True if the main process copies tensors to a device or to pinned memory."""


class _Interrupted(BaseException):
    """The main process wants something else."""


class _Stopped(BaseException):
    """The main process wants nothing more, or is gone."""


def run_worker(settings: WorkerSettings, connection: Connection, memory: SharedMemory) -> None:
    """Take turns from one resume point after the other, until the main process says stop or is gone."""
    try:
        _prepare(settings)
        link, places, init = Link(connection), Places(), settings.init
        while True:
            resume_point = link.next_start()
            sender = Sender(
                memory,
                link,
                places,
                ahead=settings.ahead,
                step=settings.workers,
                copies_tensors=settings.copies_tensors,
            )
            try:
                if init is not None:
                    init(settings.number)
                    init = None
                _take_turns(settings, resume_point, sender, link)
            except _Interrupted:
                continue
            except Exception:
                link.send(ERROR, TURN.pack(sender.turn) + _error(settings.number))
    except (OSError, KeyboardInterrupt, _Stopped):
        pass  # the main process is gone, or stops its workers itself


def _prepare(settings: WorkerSettings) -> None:
    """Let this process be like a worker of torch's DataLoader: one thread, seeds of its own, and get_worker_info()."""
    gc.freeze()  # what a fork inherits is not collected: it may belong to CUDA, which ends a fork that touches it
    keep_memory()
    pa.set_memory_pool(pa.system_memory_pool())  # which keeps memory too; Arrow's own gives it back
    torch.set_num_threads(1)
    seed = settings.seed + settings.number
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(torch_workers._generate_state(settings.seed, settings.number))  # type: ignore[no-untyped-call]
    info = {"id": settings.number, "num_workers": settings.workers, "seed": seed, "dataset": settings.plan}
    torch_workers._worker_info = torch_workers.WorkerInfo(**info)  # type: ignore[arg-type]


def _take_turns(settings: WorkerSettings, resume_point: ResumePoint, sender: Sender, link: "Link") -> None:
    start, delivered, ranks, rank = resume_point
    progress = progress_from(settings.plan.pipeline, start, rank, ranks, delivered=delivered)
    all_turns = take_turns(progress, settings.number, settings.workers, deferred=True)
    sender.turn = settings.number
    clock = time.perf_counter
    made = sent = 0.0
    link.tally = lambda: progress.reading.tally()._replace(made=made, sent=sent - sender.idle, idle=sender.idle)
    try:
        begun = clock()
        for turns in all_turns:
            finished = clock()
            made += finished - begun
            sender.send(turns)
            del turns  # so that the next items are made in their memory, which is still in the CPU cache
            begun = clock()
            sent += begun - finished
        made += clock() - begun
    finally:
        all_turns.close()
        sender.flush()  # what was made before an error is delivered
    link.send(END)


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


class Link:
    """A worker's connection to the main process. It is an ``Outbox``."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._parent = connection, os.getppid()
        parent = parent_process()
        self._waits_for: list[Any] = [connection] if parent is None else [connection, parent.sentinel]
        self._start: tuple[int, ResumePoint | None] | None = None
        self._received: list[int] = []
        self.round = 0
        self.tally: Callable[[], Tally] = Tally
        """Returns what making items has taken so far, in this round."""
        self._told = Tally()

    def next_start(self) -> ResumePoint:
        """Wait for a resume point."""
        while True:
            while self._start is None:
                self._read()
            (self.round, resume_point), self._start = self._start, None
            self._told = Tally()
            if resume_point is not None:
                return resume_point

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Send something about the present round."""
        self._connection.send_bytes(kind + ROUND.pack(self.round) + content)

    def send_place(self, place: bytes) -> None:
        """Say where a message is, and what was done since the last."""
        tally = self.tally()
        self.send(ITEMS, place + tally.minus(self._told).write())
        self._told = tally

    def received(self, *, wait: bool) -> list[int]:
        """Where the messages are that were received since the last call.

        If the main process wants something else, it raises.
        """
        while self._connection.poll(0) or (wait and not self._received):
            self._read()
            if self._start is not None:
                raise _Interrupted
        received, self._received = self._received, []
        return received

    def _read(self) -> None:
        """Wait for the next message of the main process."""
        while not (ready := wait(self._waits_for, CHECK_SECONDS)):
            if os.getppid() != self._parent:
                raise _Stopped
        if self._connection not in ready:
            raise _Stopped
        try:
            message = self._connection.recv_bytes()
        except EOFError as error:
            raise _Stopped from error
        if message[:1] == RECEIVED:
            self._received += array("q", message[1:])
        elif message == STOP:
            raise _Stopped
        else:
            self._start = pickle.loads(message[1:])
