"""Loader: a torch DataLoader that knows what it has delivered.

Workers take a rank's turns in parallel and send, with each item, its turn and the cursor after it. The state moves
when the loop receives the item, so what is prefetched and never received is not consumed. An empty turn, at a lane that
has run out, is sent without an item, which keeps the workers in step, and is dropped here.
"""

import pickle
import queue
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Literal, Protocol

from midepoch._common.text import count
from midepoch._common.world import torch_worker
from midepoch.checkpoint.state import ReaderProgress, State
from midepoch.dataset import Dataset
from midepoch.delivery.plan import Plan
from midepoch.delivery.progress import EMPTY, Progress, Turns
from midepoch.delivery.reader import take_turns, turn_by_turn
from midepoch.delivery.session import Session
from midepoch.errors import MissingExtraError
from midepoch.stages.batch import Batch, Collate
from midepoch.stages.stage import Stage, name_of
from midepoch.values.collate import standalone

try:
    import torch.multiprocessing
    from torch.utils.data import DataLoader, IterableDataset
except ImportError as error:
    raise MissingExtraError("torch", "torch", "midepoch.Loader") from error

Even = Literal["pad", "drop"]
ResumePoint = tuple[State, ReaderProgress]
"""Where a session of all ranks started, and what this rank has delivered of it."""
Delivery = tuple[int, tuple[int, ...] | None, Any]
"""The number of a turn of the rank, the cursor after its item (None for an empty turn), and the item."""


class Loader(DataLoader[Any]):
    """Feeds a training loop, and knows at any moment what the loop has received.

    ``batch_size=n`` is ``dataset.batch(n)``, or, with a ``collate_fn``, that function of ``n`` items; without a batch
    size ``collate_fn`` gets each item. Nothing else is converted: use ``dataset.with_format("torch")`` for tensors.
    Iterating continues from the position of the dataset; after a full pass that is the next epoch. ``even`` gives every
    rank the same number of batches in an epoch, by repeating ("pad") or leaving out ("drop") at most one per rank.
    Workers, ranks, batch size, prefetching and start method may all change when a run is resumed. Workers that read
    an object store are started by forkserver, unless ``multiprocessing_context`` is set.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int | None = None,
        num_workers: int = 0,
        collate_fn: Callable[..., Any] | None = None,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: Any = None,
        drop_last: bool = False,
        even: Even | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
    ) -> None:
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"Loader needs a midepoch dataset, got {type(dataset).__name__}. Make one with midepoch.read(...)."
            )
        if even not in (None, "pad", "drop"):
            raise ValueError(f"even is {even!r}; it can be 'pad', 'drop' or None.")
        if drop_last and batch_size is None:
            raise ValueError("drop_last needs a batch_size; for batches of the dataset use .batch(n, drop_last=True).")
        plan = dataset.plan
        if even is not None and not plan.pipeline.uniform:
            raise ValueError(
                f"even={even!r} needs a pipeline whose number of items is known; after a filter, a batched map or pack "
                "no rank knows how many the others have. Let the ranks agree on the end of an epoch, as in "
                "examples/train.py."
            )
        if num_workers and multiprocessing_context is None and not plan.pipeline.source.survives_fork:
            multiprocessing_context = _context_without_fork()
        super().__init__(
            dataset,  # type: ignore[arg-type]
            batch_size=batch_size,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
        )
        stages = (*plan.pipeline.stages, *_batching(batch_size, drop_last, collate_fn))
        lanes = plan.lanes or plan.ranks * max(1, num_workers)
        self._plan = replace(plan, lanes=lanes, pipeline=replace(plan.pipeline, stages=stages))
        if even is None and plan.passes != 1 and plan.pipeline.uniform:
            _check_even(self._plan)
        self._position = dataset.position
        self._even = even
        self._pool: WorkerPool | None = None

    @property
    def plan(self) -> Plan:
        """How this loader reads its dataset: the dataset's plan with the loader's lanes and batches."""
        return self._plan

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self._position.state().epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch. If it is the present epoch, the position does not change.

        The next loop yields what is left of that epoch.
        """
        self._position.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """What the loop has received, including its present batch, and nothing else."""
        return self._position.state_dict(self._plan)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state. If the state does not fit, raise and change nothing."""
        self._position.load_state_dict(self._plan, state)

    def __len__(self) -> int:
        """The number of batches that this rank gets in a loop, known without reading."""
        if self._even is None:
            return len(Dataset(self._plan))
        if self._plan.passes is None:
            raise TypeError("The length is unknown: repeat() never ends.")
        return self._plan.passes * _even_items(self._plan.begin(State()).session, self._even)

    def __bool__(self) -> bool:
        """True, even if the length is unknown."""
        return True

    def with_states(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Each batch with the state after it, for callers that read ahead of what they train on."""
        for batch in self:
            yield batch, self.state_dict()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The batches from the present position on."""
        return self._position.run(self._plan, self._items, self._is_over)

    def _is_over(self, session: Session) -> bool:
        """True if a session started with nothing left for any rank."""
        return _even_items(session, "drop") == 0 if self._even == "drop" else session.is_over()

    def _items(self, progress: Progress) -> Iterator[Iterable[Any]]:
        """The rest of an epoch's items for this rank, many at a time."""
        if self._even is None:
            yield from progress.follow(self._turns(progress))
            return
        target = _even_items(progress.session, self._even)
        turns = self._turns(progress) if target else iter(())
        for item in chain.from_iterable(progress.follow(turns)):
            yield (item,)
            if progress.items == target:
                return
        while progress.items < target:
            progress.repeated += 1
            yield (self._first_item(progress.session),)

    def _first_item(self, session: Session) -> Any:
        """The first item of the epoch. This is the item that ranks repeat, so that all repeat the same one."""
        one_reader = replace(self._plan, ranks=1, rank=0, lanes=session.assignment.lanes, mode=session.start.mode)
        progress = one_reader.begin(State(epoch=session.start.epoch, appended=session.start.appended))
        return next(chain.from_iterable(progress.follow(take_turns(progress))))

    def _turns(self, progress: Progress) -> Iterator[Turns]:
        """The rank's turns, in order, as its workers take them."""
        if self.num_workers == 0 and not self.pin_memory:
            yield from take_turns(progress)
            return
        due = progress.turns_taken
        for turn, cursor, item in self._receive((progress.session.start, progress.reader_progress())):
            while due < turn:  # turns of workers whose lanes have all run out
                yield Turns((EMPTY,), ((),))
                due += 1
            yield Turns((EMPTY,), ((),)) if cursor is None else Turns((item,), ((tuple(cursor),),))
            due += 1

    def _receive(self, resume_point: ResumePoint) -> Iterator[Delivery]:
        """What the workers send when they all start from a resume point."""
        pool = self._pool or WorkerPool(self, self._plan)
        self._pool = pool if self.persistent_workers else None
        try:
            yield from pool.work(resume_point)
        except Exception:
            self._pool = None
            raise


class WorkerPool:
    """The processes that read for a loader; persistent workers stay for all epochs."""

    def __init__(self, loader: Loader, plan: Plan) -> None:
        workers = loader.num_workers
        context = loader.multiprocessing_context or torch.multiprocessing
        if workers and context.get_start_method() != "fork":
            _check_sendable(plan, context.get_start_method())
        inboxes: list[Inbox] = [context.SimpleQueue() for _ in range(workers)] or [queue.SimpleQueue()]
        self._inboxes, self._round = inboxes, 0
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

    def work(self, resume_point: ResumePoint) -> Iterator[Delivery]:
        """Start all workers from a resume point, and receive what they send, in the order of the rank's turns."""
        self._round += 1
        deliveries = iter(self._inner)
        for inbox in self._inboxes:
            inbox.put((self._round, resume_point))
        try:
            yield from deliveries
        except Exception as error:
            dead = [
                f"worker {number} of {len(self._inboxes)} (pid {process.pid}, exit code {process.exitcode})"
                for number, process in enumerate(getattr(deliveries, "_workers", ()))
                if process.exitcode is not None
            ]
            if dead:
                error.add_note(
                    f"midepoch: {', '.join(dead)} died. Nothing is lost: the loader's state is that of the last batch "
                    "received. Iterate again, or load that state in a new process, to continue after it."
                )
            if hasattr(deliveries, "_shutdown_workers"):  # the traceback would keep them alive beside the next ones
                deliveries._shutdown_workers()
            raise


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
        round_number, (start, delivered) = self._inboxes[worker].get()
        while round_number < wanted_round:
            round_number, (start, delivered) = self._inboxes[worker].get()
        progress = Progress(Session(self._plan.pipeline, start, self._plan.ranks), self._plan.rank, delivered=delivered)
        turn = progress.turns_taken + worker
        for cursor, item in turn_by_turn(take_turns(progress, worker, workers)):
            yield turn, cursor, standalone(item)
            turn += workers


def _batching(size: int | None, drop_last: bool, collate: Callable[..., Any] | None) -> tuple[Stage, ...]:
    if size is not None:
        return (Batch(size=size, drop_last=drop_last, collate=collate),)
    return () if collate is None else (Collate(function=collate),)


def _even_items(session: Session, even: Even) -> int:
    """The number of items that every rank gets from a session."""
    items = [sum(session.reader_items(reader)) for reader in range(session.assignment.readers)]
    return max(items) if even == "pad" else min(items)


def _check_even(plan: Plan) -> None:
    """Raise if ranks would begin the next epoch at different steps: then no rank's state would hold for all ranks."""
    session = plan.begin(State()).session
    least, most = _even_items(session, "drop"), _even_items(session, "pad")
    if least != most:
        raise ValueError(
            f"repeat() over {plan.ranks} ranks needs even='pad' or even='drop': some ranks have "
            f"{count('batch', least, 'batches')} in an epoch and some {most:,}, and would begin the next epoch at "
            "different steps."
        )


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


def _context_without_fork() -> Any:
    """The default start method of workers that read an object store, whose clients do not survive a fork."""
    if torch.multiprocessing.get_start_method() != "fork":
        return None
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "midepoch.loader"])  # else every worker imports torch again
    return context


def _unchanged(delivery: Delivery) -> Delivery:
    return delivery
