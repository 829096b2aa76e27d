"""One worker as the main process sees it: its process, the connection to it, and the memory that both share."""

import pickle
import time
from array import array
from collections import deque
from contextlib import suppress
from typing import Any

from midepoch.delivery.ring import LEAST_PINNED, MOST_PINNED_GROWTH, SharedMemory
from midepoch.delivery.transport import AHEAD_BYTES, AHEAD_MESSAGES, Message
from midepoch.workers.device import Copies, Mark
from midepoch.workers.process import RECEIVED, START, STOP, ResumePoint, WorkerSettings, run_worker

GRACE_SECONDS = 5
"""How long workers may take to finish the item that they make, before they are stopped."""
UNTOLD = 1 / 4
"""The part of what a worker may be ahead that can be received before the worker is told of it."""


class Worker:
    """One process, the connection to it, and the memory through which it sends items."""

    def __init__(self, context: Any, settings: WorkerSettings, copies: Copies | None) -> None:
        self.memory = SharedMemory() if copies is None else SharedMemory(MOST_PINNED_GROWTH, LEAST_PINNED)
        self._ahead, self._copies = settings.ahead, copies
        self._being_copied: deque[tuple[Message, Mark]] = deque()  # with the point where their copies are done
        self._received = array("q")  # where messages began that the worker may overwrite, and does not know it yet
        self._received_bytes = 0
        self.connection, of_worker = context.Pipe()
        self._name = f"worker {settings.number} of {settings.workers}"
        self.process = context.Process(target=run_worker, args=(settings, of_worker, self.memory), daemon=True)
        self.process.start()
        of_worker.close()  # so that the connection ends with the process
        self.memory.pin = None if copies is None else copies.pin  # in this process only

    def start(self, round_number: int, resume_point: ResumePoint) -> None:
        """Let the worker start from a resume point, whatever it does now."""
        try:
            self.connection.send_bytes(START + pickle.dumps((round_number, resume_point)))
        except OSError as error:
            raise self.death() from error

    def interrupt(self, round_number: int) -> None:
        """Let the worker do nothing more in a round."""
        with suppress(OSError):
            self.connection.send_bytes(START + pickle.dumps((round_number, None)))

    def note_received(self, message: Message) -> None:
        """Note that the copies of a message have begun. When they are done, the worker is told, of many at once.

        To tell it of each would wake it each time, and on a busy machine it then runs in place of this process.
        """
        if self._copies is None:
            self._add_received(message)
        else:
            self._being_copied.append((message, self._copies.next_mark()))
            self._note_copied(wait=False)
        is_much = self._received_bytes >= UNTOLD * AHEAD_BYTES or len(self._received) >= UNTOLD * AHEAD_MESSAGES
        if is_much or self._ahead is not None:
            self._tell_received()

    def before_wait(self) -> None:
        """Tell the worker of all that was received: it may wait for that."""
        self._note_copied(wait=True)
        self._tell_received()

    def prepare(self) -> bool:
        """Prepare to receive from the worker, which takes a while; False if that is done."""
        return self.memory.pin_early()

    def _note_copied(self, *, wait: bool) -> None:
        while self._being_copied and (wait or self._being_copied[0][1].is_done()):
            message, copied = self._being_copied.popleft()
            copied.wait()
            self._add_received(message)

    def _add_received(self, message: Message) -> None:
        self._received.append(message.start)
        self._received_bytes += message.size

    def _tell_received(self) -> None:
        if self._received:
            with suppress(OSError):  # a worker that died has sent everything that is in its memory
                self.connection.send_bytes(RECEIVED + self._received.tobytes())
            self._received, self._received_bytes = array("q"), 0

    def stop(self) -> None:
        """Let the worker end after the item that it makes."""
        with suppress(OSError):
            self.connection.send_bytes(STOP)

    def death(self) -> RuntimeError:
        """The error of a worker that has died, in torch's words."""
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
        self.connection.close()
        self.memory.free()
