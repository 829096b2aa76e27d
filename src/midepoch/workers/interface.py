"""What a Loader needs of its workers, wherever they are: someone who starts them, and five methods of each.

Order and state do not know who makes an item. Processes of this machine are one implementation, actors of Ray another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from midepoch.checkpoint.state import ReaderProgress, State
from midepoch.delivery.metrics import Tally
from midepoch.delivery.plan import Plan
from midepoch.delivery.turns import Turns

ResumePoint = tuple[State, ReaderProgress, int, int, int]
"""Where a session of all ranks started, what this rank has delivered of it, the number of ranks, the rank, and how many
of the rank's turns come before the worker's first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What all workers of a Loader get when they are started."""

    plan: Plan
    workers: int
    seed: int
    """The first number of the seeds of all workers."""
    ahead: int | None
    """How many items a worker may be ahead; None bounds the bytes instead."""
    init: Callable[[int], None] | None


class Message(NamedTuple):
    """What a worker sent."""

    turns: Turns | None = None
    error: Exception | None = None
    """What comes in place of the turn after these."""
    tally: Tally = Tally()
    """What it has done since the last message."""
    is_last: bool = False
    """True if it has no more turns."""


class WorkerDiedError(RuntimeError):
    """A worker has ended, and nobody asked it to. Where the loop has not received, a new one is started."""

    def __init__(self, message: str, *, who: str, reads: str = "", remedy: str = "") -> None:
        """``who`` names the worker and how it ended, ``reads`` is a sentence about what it was reading.

        A ``remedy`` says what the user must change, because a new worker would end in the same way: none is started.
        """
        super().__init__(message)
        self.who, self.reads, self.remedy = who, reads, remedy


class Worker(Protocol):
    """One worker, as the main process has it. ``start`` and ``receive`` raise WorkerDiedError if it has ended."""

    def start(self, resume_point: ResumePoint) -> None:
        """Let the worker take its turns from a resume point, whatever it does now."""

    def interrupt(self) -> None:
        """Let the worker do nothing more until it is started again."""

    def receive(self, seconds: float) -> Message | None:
        """The next message since the start; None if none comes in that time. With 0 it raises nothing."""

    def stop(self) -> None:
        """Let the worker end after the item that it makes. Nobody waits for that here."""

    def free(self, deadline: float) -> None:
        """Wait for its end until a time of ``time.monotonic()``, end it otherwise, and leave nothing of it."""


class Workers(Protocol):
    """Who starts the workers of Loaders: ``Loader(dataset, num_workers=16, workers=...)``."""

    def starter(self, settings: WorkerSettings) -> Callable[[int], Worker]:
        """What starts worker number ``n`` of a Loader, also in place of one that died.

        It is called once for each set of workers, and raises if they could not be started.
        """
