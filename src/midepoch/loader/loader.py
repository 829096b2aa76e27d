"""Loader: how users construct one, and what they may pass."""

import os
from collections.abc import Callable, Mapping
from copy import copy
from itertools import count as count_from
from typing import Any, Literal, TypeVar, Unpack, overload
from weakref import WeakSet

import torch.multiprocessing
import torch.utils.data

from midepoch._common.checks import check_integer
from midepoch._common.once import log_once
from midepoch._common.world import launched_rank
from midepoch.dataset import Dataset
from midepoch.dataset.dataset import Item, Made, Row, Table, plan_of, start_point_of
from midepoch.delivery.metrics import OnMetrics
from midepoch.delivery.plan import Even, Plan
from midepoch.loader.column_kinds import ColumnKinds
from midepoch.loader.delivering import DeliveringLoader
from midepoch.loader.options import LoaderArguments, LoaderOptions, micro_batches
from midepoch.workers.device import check_device, pins

OneTable = TypeVar("OneTable", bound=Table)
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


class Loader(DeliveringLoader[Item]):
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
    ``on_metrics`` is called with :meth:`metrics` after each ``metrics_every`` batches.

    With ``global_batch_size`` and ``micro_batch_size`` in place of ``batch_size``, a step is :attr:`accumulation`
    batches of every rank, and has the same rows on any number of ranks that divides the number of micro-batches. The
    last step of an epoch is whole, by the same padding or dropping. Take checkpoints between two steps. With
    ``balance="cost"``, for packs, a rank gets those micro-batches of the step that make the attention costs of ranks
    nearly equal: the sums of the squares of the lengths of their documents. The rows of the step are the same.

    ``num_workers`` processes read for this rank; with 0 the process of the loop reads itself. They start with a loop
    and stop at its end; ``persistent_workers=True`` keeps them for the next one. ``worker_init_fn`` is called once in
    each worker, with its number, before it reads. If a worker sends nothing for ``timeout`` seconds while the loop
    waits for it, that raises; 0 is no limit. ``pin_memory`` puts the tensors of a batch into pinned memory, for loops
    that copy them to a CUDA device themselves.

    Workers, ranks, batch size, prefetching and start method may all change when a run is resumed. Workers that read
    an object store are started by forkserver, unless ``multiprocessing_context`` is set. A worker is ahead of the loop
    by 32 MiB (more if it makes larger windows at once), or by about ``prefetch_factor`` batches if that is set.

    With ``device="cuda"``, or any other device of torch, the tensors of a batch arrive there. They are copied on a CUDA
    stream of their own while the loop works on the batch before, straight from the memory that the workers share, which
    is pinned: ``pin_memory`` and ``.to(device)`` are not needed. Tensors are looked for in mappings, lists, tuples and
    dataclasses; other objects are asked by their method ``to``. The state counts what the loop received, as always.

    A copy of a Loader starts where the next loop of the Loader would, with a position and workers of its own.
    ``set_epoch`` of its own ``dataset`` reaches it; after ``deepcopy`` and ``pickle`` that is a copy too.
    """

    @overload
    def __init__(
        self: "Loader[Made]",
        dataset: Dataset,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        *,
        collate_fn: Callable[..., Made],
        global_batch_size: int | None = None,
        micro_batch_size: int | None = None,
        balance: Literal["cost"] | None = None,
        **others: Unpack[LoaderArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: "Loader[Made]",
        dataset: Dataset[Made],
        batch_size: None = None,
        shuffle: bool | None = None,
        *,
        collate_fn: None = None,
        **others: Unpack[LoaderArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: "Loader[Row]",
        dataset: Dataset[Row],
        batch_size: int,
        shuffle: bool | None = None,
        *,
        collate_fn: None = None,
        **others: Unpack[LoaderArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: "Loader[OneTable]",
        dataset: Dataset[OneTable],
        batch_size: int,
        shuffle: bool | None = None,
        *,
        collate_fn: None = None,
        **others: Unpack[LoaderArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: "Loader[Any]",
        dataset: Dataset,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        *,
        collate_fn: None = None,
        global_batch_size: int | None = None,
        micro_batch_size: int | None = None,
        balance: Literal["cost"] | None = None,
        **others: Unpack[LoaderArguments],
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
        check_ranks: bool = True,
        device: "str | torch.device | None" = None,
        digest: bool = False,
        on_metrics: OnMetrics | None = None,
        metrics_every: int = 100,
        sampler: None = None,
        batch_sampler: None = None,
        generator: None = None,
    ) -> None:
        _check_dataset(dataset, shuffle)
        _refuse_samplers(sampler=sampler, batch_sampler=batch_sampler, generator=generator)
        num_workers = check_integer("num_workers", num_workers)
        batch_size = None if batch_size is None else check_integer("batch_size", batch_size, least=1)
        checked_device = check_device(device, pin_memory=pin_memory)
        if on_metrics is not None and not callable(on_metrics):
            raise TypeError(f"on_metrics must be a function of the metrics, not a {type(on_metrics).__name__}.")
        metrics_every = check_integer("metrics_every", metrics_every, least=1)
        batch_size, batches_per_step = micro_batches(batch_size, global_batch_size, micro_batch_size)
        options = LoaderOptions(
            batch_size=batch_size,
            drop_last=drop_last,
            collate=collate_fn,
            workers=num_workers,
            even=even,
            batches_per_step=batches_per_step,
            balance=balance,
            digest=digest,
        )
        plan = options.plan(plan_of(dataset))
        if num_workers and multiprocessing_context is None and not plan.pipeline.source.survives_fork:
            multiprocessing_context = _context_without_fork()
        super().__init__(
            dataset,
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
        self._start_point = start_point_of(dataset).for_loader()
        self._options, self._plan = options, plan
        self._pools = WeakSet()
        self._ahead, self._device = prefetch_factor, checked_device
        self._on_metrics, self._metrics_every = on_metrics, metrics_every
        self._column_kinds = ColumnKinds()
        self._number = next(_numbers) if plan.ranks > 1 and check_ranks else None
        if pin_memory and not pins(self):
            log_once("pin_memory=True changes nothing on this machine: torch finds no CUDA device.")
        _warn_if_not_sharded(plan)
        plan.pipeline.source.log_mixing(plan.lanes or plan.ranks)

    def __getstate__(self) -> dict[str, Any]:
        none = dict.fromkeys(("_idle_pool", "_waiting", "_meter", "_finished_run"))
        own = {"_start_point": copy(self._start_point), **none}
        kept = {name: value for name, value in self.__dict__.items() if name != "_pools"}
        return {**kept, **own}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._pools = WeakSet()
        start_point_of(self.dataset).linked_to(self._start_point)  # type: ignore[arg-type]
        self._number = None if self._number is None else next(_numbers)


def _check_dataset(dataset: object, shuffle: bool | None) -> None:
    if not isinstance(dataset, Dataset):
        raise TypeError(f"Loader needs a midepoch dataset, got {type(dataset).__name__}. {_way_to_a_dataset(dataset)}")
    if shuffle:
        raise ValueError(
            "A Loader delivers the order of its dataset. Shuffle the dataset instead: "
            "Loader(dataset.shuffle(seed=42), ...)."
        )


def _way_to_a_dataset(given: object) -> str:
    """How something that is no midepoch dataset becomes one, in a sentence."""
    if isinstance(given, str | os.PathLike):
        return "Open the files first: Loader(midepoch.read(path), ...)."
    if type(given).__module__.partition(".")[0] == "datasets" or hasattr(given, "cache_files"):
        return "Open a Hugging Face dataset with midepoch.from_hf(dataset), one split of it: dataset['train']."
    if isinstance(given, torch.utils.data.DataLoader):
        return "Pass the dataset that it reads. A Loader takes the place of a DataLoader."
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, Mapping):
        return "Anything with len() and [i] becomes one: Loader(midepoch.from_indexable(dataset), ...)."
    if isinstance(given, torch.utils.data.IterableDataset):
        return (
            "A stream has no positions to resume at. Open the files that it reads: midepoch.read(files). If its rows "
            "can be indexed, use midepoch.from_indexable(rows)."
        )
    return "Make one with midepoch.read(...) of files, or midepoch.from_indexable(...) of what has len() and [i]."


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
