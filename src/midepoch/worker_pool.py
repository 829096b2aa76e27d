"""The workers of a Loader: what they run, and how the main process receives what they deliver.

Workers take a rank's turns in parallel and send, with each item, its turn and the cursor after it. A worker sends an
empty turn, at a lane that has run out, without an item, which keeps the workers in step.
"""

import os
import pickle
import queue
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import torch.multiprocessing
from torch.utils.data import DataLoader, IterableDataset

from midepoch._common.world import torch_worker
from midepoch.checkpoint.state import ReaderProgress, State
from midepoch.delivery.plan import Plan
from midepoch.delivery.progress import Progress
from midepoch.delivery.reader import take_turns, turn_by_turn
from midepoch.delivery.resume import session_from
from midepoch.errors import StaleIteratorError
from midepoch.stages.stage import name_of
from midepoch.values.collate import standalone

ResumePoint = tuple[State, ReaderProgress, int, int]
"""Where a session of all ranks started, what this rank has delivered of it, the number of ranks, and the rank."""
Delivery = tuple[int, tuple[int, ...] | None, Any]
"""The number of a turn of the rank, the cursor after its item (None for an empty turn), and the item."""


class WorkerPool:
    """The processes that read for a loader; persistent workers stay for all epochs."""

    def __init__(self, loader: DataLoader[Any], plan: Plan) -> None:
        """Start workers with the settings of a loader."""
        workers = loader.num_workers
        context = loader.multiprocessing_context or torch.multiprocessing
        if workers and context.get_start_method() != "fork":
            _check_sendable(plan, context.get_start_method())
        inboxes: list[Inbox] = [context.SimpleQueue() for _ in range(workers)] or [queue.SimpleQueue()]
        self._inboxes, self._round = inboxes, 0
        self._process = os.getpid()
        self.is_closed = False
        self._deliveries: Any = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch has already warned about these arguments of the loader
            self._inner = DataLoader(
                WorkerDataset(plan, inboxes),
                batch_size=None,
                num_workers=workers,
                collate_fn=_unchanged,  # type: ignore[arg-type]
                pin_memory=loader.pin_memory,
                timeout=loader.timeout,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
                prefetch_factor=loader.prefetch_factor,
                persistent_workers=loader.persistent_workers,
            )

    @property
    def is_of_this_process(self) -> bool:
        """False in a process that was forked from the one that started the workers."""
        return self._process == os.getpid()

    def work(self, resume_point: ResumePoint) -> Iterator[Delivery]:
        """Start all workers from a resume point, and receive what they send, in the order of the rank's turns."""
        self._round += 1
        deliveries: Any = None
        try:
            deliveries = self._deliveries = iter(self._inner)
            for inbox in self._inboxes:
                inbox.put((self._round, resume_point))
            for delivery in deliveries:
                yield delivery
                if self.is_closed:
                    raise StaleIteratorError("This iterator is out of date: its Loader was closed. Call iter() again.")
        except Exception as error:
            if deliveries is None:
                deliveries = self._inner._iterator  # persistent workers, of which one died since the last loop
            dead = [
                f"worker {number} of {len(self._inboxes)} (pid {process.pid}, exit code {process.exitcode})"
                for number, process in enumerate(getattr(deliveries, "_workers", ()))
                if process.exitcode is not None
            ]
            if dead:
                error.add_note(
                    f"midepoch: {', '.join(dead)} died. Nothing is lost: the loader's state is that of the last batch "
                    "received. To continue after it, load that state and iterate again, here or in a new process."
                )
            if hasattr(deliveries, "_shutdown_workers"):  # the traceback would keep them alive beside the next ones
                deliveries._shutdown_workers()
            raise

    def close(self) -> None:
        """Stop the workers, in the process that started them."""
        self.is_closed = True
        if self.is_of_this_process and hasattr(self._deliveries, "_shutdown_workers"):
            self._deliveries._shutdown_workers()


class Inbox(Protocol):
    """A queue through which the main process sends a worker its resume point, with the number of the round."""

    def put(self, message: tuple[int, ResumePoint]) -> None:
        """Send without waiting."""

    def get(self) -> tuple[int, ResumePoint]:
        """Wait for the next message."""


class WorkerDataset(IterableDataset[Delivery]):
    """What each worker runs: its part of the rank's turns, from a resume point on."""

    def __init__(self, plan: Plan, inboxes: list[Inbox]) -> None:
        self._plan, self._inboxes, self._round = plan, inboxes, 0

    def __iter__(self) -> Iterator[Delivery]:
        """The deliveries of the next round. A worker skips resume points of rounds that it was never asked for."""
        self._round += 1
        return self._deliveries(self._round)

    def _deliveries(self, wanted_round: int) -> Iterator[Delivery]:
        worker, workers = torch_worker() or (0, 1)
        round_number, (start, delivered, ranks, rank) = self._inboxes[worker].get()
        while round_number < wanted_round:
            round_number, (start, delivered, ranks, rank) = self._inboxes[worker].get()
        session = session_from(self._plan.pipeline, start, ranks, delivered)
        progress = Progress(session, rank, delivered=delivered)
        turn = progress.turns_taken + worker
        for cursor, item in turn_by_turn(take_turns(progress, worker, workers)):
            yield turn, cursor, standalone(item)
            turn += workers


def _check_sendable(plan: Plan, method: str) -> None:
    """Raise, naming the function, if a pipeline cannot be sent to a process that is not forked."""
    for function in plan.pipeline.functions:
        try:
            pickle.dumps(function)
        except Exception as error:
            raise TypeError(
                f"The function {name_of(function)} cannot be sent to workers started by {method!r}: {error}. "
                "Define it at the top level of a module, or pass multiprocessing_context='fork'."
            ) from error


def _unchanged(delivery: Delivery) -> Delivery:
    return delivery
