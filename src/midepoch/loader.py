"""The Loader: a torch DataLoader that knows what it has delivered.

State moves when the loop receives a batch, so what is prefetched and never received is not consumed.
:mod:`midepoch.workers` has the processes that read for it.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain, islice
from itertools import count as count_from
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload
from weakref import WeakSet

import pyarrow as pa

from midepoch.errors import needs

with needs("torch", "torch", "midepoch.Loader"):
    import torch.multiprocessing
    import torch.utils.data

from midepoch._common.checks import check_choice, check_integer, count, log_once, options_among, way_to_a_dataset
from midepoch._common.world import launched_rank, process_group_store
from midepoch.checkpoint.digest import RowDigest
from midepoch.checkpoint.state import State
from midepoch.dataset import Dataset, plan_of, position_of
from midepoch.dataset.dataset import Item, Made, Row, Table
from midepoch.delivery.agreement import check_ranks_agree
from midepoch.delivery.metrics import Meter
from midepoch.delivery.passes import Pass, PassIterator, Progress
from midepoch.delivery.plan import Even, Plan, check_shard, describe_plan
from midepoch.delivery.position import Position
from midepoch.delivery.reader import take_turns
from midepoch.delivery.session import Session
from midepoch.delivery.trace import EpochProgress, check_digest, digest_of, epoch_progress, find, trace
from midepoch.delivery.turns import Turns
from midepoch.pipeline.pipeline import Pipeline
from midepoch.pipeline.surveyed import is_packed
from midepoch.stages.batch import Batch, Collate
from midepoch.stages.columns import Convert
from midepoch.stages.stage import Stage
from midepoch.workers.device import check_device, on_device, pinned_turns, pins, start_copies
from midepoch.workers.interface import Workers
from midepoch.workers.pool import WorkerPool

__all__ = ["Loader"]

Columns = TypeVar("Columns", bound=Row | Table)
INSTEAD = {
    "sampler": (
        "To shuffle, use dataset.shuffle(seed=42); in place of a DistributedSampler, dataset.shard(); to choose rows, "
        "dataset.select(numbers). For a sampler of your own: torch's DataLoader(dataset.as_map(), sampler=sampler)."
    ),
    "batch_sampler": (
        "Use batch_size=n, or dataset.batch(n). For a sampler of your own: torch's DataLoader(dataset.as_map(), "
        "batch_sampler=sampler)."
    ),
    "generator": "The seed is that of the shuffle: dataset.shuffle(seed=42).",
}
"""What to use in place of arguments of torch's DataLoader."""
_numbers = count_from(0)
"""Numbers the Loaders of several ranks in this process. All ranks build them in the same order."""


class LoaderArguments(TypedDict, total=False):
    """The arguments of a Loader that say nothing of what it yields."""

    shuffle: bool | None
    num_workers: int
    pin_memory: bool
    prefetch_factor: int | None
    persistent_workers: bool
    multiprocessing_context: Any
    drop_last: bool
    even: Even | Literal["auto"] | None
    worker_init_fn: Callable[[int], None] | None
    timeout: float
    worker_restarts: int
    workers: Workers | None
    check_ranks: bool
    device: str | torch.device | None
    digest: bool


class StepArguments(LoaderArguments, total=False):
    """The same, and those that make batches of a given size for all ranks."""

    global_batch_size: int | None
    micro_batch_size: int | None
    balance: Literal["cost"] | None


class Loader(torch.utils.data.DataLoader[Item]):
    """Feeds a training loop, and knows at any moment what the loop has received.

        loader = midepoch.Loader(midepoch.read("data/*.parquet").shuffle(seed=42), batch_size=32, num_workers=2)
        for batch in loader:
            state = loader.state_dict()

    ``dataset`` is a midepoch dataset, which is delivered in its own order: ``shuffle=True`` raises, use
    ``dataset.shuffle(seed=42)``. ``sampler``, ``batch_sampler`` and ``generator`` raise too, and say what to use.
    ``batch_size=n`` is ``dataset.batch(n)``, or, with a ``collate_fn``, that function of ``n`` items; without a batch
    size ``collate_fn`` gets each item. ``drop_last`` leaves out the last batch of a lane if it is smaller, and needs a
    batch size.

    Batches and packs have tensors, as ``dataset.with_format("torch")`` makes them, unless ``with_format`` or a
    ``collate_fn`` says otherwise. Numbers are a tensor, lists of one length a matrix, lists of different lengths a list
    of tensors, and text a list of strings. A column with a null is a list in that batch. If a column is a tensor in
    some batches and a list in others, that is logged once. ``with_format("python")`` keeps Python values, as do single
    rows without a batch size. The conversion is no part of a state.

    A loop starts at the beginning of the epoch, or at the state that was loaded; after a full loop that is the next
    epoch. ``even`` gives every rank the same number of batches in an epoch, by repeating ("pad") or leaving out
    ("drop") at most one per rank; ``"auto"`` pads if that is possible. A batch that is only there to keep ranks even is
    marked by :attr:`is_padding`. In a process group of torch the ranks compare what they read when a loop starts, and
    raise if it differs; ``check_ranks=False`` switches that off. With ``digest=True`` it keeps a digest of the rows
    that were delivered, which is part of the state; :meth:`check_digest` proves that each came exactly once.

    With ``global_batch_size`` and ``micro_batch_size`` in place of ``batch_size``, a step is :attr:`accumulation`
    batches of every rank, and has the same rows on any number of ranks that divides the number of micro-batches. The
    last step of an epoch is whole, by the same padding or dropping. Take checkpoints between two steps. With
    ``balance="cost"``, for packs, a rank gets those micro-batches of the step that make the attention costs of ranks
    nearly equal: the sums of the squares of the lengths of their documents. The rows of the step are the same.

    ``num_workers`` processes read for this rank; with 0 the process of the loop reads itself. They start with a loop
    and stop at its end; ``persistent_workers=True`` keeps them for the next one. ``worker_init_fn`` is called once in
    each worker, with its number, before it reads. If a worker sends nothing for ``timeout`` seconds while the loop
    waits for it, that raises; 0 is no limit. A worker that dies is started again at the first batch that the loop has
    not received, ``worker_restarts`` times since it last sent one. Each restart is logged, and no batch differs. Then
    it raises, as it does at once with 0. ``workers`` says who they are, if they are no processes of this machine:
    ``midepoch.integrations.ray.RayWorkers()``, or what you wrote yourself. ``pin_memory`` puts the tensors of a batch
    into pinned memory, for loops that copy them to a CUDA device themselves.

    Workers, ranks, batch size, prefetching and start method may all change when a run is resumed. Workers that read
    an object store are started by forkserver, unless ``multiprocessing_context`` is set. A worker is ahead of the loop
    by 32 MiB, or by about ``prefetch_factor`` batches if that is set.

    With ``device="cuda"``, or any other device of torch, the tensors of a batch arrive there. They are copied from
    pinned memory, on a CUDA stream of their own, while the loop works on the batch before: ``pin_memory`` and
    ``.to(device)`` are not needed. Tensors are looked for in mappings, lists, tuples and dataclasses; other objects are
    asked by their method ``to``. The state counts what the loop received, as always.

    A copy of a Loader starts where the next loop of the Loader would, with a position and workers of its own.
    ``set_epoch`` of its own ``dataset`` reaches it; after ``deepcopy`` and ``pickle`` that is a copy too.
    """

    position: Position
    """Where the next pass starts, and which pass delivered last."""
    _meter: Meter | None = None
    _idle_pool: WorkerPool | None = None
    """Workers that wait for the next epoch or pass."""

    @overload
    def __init__(
        self: "Loader[Made]",
        dataset: Dataset,
        batch_size: int | None = None,
        *,
        collate_fn: Callable[..., Made],
        **others: Unpack[StepArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: "Loader[Made]", dataset: Dataset[Made], batch_size: None = None, **others: Unpack[LoaderArguments]
    ) -> None: ...

    @overload
    def __init__(
        self: "Loader[Columns]", dataset: Dataset[Columns], batch_size: int, **others: Unpack[LoaderArguments]
    ) -> None: ...

    @overload
    def __init__(
        self: "Loader[Any]",
        dataset: Dataset,
        batch_size: int | None = None,
        *,
        collate_fn: None = None,
        **others: Unpack[StepArguments],
    ) -> None: ...

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        *,
        global_batch_size: int | None = None,
        micro_batch_size: int | None = None,
        balance: Literal["cost"] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[..., Any] | None = None,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: Any = None,
        drop_last: bool = False,
        even: Even | Literal["auto"] | None = "auto",
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
        worker_restarts: int = 3,
        workers: Workers | None = None,
        check_ranks: bool = True,
        device: str | torch.device | None = None,
        digest: bool = False,
        sampler: None = None,
        batch_sampler: None = None,
        generator: None = None,
    ) -> None:
        _check_dataset(dataset, shuffle)
        _refuse_samplers(sampler=sampler, batch_sampler=batch_sampler, generator=generator)
        num_workers = check_integer("num_workers", num_workers)
        checked_device = check_device(device, pin_memory=pin_memory)
        options = LoaderOptions(**options_among(LoaderOptions, locals()))
        plan = options.plan(plan_of(dataset))
        _check_workers(workers, num_workers, multiprocessing_context)
        self._workers = workers
        survives_fork = all(source.survives_fork for source in plan.pipeline.files)
        if num_workers and (workers or multiprocessing_context) is None and not survives_fork:
            multiprocessing_context = _context_without_fork()
        super().__init__(
            dataset,
            batch_size=options.rows,
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
        self.position = position_of(dataset).for_loader()
        self._options, self._plan = options, plan
        self._pools: WeakSet[WorkerPool] = WeakSet()
        self._ahead, self._device = prefetch_factor, checked_device
        self._worker_restarts = check_integer("worker_restarts", worker_restarts)
        self._number: int | None = next(_numbers) if plan.ranks > 1 and check_ranks else None
        if pin_memory and not pins(self):
            log_once("pin_memory=True changes nothing on this machine: torch finds no CUDA device.")
        _warn_if_not_sharded(plan)
        for source in plan.pipeline.files:
            source.log_mixing(plan.lanes or plan.ranks)

    def __getstate__(self) -> dict[str, Any]:
        own = {"position": copy(self.position), "_idle_pool": None, "_meter": None, "_pools": None}
        return {**self.__dict__, **own}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._pools = WeakSet()
        position_of(self.dataset).linked_to(self.position)  # type: ignore[arg-type]
        self._number = None if self._number is None else next(_numbers)

    def __iter__(self) -> PassIterator[Item]:  # type: ignore[override]
        """A pass from the start point: the beginning of the epoch, or the state that was loaded.

        A pass that reaches its end moves the start point to the next epoch. One that is left early does not. Iterators
        are independent of each other, and each has a ``state_dict`` of its own.
        """
        run = self.position.begin(self._plan)
        self._meter = Meter(run)
        batches = self._batches(run)
        if self._options.collate_fn is None and self._plan.pipeline.item_spec == ("torch", True):
            batches = _watch_columns(batches)
        return PassIterator.over(run, self._meter.timed(batches), self._describe_state)

    def _batches(self, run: Pass) -> Iterator[Iterable[Any]]:
        """The batches of a pass, many at a time."""
        try:
            with run:
                in_bulk = chain.from_iterable(self._epoch_batches(run, progress) for progress in run.epochs())
                for batches in in_bulk:
                    remaining = iter(batches)
                    yield islice(remaining, 1)
                    self._check_ranks_agree(run)  # once a second batch is asked for: a peek on one rank says nothing
                    yield remaining
                    break
                yield from in_bulk
        finally:
            if not self.persistent_workers and self._idle_pool is not None:
                pool, self._idle_pool = self._idle_pool, None
                pool.close()

    def check_worker_number_rationality(self) -> None:
        """Let torch compare the number of workers with the cores of this machine, if they are here."""
        if self._workers is None:
            super().check_worker_number_rationality()

    def close(self) -> None:
        """Stop the workers. Iterators that use them are out of date; a new one starts new workers.

            loader.close()

        The state stays that of the last batch that was received.
        """
        for pool in list(self._pools):
            pool.close()
        self._idle_pool = None

    def _check_ranks_agree(self, run: Pass) -> None:
        store = None if self._number is None else process_group_store()
        if store is not None and self._number is not None:
            check_ranks_agree(store, run, loader=self._number, rank=(launched_rank() or (run.plan.rank,))[0])

    def _epoch_batches(self, run: Pass, progress: Progress) -> Iterator[Iterable[Any]]:
        """The batches of one epoch, and those that keep the ranks even."""
        session = progress.session
        even = self._plan.even if self._plan.keeps_even(session) else None
        if self._plan.even is not None and not session.counted:
            log_once(
                "Ranks may have different numbers of batches in this epoch, because the state that was loaded holds "
                "what one of several ranks delivered, lanes of whole files, or windows of packs out of which rows were "
                "left. Iterate over "
                "midepoch.distributed.in_step(loader). To have the batches counted, load merge_states of all ranks' "
                "states into all ranks."
            )
        if even != "drop":
            yield from run.deliver(self._turns(progress))
        elif most := self._plan.items_per_rank(session):
            for batch in chain.from_iterable(run.deliver(self._turns(progress))):
                yield (batch,)
                if progress.items == most:
                    return
        step = self._plan.items_per_step
        while even == "pad" and not (session.is_complete(progress.items) and progress.items % step == 0):
            log_once(
                "Ranks have different numbers of batches: those with fewer repeat one, marked by is_padding.",
                logging.INFO,
            )
            yield run.pad(self._padding_batch(session))

    def _padding_batch(self, session: Session) -> Any:
        """The first batch of the epoch: the one that ranks repeat, so that all repeat the same."""
        one_reader = replace(self._plan, ranks=1, rank=0, lanes=session.start.lanes, mode=session.start.mode)
        start = session.start
        progress = one_reader.begin(State(epoch=start.epoch, appended=start.appended))
        batch = next(chain.from_iterable(progress.follow(take_turns(progress))))
        if self._device is None:
            return batch
        batch, wait = start_copies(batch, self._device)
        wait()
        return batch

    def _turns(self, progress: Progress) -> Iterator[Turns]:
        """The rank's turns, in order, as its workers take them."""
        all_turns = self._receive(progress) if self.num_workers else take_turns(progress)
        if self._device is not None:
            yield from on_device(all_turns, self._device)
            return
        with closing(all_turns):
            turns_that_came = filter(None, all_turns)
            yield from pinned_turns(turns_that_came) if pins(self) else turns_that_came

    def _receive(self, progress: Progress) -> Generator[Turns | None, None, None]:
        """What the workers send when they all start from where a progress is, with a None before each wait."""
        pool = self._idle_pool if self._idle_pool is not None and self._idle_pool.is_of_this_process else None
        self._idle_pool = None  # so that another pass meanwhile starts workers of its own
        if pool is None:
            pool = WorkerPool(
                self, self._plan, ahead=self._ahead, restarts=self._worker_restarts, workers=self._workers
            )
        self._pools.add(pool)
        stays = False
        try:
            yield from pool.work(progress)
            stays = self.persistent_workers or self._plan.epochs_per_loop != 1  # for the next epoch of this pass
        except GeneratorExit:
            stays = self.persistent_workers
            raise
        finally:
            if stays and not pool.is_closed and self._idle_pool is None:
                self._idle_pool = pool
            else:
                pool.close()

    @property
    def plan(self) -> Plan:
        """How this loader reads its dataset: the dataset's plan with the loader's lanes and batches."""
        return self._plan

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self.position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Start the next loop at the beginning of an epoch. If a state of that epoch was loaded, it starts there.

            for epoch in range(loader.epoch, 3):
                loader.set_epoch(epoch)
                for batch in loader:
                    pass

        ``epoch`` counts from 0. The next loop yields what is left of that epoch. Iterators in other epochs are out of
        date.
        """
        self.position.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """What the loop has received, including its present batch, and nothing else.

            torch.save({"loader": loader.state_dict()}, "checkpoint.pt")

        With several iterators it is the state of the open one that delivered last, else of the last that was left;
        before any, of the start point.
        """
        state, plan = self._own_state(), self._plan
        rank = f"rank {plan.rank} of {plan.ranks}"
        if plan.ranks > 1 and (not plan.counted or state["part"] is not None or "earlier" in state):
            log_once(
                f"This state holds what {rank} delivered, and restores that rank only, because "
                f"{plan.why_not_counted() or 'it continues the state of that rank'}. Save "
                "midepoch.distributed.gather_state(loader), or every rank's state."
            )
        elif "+" in (state["digest"] or ""):
            log_once(
                f"This state holds the digest of {rank} alone. It restores all ranks, but not the digest. Save "
                "midepoch.distributed.gather_state(loader), or merge_states of every rank's state."
            )
        return state

    def _own_state(self) -> dict[str, Any]:
        """The state of this rank, without a warning that it is one of several."""
        finished = self.position.finished if self.position.waits_for_ranks else None
        return self._describe_state(finished.in_last_epoch() if finished else self.position.latest(self._plan))

    def _describe_state(self, run: Pass) -> dict[str, Any]:
        """The state of a pass as plain values."""
        state, pipeline = run.state(), run.plan.pipeline
        if pipeline.digest and state.lanes is None:  # some checkpoints restore only keys that a state always has
            state = replace(state, digest=RowDigest())
        return pipeline.state_dict(state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Start from a state. If it does not fit, this raises, says what differs, and changes nothing.

            loader.load_state_dict(torch.load("checkpoint.pt", weights_only=True)["loader"])

        ``state_dict`` is what :meth:`state_dict` returned, in this run or another, or what
        :func:`midepoch.merge_states` or ``midepoch.distributed.gather_state`` made of the states of all ranks. After
        the state of the last batch of an epoch the next loop yields nothing, and the one after it is the next epoch.
        This may be called at any time. Iterators from before are out of date: they raise when they are advanced.
        """
        self.position.load_state_dict(self._plan, state_dict)

    save_state = state_dict
    restore_state = load_state_dict

    def reshard(self, num_shards: int, index: int, *, at: Mapping[str, Any]) -> None:
        """Continue as rank ``index`` of ``num_shards``, from a state, without opening anything again.

            loader.reshard(num_shards=5, index=2, at=last_committed_state)
            for batch in loader: ...

        For elastic trainers: when a process leaves or joins, the others call this with the state of the last step that
        all had finished, and what was delivered since is delivered again. One state does for all ranks if the pipeline
        is counted; else ``at`` is what ``merge_states`` made of the states of all ranks. Iterators from before are out
        of date. Ranks are not compared from then on. If it raises, nothing has changed.
        """
        ranks, rank = check_shard(num_shards, index)
        of_dataset = plan_of(self.dataset)  # type: ignore[arg-type]
        plan = self._options.plan(replace(of_dataset, ranks=ranks, rank=rank, sharded_by="user"))
        self.position.load_state_dict(plan, at)
        self._plan, self._number = plan, None

    @property
    def is_padding(self) -> bool:
        """True if the last batch that the loop received is one that keeps ranks even. It is in no state."""
        return self.position.waits_for_ranks or self.position.latest(self._plan).is_padding

    def __repr__(self) -> str:
        if "_plan" not in vars(self):  # its constructor has raised, and a debugger shows it
            return object.__repr__(self)
        options = {
            "num_workers": self.num_workers,
            "even": self._plan.even,
            "persistent_workers": self.persistent_workers,
        }
        return describe_plan("midepoch.Loader", self._plan, epoch=self.epoch, options=options)

    def __len__(self) -> int:
        """The number of batches that this rank gets in a loop, known without reading.

        It is that of an epoch from its beginning, as the dataset is now. After a resume, also with rows that
        :meth:`midepoch.Dataset.without` has taken out of an epoch under way, :attr:`batches_left` is what is left.
        """
        return self._plan.length(self.position.epoch)

    def __bool__(self) -> bool:
        """True, even if the length is unknown."""
        return True

    @property
    def accumulation(self) -> int:
        """The number of batches that this rank gets in a step: more than one only with ``global_batch_size``."""
        return self._plan.items_per_step

    @property
    def batches_left(self) -> int | None:
        """The number of batches from here to the end of the epoch, known without reading; None if it is not known."""
        progress = self.position.latest(self._plan).progress()
        session = progress.session
        if not session.counted or session.is_endless:
            return None
        return self._plan.items_of(session, progress.reader) - progress.items

    def progress(self) -> EpochProgress:
        """How far this rank is in its epoch: ``epoch``, ``step`` and ``steps``, which count those before a resume too.

            print(loader.progress())  # epoch 0, step 1 of 15 (6.7%)

        done = loader.progress()
        for batch in tqdm(loader, initial=done.step, total=done.steps): ...

        Where lengths are known, it also has ``tokens`` and ``epoch_tokens``: those that all ranks have delivered of the
        epoch, and all that it has. They are counted when they are asked for or printed, each row once in an epoch.
        """
        return epoch_progress(self.position.latest(self._plan))

    def metrics(self) -> dict[str, float]:
        """How the last loop that was started goes: plain numbers by name, to log. Empty before any.

            writer.add_scalar("data/waited_share", loader.metrics()["waited_share"], step)

        ``waited`` are the seconds in which the loop waited for batches, ``waited_share`` is their share of all
        ``seconds``. ``read``, ``processed`` and ``transported`` say what took them: reading rows, making items of rows
        by functions, batches and packs, and sending items from workers. They are sums over all workers of this rank;
        ``received`` are the seconds of ``waited`` in which this process made items of what had arrived from workers,
        and ``workers_idle`` those in which workers were as far ahead as they may be. ``functions`` are the
        seconds in your functions, ``fetched`` and ``decoded`` those of requests to a store and of decoding, in all
        threads. ``rows_per_second`` counts whole batches, of this rank, where batches have a fixed number of rows;
        ``rows_read`` all rows that were read, also ahead. Packs have ``pack_fill``, the share of their places that are
        not padding, mixtures the share of each part, as ``share_name``. ``cache_hits``, ``cache_misses`` and
        ``retries`` are those of object stores.

        Where lengths are known, ``tokens`` are those that all ranks have delivered of the epoch, those before a resume
        included, and ``tokens_per_second`` the mean of the ranks. Counted mixtures have ``items_name`` and
        ``tokens_name`` of each part. The first call looks up the lengths of all rows delivered, the next ones only
        those since.
        """
        return {} if self._meter is None else self._meter.metrics()

    def digest(self) -> int:
        """The digest of what this rank delivered of the epoch: of the one under way, or of the one just finished.

            loader = Loader(dataset, batch_size=64, digest=True)
            for batch in loader: ...
            assert loader.digest() == dataset.digest()

        It is the sum, modulo 2**64, of a hash of each row, or, after ``pack``, of each pack. The order makes no
        difference, and the digests of all ranks add up to that of the epoch: the one of rank 0 has what all ranks
        delivered before a resume. Raises if the Loader keeps none, or it is not known.
        """
        return digest_of(self._digested())

    def check_digest(self) -> int:
        """The same, if it is the digest of the rows that should have been delivered. Raises if not.

            for batch in loader: ...
            loader.check_digest()

        It may be called at any step. What should have been delivered follows from the order of the epoch by arithmetic,
        so nothing is read, and each rank checks its own part and what all had delivered when it resumed. Raises
        :class:`~midepoch.DigestMismatchError` if rows were lost, repeated or exchanged, and ``ValueError`` if the
        items are not counted.
        """
        return check_digest(self._digested())

    def _digested(self) -> Progress:
        """The progress in the epoch under way, or in the one that the last loop has finished."""
        run, finished = self.position.latest(self._plan), self.position.finished
        return (finished.in_last_epoch() if finished and run.state().lanes is None else run).progress()

    def trace(self, step: int, *, epoch: int | None = None, ranks: int | None = None) -> pa.Table:
        """The rows of a step of an epoch on all ranks, as an Arrow table with one line a row. Nothing is read.

            print(loader.trace(41_200).to_pandas())

        ``step`` counts from the beginning of the epoch, over all resumes. The columns are epoch, step, rank, item (its
        number in the epoch), place (in the batch), document (in the pack), part (of a mixture), file, row, and start
        and stop (which tokens of the row are in the pack). ``epoch`` counts from 0 and is by default the present one.
        With ``ranks``, the epoch is traced as if that number of ranks read it from its beginning. A batch that only
        keeps ranks even has no line.

        Raises if items are not counted: call ``survey()`` first.
        """
        return trace(self.position.latest(self._plan), step, epoch=epoch, ranks=ranks)

    def find(self, file: str, row: int, *, epoch: int | None = None, ranks: int | None = None) -> pa.Table:
        """When a row comes: the lines of :meth:`trace`, of any step of an epoch, that have this row of a file.

            loader.find("part-0007.parquet", 1234)

        ``file`` is the name of a file, its path, or the end of that; ``row`` counts from 0 in the file. A row that is
        cut into several packs has several lines. A row that no item has, because a filter drops it, has none.
        ``epoch`` and ``ranks`` are those of :meth:`trace`. Raises if the dataset has no such file or row, or
        if items are not counted.
        """
        return find(self.position.latest(self._plan), file, row, epoch=epoch, ranks=ranks)


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """What a Loader adds to the plan of its dataset, whatever the number of ranks."""

    batch_size: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    drop_last: bool = False
    collate_fn: Callable[..., Any] | None = None
    num_workers: int = 0
    even: Even | Literal["auto"] | None = "auto"
    balance: Literal["cost"] | None = None
    digest: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "global_batch_size", "micro_batch_size"):
            if (size := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_integer(name, size, least=1))
        whole, micro = self.global_batch_size, self.micro_batch_size
        if (whole is None) != (micro is None):
            raise ValueError("Pass both global_batch_size and micro_batch_size, or neither.")
        if whole is not None and self.batch_size is not None:
            raise ValueError("Pass batch_size, or global_batch_size and micro_batch_size, not both.")
        if whole is not None and micro is not None and whole % micro:
            raise ValueError(f"global_batch_size is {whole}, which is no multiple of micro_batch_size, {micro}.")
        check_choice("even", self.even, ("auto", "pad", "drop", None))
        if self.drop_last and self.rows is None:
            raise ValueError(
                "drop_last needs a batch_size; for batches of the dataset use .batch(n, drop_last_batch=True)."
            )
        check_choice("balance", self.balance, ("cost", None))
        if self.balance is not None and self.batches_per_step is None:
            raise ValueError("balance='cost' shares the micro-batches of a step: pass global_batch_size too.")
        if self.batches_per_step is not None and self.even is None:
            raise ValueError("global_batch_size needs even='pad' or even='drop', so that the last step is whole.")

    @property
    def rows(self) -> int | None:
        """The number of items of the dataset in a batch; None if an item is a batch already, or a row alone."""
        return self.batch_size if self.micro_batch_size is None else self.micro_batch_size

    @property
    def batches_per_step(self) -> int | None:
        """The number of batches of all ranks that make one step; None if a step is one batch of each rank."""
        if self.global_batch_size is None or self.micro_batch_size is None:
            return None
        return self.global_batch_size // self.micro_batch_size

    def plan(self, dataset: Plan) -> Plan:
        """The plan of a Loader over a dataset with this plan."""
        even = self._even(dataset)
        pipeline, batching = dataset.pipeline, self._batching(dataset.pipeline)
        if self.collate_fn is None:
            pipeline = with_tensors(pipeline.with_stages(*batching))
        else:  # it gets the items as they are delivered
            pipeline = replace(pipeline, stages=(*pipeline.stages, *batching))
        plan = replace(
            dataset,
            lanes=dataset.lanes or self.batches_per_step or dataset.ranks * max(1, self.num_workers),
            even=even,
            items_per_step=self._items_per_step(dataset),
            pipeline=replace(pipeline, balanced=self._balanced(dataset), digest=self.digest),
        )
        if even is None and plan.epochs_per_loop != 1 and plan.ranks > 1 and plan.counted:
            raise ValueError(
                f"repeat() over {plan.ranks} ranks needs even='pad' or even='drop': ranks may have different numbers "
                "of batches in an epoch, and would begin the next epoch at different steps."
            )
        return plan

    def _even(self, dataset: Plan) -> Even | None:
        reason = sentence(dataset.why_not_counted())
        if reason is not None and self.batches_per_step is not None:
            raise ValueError(f"global_batch_size needs a pipeline whose number of items is known. {reason}")
        if self.even == "auto":
            if dataset.ranks > 1 and reason is not None:
                log_once(
                    "Ranks may run out of batches at different steps, and a collective operation of the others would "
                    f"wait for them. {reason} Or iterate over "
                    "midepoch.distributed.in_step(loader), or pass even=None if ranks do not wait for each other."
                )
            in_steps = dataset.ranks > 1 or self.batches_per_step is not None
            return "pad" if in_steps and reason is None else None
        if self.even is not None and reason is not None:
            raise ValueError(
                f"even={self.even!r} needs a pipeline whose number of items is known; no rank knows how many the "
                f"others have. {reason} Or pass even='auto' and iterate over midepoch.distributed.in_step(loader)."
            )
        return self.even

    def _items_per_step(self, dataset: Plan) -> int:
        if self.batches_per_step is None:
            return 1
        if dataset.mode == "file":
            raise ValueError(
                "global_batch_size with shard(mode='file') is not possible: ranks have other rows on each number of "
                "ranks. Use mode='example'."
            )
        if self.batches_per_step % dataset.ranks:
            raise ValueError(
                f"A global batch has {count('micro-batch', self.batches_per_step, 'micro-batches')}, which "
                f"{dataset.ranks} ranks cannot share evenly. Choose a number of ranks that divides it, or another "
                "global_batch_size or micro_batch_size."
            )
        return self.batches_per_step // dataset.ranks

    def _balanced(self, dataset: Plan) -> int | None:
        if self.balance is None:
            return None
        if not is_packed(dataset.pipeline):
            raise ValueError(
                "balance='cost' needs the lengths of documents, which are known only of a dataset that is packed: use "
                "dataset.pack(...) or dataset.batch_by_tokens(...), before or after mixing."
            )
        return self.batches_per_step

    def _batching(self, pipeline: Pipeline) -> tuple[Stage, ...]:
        one_by_one = self.batches_per_step is not None and self.rows == 1 and self.collate_fn is None
        if one_by_one and pipeline.item_spec[1]:  # items are batches, and each of them is a micro-batch
            return ()
        if self.rows is not None:
            return (Batch(size=self.rows, drop_last=self.drop_last, collate=self.collate_fn),)
        return () if self.collate_fn is None else (Collate(function=self.collate_fn),)


def with_tensors(pipeline: Pipeline) -> Pipeline:
    """A pipeline whose batches and packs have tensors, unless the user chose a form. No fingerprint knows of it."""
    if pipeline.chooses_form:
        return pipeline
    stages = pipeline.stages
    for number, stage in reversed(list(enumerate(stages))):
        if isinstance(stage, Batch):  # the types of columns are those of the files, if no function was called
            return replace(
                pipeline, stages=(*stages[:number], replace(stage, default_form="torch"), *stages[number + 1 :])
            )
        if stage.functions:
            break
    if pipeline.item_spec == ("python", False):  # single rows
        return pipeline
    return replace(pipeline, stages=(*stages, Convert(form="torch", by_loader=True)))


def sentence(reason: str | None) -> str | None:
    """A reason, written as a sentence."""
    return None if reason is None else f"{reason[0].upper()}{reason[1:]}."


def _check_workers(workers: object, num_workers: int, context: object) -> None:
    if workers is None:
        return
    if not hasattr(workers, "starter"):
        raise TypeError(
            f"workers is {workers!r}, which cannot start workers. Pass num_workers=n for processes of this machine, or "
            "workers=midepoch.integrations.ray.RayWorkers() for actors of Ray."
        )
    if not num_workers:
        raise ValueError("workers says who the workers are, and num_workers how many: pass num_workers=n too.")
    if context is not None:
        raise ValueError("multiprocessing_context says how processes are started: leave it out, or leave out workers.")


def _check_dataset(dataset: object, shuffle: bool | None) -> None:
    if not isinstance(dataset, Dataset):
        raise TypeError(f"Loader needs a midepoch dataset, got {type(dataset).__name__}. {way_to_a_dataset(dataset)}")
    if shuffle:
        raise ValueError(
            "A Loader delivers the order of its dataset. Shuffle the dataset instead: "
            "Loader(dataset.shuffle(seed=42), ...)."
        )


def _refuse_samplers(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise TypeError(f"A Loader takes no {name}, because its dataset has the order. {INSTEAD[name]}")


def _warn_if_not_sharded(plan: Plan) -> None:
    """Warn if several ranks were launched and each would read everything."""
    try:
        launched = launched_rank()
    except ValueError:  # shard() reports an environment that makes no sense
        return
    if plan.ranks == 1 and plan.sharded_by is None and launched is not None and launched[1] > 1:
        log_once(
            f"{launched[1]} ranks were launched, and this Loader's dataset is not sharded: every rank reads all rows. "
            "Use Loader(dataset.shard(), ...). If all ranks should read everything, use dataset.shard(1, 0)."
        )


def _context_without_fork() -> Any:
    """The default start method of workers that read an object store, whose clients do not survive a fork."""
    if torch.multiprocessing.get_start_method() != "fork":
        return None
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "midepoch.loader"])  # else every worker imports torch again
    return context


def _watch_columns(in_bulk: Iterator[Iterable[Any]]) -> Iterator[Iterable[Any]]:
    """The batches as they are. A column that is a list in some of them, and a tensor in others, is logged once."""
    are_lists: dict[str, bool] = {}

    def seen(batch: Any) -> Any:
        for name, column in batch.items() if type(batch) is dict else ():
            is_list = type(column) is list
            if are_lists.setdefault(name, is_list) != is_list:
                log_once(
                    f"The column {name!r} is a tensor in some batches and a list in others, because its lists have "
                    "different lengths in some batches only, or a value is null there. For one kind in every batch, "
                    "pad them with dataset.batch_by_tokens or in a collate_fn, or make rows of one length with "
                    "dataset.pack or map, or get Python lists with dataset.with_format('python')."
                )
        return batch

    for batches in in_bulk:
        yield map(seen, batches)
        del batches  # so that the next ones are made in the memory of these
