"""Loader: a torch DataLoader that knows what it has delivered.

Workers take a rank's turns side by side and send, with each item, its turn and the cursor behind it. The state moves
when the loop receives the item, so what is prefetched and never received is not consumed. A turn whose lane has run
out is sent as one without an item, which keeps the workers in step, and is dropped here.
"""

import pickle
import queue
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Literal, Protocol

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
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info
except ImportError as error:
    raise MissingExtraError("torch", "torch", "midepoch.Loader") from error

Even = Literal["pad", "drop"]
ResumePoint = tuple[State, ReaderProgress]
"""Where a leg of all ranks began, and what this rank has delivered of it."""
Delivery = tuple[int, tuple[int, ...] | None, Any]
"""A turn of the rank, the cursor behind its item (or None for a turn without one), and the item."""


class Loader(DataLoader[Any]):
    """Feeds a training loop, and says at any moment what the loop has received.

    ``batch_size=n`` is ``dataset.batch(n)``, or, with a ``collate_fn``, that function of ``n`` items; without a batch
    size ``collate_fn`` gets each item. Nothing else is converted: use ``dataset.with_format("torch")`` for tensors.
    Iterating goes on where the data set stands, and after a full pass that is the next epoch. ``even`` gives every rank
    the same number of batches in an epoch, by repeating ("pad") or leaving out ("drop") at most one a rank.
    Workers, ranks, batch size, prefetching and start method may all be others after a resume. Where an object store is
    read, workers are started by forkserver unless ``multiprocessing_context`` says otherwise.
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
                f"Loader reads a midepoch data set, got {type(dataset).__name__}. Make one with midepoch.read(...)."
            )
        if even not in (None, "pad", "drop"):
            raise ValueError(f"even is {even!r}; it can be 'pad', 'drop' or None.")
        if drop_last and batch_size is None:
            raise ValueError("drop_last needs a batch_size; for batches of the data set use .batch(n, drop_last=True).")
        plan = dataset.plan
        if even is not None and not plan.pipeline.uniform:
            raise ValueError(
                f"even={even!r} needs a pipeline whose number of items is known; after a filter, a batched map or pack "
                "no rank knows how many the others have. Let ranks agree on an epoch's end, as in examples/train.py."
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
        """The epoch in which the loader stands."""
        return self._position.now().epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; in the epoch in which the loader stands, it stays where it is.

        The next loop gives what is left of that epoch.
        """
        self._position.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """What the loop has received, the batch in its hands included, and nothing it has not."""
        return self._position.state_dict(self._plan)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state says; whatever does not fit is told, and nothing changes."""
        self._position.load_state_dict(self._plan, state)

    def __len__(self) -> int:
        """How many batches this rank gets in a loop, known without reading."""
        if self._even is None:
            return len(Dataset(self._plan))
        if self._plan.passes is None:
            raise TypeError("The length is unknown: repeat() goes on for ever.")
        return self._plan.passes * _even_items(self._plan.begin(State()).session, self._even)

    def __bool__(self) -> bool:
        """True, also where the length is unknown."""
        return True

    def with_states(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Each batch with the state behind it, for callers that read ahead of what they train on."""
        for batch in self:
            yield batch, self.state_dict()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Go on from where the loader stands."""
        return self._position.run(self._plan, self._items, self._is_over)

    def _is_over(self, session: Session) -> bool:
        """Whether a leg began with nothing left for any rank."""
        return _even_items(session, "drop") == 0 if self._even == "drop" else session.is_over()

    def _items(self, progress: Progress) -> Iterator[Iterable[Any]]:
        """The rest of an epoch's items for this rank, some at a time."""
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
        """The first item of the epoch, which is what a rank repeats: the same one wherever and whenever it does."""
        alone = replace(self._plan, ranks=1, rank=0, lanes=session.assignment.lanes, mode=session.start.mode)
        fresh = alone.begin(State(epoch=session.start.epoch, appended=session.start.appended))
        return next(chain.from_iterable(fresh.follow(take_turns(fresh))))

    def _turns(self, progress: Progress) -> Iterator[Turns]:
        """The rank's turns, one after the other, as its workers take them."""
        if self.num_workers == 0 and not self.pin_memory:
            yield from take_turns(progress)
            return
        turn = progress.turns
        for at, cursor, item in self._receive((progress.session.start, progress.reader_progress())):
            while turn < at:  # turns of workers whose lanes have all run out
                yield Turns((EMPTY,), ((),))
                turn += 1
            yield Turns((EMPTY,), ((),)) if cursor is None else Turns((item,), ((tuple(cursor),),))
            turn += 1

    def _receive(self, resume_point: ResumePoint) -> Iterator[Delivery]:
        """What the workers send when they all begin at a place."""
        pool = self._pool or WorkerPool(self, self._plan)
        self._pool = pool if self.persistent_workers else None
        try:
            yield from pool.work(resume_point)
        except Exception:
            self._pool = None
            raise


class WorkerPool:
    """The processes that read for a loader; with persistent workers, one crew for all epochs."""

    def __init__(self, loader: Loader, plan: Plan) -> None:
        workers = loader.num_workers
        context = loader.multiprocessing_context or torch.multiprocessing
        if workers and context.get_start_method() != "fork":
            _check_sendable(plan, context.get_start_method())
        inboxes: list[Inbox] = [context.SimpleQueue() for _ in range(workers)] or [queue.SimpleQueue()]
        self._inboxes, self._round = inboxes, 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch has to say of these arguments it said of the loader's
            self._inner = DataLoader(
                WorkerDataset(plan, inboxes),
                batch_size=None,
                num_workers=workers,
                collate_fn=_as_it_is,  # type: ignore[arg-type]
                pin_memory=loader.pin_memory,
                timeout=loader.timeout,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
                prefetch_factor=loader.prefetch_factor,
                persistent_workers=loader.persistent_workers,
            )

    def work(self, resume_point: ResumePoint) -> Iterator[Delivery]:
        """Have all workers begin at a place, and receive what they send, in the order of the rank's turns."""
        self._round += 1
        deliveries = iter(self._inner)
        for inboxes in self._inboxes:
            inboxes.put((self._round, resume_point))
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
                    "received, and iterating again, or loading that state in a new process, goes on behind it."
                )
            if hasattr(deliveries, "_shutdown_workers"):  # the traceback would keep them alive beside the next ones
                deliveries._shutdown_workers()
            raise


class Inbox(Protocol):
    """How a worker is told where to begin: a queue from the main process."""

    def put(self, order: tuple[int, ResumePoint]) -> None:
        """Send."""

    def get(self) -> tuple[int, ResumePoint]:
        """Wait and receive."""


class WorkerDataset(IterableDataset[Delivery]):
    """What runs in each worker: its share of the rank's turns, from the place it is told."""

    def __init__(self, plan: Plan, inboxes: list[Inbox]) -> None:
        self._plan, self._inboxes, self._round = plan, inboxes, 0

    def __iter__(self) -> Iterator[Delivery]:
        """The messages of the next round; a worker that was never asked for any skips that round's order."""
        self._round += 1
        return self._deliveries(self._round)

    def _deliveries(self, wanted: int) -> Iterator[Delivery]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        number, (start, delivered) = self._inboxes[worker].get()
        while number < wanted:
            number, (start, delivered) = self._inboxes[worker].get()
        progress = Progress(Session(self._plan.pipeline, start, self._plan.ranks), self._plan.rank, delivered=delivered)
        turn = progress.turns + worker
        for cursor, item in turn_by_turn(take_turns(progress, worker, workers)):
            yield turn, cursor, standalone(item)
            turn += workers


def _batching(size: int | None, drop_last: bool, collate: Callable[..., Any] | None) -> tuple[Stage, ...]:
    if size is not None:
        return (Batch(size=size, drop_last=drop_last, collate=collate),)
    return () if collate is None else (Collate(function=collate),)


def _even_items(session: Session, even: Even) -> int:
    """How many items every rank gets from a leg."""
    items = [
        sum(session.own(reader, slot, lane) for slot, lane in enumerate(session.assignment.rotation(reader)))
        for reader in range(session.assignment.readers)
    ]
    return max(items) if even == "pad" else min(items)


def _check_even(plan: Plan) -> None:
    """Raise if ranks would come to the next epoch at different steps, where no state could speak for all of them."""
    session = plan.begin(State()).session
    least, most = _even_items(session, "drop"), _even_items(session, "pad")
    if least != most:
        raise ValueError(
            f"repeat() over {plan.ranks} ranks needs even='pad' or even='drop': some ranks have {least:,} batches in "
            f"an epoch and some {most:,}, and would begin the next epoch at different steps."
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
    """How workers start that read an object store, unless the user says how: its clients do not survive a fork."""
    if torch.multiprocessing.get_start_method() != "fork":
        return None
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "midepoch.loader"])  # else every worker imports torch anew
    return context


def _as_it_is(delivery: Delivery) -> Delivery:
    return delivery
