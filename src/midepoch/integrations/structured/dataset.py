"""Structured files, local or in an object store: a loader in one call, and states that name the splits done."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from midepoch._common.checks import Size, check_integer, parse_size
from midepoch._common.world import launched_rank, torch_worker
from midepoch.checkpoint.state import State
from midepoch.dataset import Dataset
from midepoch.delivery.plan import Plan
from midepoch.formats import file_suffixes
from midepoch.integrations.structured.append import appended
from midepoch.integrations.structured.metrics import Counters, Measure
from midepoch.integrations.structured.progress import Layout, known_of, of_splits
from midepoch.integrations.structured.splits import ShuffleSplits, Splitting
from midepoch.reading import read
from midepoch.sources.files import FileRows
from midepoch.storage.listing import Listing, PathSpec, find
from midepoch.storage.options import CACHE
from midepoch.values.forms import Form

if TYPE_CHECKING:
    from midepoch.integrations.structured.loader import StructuredLoader

OutputFormat = Literal["torch", "numpy", "arrow", "dict"]
WINDOW = 8192


class StructuredDataset(Dataset):
    """The rows of structured files. Its states also say which stretches of which files are done."""

    _num_workers = 0
    _reads: Plan | None = None
    """How the loader of this data set reads it: in batches, in its lanes."""

    def __init__(
        self,
        path: PathSpec,
        format: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        shuffle_buffer_size: int | None = None,
        split_bytes: int | str = "128MiB",
        split_rows: int | None = None,
        output_format: OutputFormat = "dict",
        storage_options: Mapping[str, Any] | None = None,
        partitioning: Literal["hive"] | None = "hive",
        num_ranks: int | None = None,
        rank: int | None = None,
        read_ahead: Size | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: Size = CACHE,
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Open files; :meth:`create_dataloader` says what the arguments mean."""
        if output_format not in get_args(OutputFormat):
            raise ValueError(
                f"output_format is {output_format!r}; it can be {', '.join(map(repr, get_args(OutputFormat)))}."
            )
        sizes = (
            {"most_bytes": check_integer("split_bytes", parse_size("split_bytes", split_bytes), least=1)}
            if split_rows is None
            else {"most_rows": check_integer("split_rows", split_rows, least=1)}
        )
        seed = check_integer("shuffle_seed", shuffle_seed, least=None)
        asked = WINDOW if shuffle_buffer_size is None else shuffle_buffer_size
        window = check_integer("shuffle_buffer_size", asked, least=1)
        listing = find(path, storage_options, suffixes=file_suffixes(format))
        opened = read(
            listing,
            partitioning=_hive(listing, partitioning),
            format=format,
            columns=columns,
            filters=filters,
            read_ahead=read_ahead,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
            index_dir=index_dir,
        )
        opened = self._chosen(opened)
        splitting = Splitting(index=opened.file_rows("splits").index.view, **sizes)
        if shuffle:
            step = ShuffleSplits(seed=seed, window=window, splitting=splitting)
            opened = opened.with_order_step("shuffle", step)
        index, ranks = _ranks(rank, num_ranks)
        if ranks > 1:
            opened = opened.shard(ranks, index)
        form: Form = "python" if output_format == "dict" else output_format
        super().__init__((opened if form == "python" else opened.with_format(form)).plan)
        self._splitting = splitting
        self._shuffle_seed = seed if shuffle else None

    @classmethod
    def create_dataloader(
        cls,
        path: PathSpec,
        format: str | None = None,
        *,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        shuffle_buffer_size: int | None = None,
        split_bytes: int | str = "128MiB",
        split_rows: int | None = None,
        num_workers: int = 0,
        output_format: OutputFormat = "torch",
        storage_options: Mapping[str, Any] | None = None,
        collate_fn: Callable[..., Any] | None = None,
        partitioning: Literal["hive"] | None = "hive",
        num_ranks: int | None = None,
        rank: int | None = None,
        show_progress: bool = False,
        drop_last: bool = False,
        even: Literal["pad", "drop"] | None = None,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: Any = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
        read_ahead: Size | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: Size = CACHE,
        index_dir: str | os.PathLike[str] | None = None,
    ) -> "tuple[StructuredLoader, Self]":
        """A loader of batches, and its data set. They stand at one place: a state of either is that of both.

        ``path`` is a file, a folder, a glob or a list of those; ``format`` insists on one, and of a folder reads only
        files whose names end like it; without it the files tell.
        ``columns`` and ``filters`` are not read where they need not be; ``partitioning="hive"`` makes columns of
        folders named key=value, if there are any. ``shuffle`` permutes splits, and the rows inside windows of about
        ``shuffle_buffer_size`` rows, anew in every epoch. A split is a stretch of a file of about ``split_bytes``, or
        of ``split_rows`` rows, and at least one block of it. ``rank`` and ``num_ranks`` come from
        ``torch.distributed`` or the launcher where there is one. ``storage_options``, ``read_ahead``, ``cache_dir``,
        ``cache_bytes`` and ``index_dir`` are those of :func:`midepoch.read`, and all others those of
        :class:`midepoch.Loader`.
        """
        from midepoch.integrations.structured.loader import StructuredLoader

        dataset = cls(
            path,
            format,
            columns=columns,
            filters=filters,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            shuffle_buffer_size=shuffle_buffer_size,
            split_bytes=split_bytes,
            split_rows=split_rows,
            output_format=output_format,
            storage_options=storage_options,
            partitioning=partitioning,
            num_ranks=num_ranks,
            rank=rank,
            read_ahead=read_ahead,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
            index_dir=index_dir,
        )._measured(num_workers)
        loader = StructuredLoader(
            dataset,
            batch_size=batch_size,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            multiprocessing_context=multiprocessing_context,
            drop_last=drop_last,
            even=even,
            worker_init_fn=worker_init_fn,
            timeout=timeout,
        )
        dataset._feed(loader, show_progress)
        return loader, dataset

    def _feed(self, loader: "StructuredLoader", show_progress: bool) -> None:
        """Know the loader of this data set, with which it stands at one place."""
        loader.show_progress = show_progress
        self._reads, self._num_workers = loader.plan, loader.num_workers

    def _chosen(self, opened: Dataset) -> Dataset:
        """Which of the files' rows there are, before any shuffle: all."""
        return opened

    def state_dict(self) -> dict[str, Any]:
        """Where the data set stands, what the loop has received and nothing else, with the splits that are done.

        ``completed_shards`` has, for each lane, how many of its splits are done and the last of them by name, and
        ``splits_under_way`` those of which some rows are delivered. Both are bounded, however many splits there are.
        """
        state = self.position.state_dict(self._reads or self.plan)
        told = self._told(self.position.state())
        return {**state, "_num_workers": self._num_workers, "_shuffle_seed": self._shuffle_seed, **told}

    def load_state_dict(self, state: Mapping[str, Any], *, new_files: Literal["error", "append"] = "error") -> None:
        """Go to where a state says; whatever does not fit is told, and nothing changes.

        With ``new_files="append"`` files may have been added since: the epoch goes on as it was, and their rows come
        behind it. The next epoch is one of all files.
        """
        if new_files not in ("error", "append"):
            raise ValueError(f"new_files is {new_files!r}; it can be 'error' or 'append'.")
        plan = self._reads or self.plan
        self.position.load_state_dict(plan, appended(state, plan.pipeline) if new_files == "append" else state)

    def get_metrics(self) -> dict[str, Any]:
        """Rows, bytes of them in their files, and seconds that reading took: in all, and of each worker.

        They are counted where rows are read, which is ahead of the loop, from the moment the loader was made.
        """
        meter = self.plan.pipeline.find(Measure)
        workers = [] if meter is None else meter.counters.told()
        return {name: sum(one[name] for one in workers) for name in ("rows", "bytes", "seconds")} | {"workers": workers}

    def _measured(self, num_workers: int) -> Self:
        """The same, counting."""
        workers = max(1, check_integer("num_workers", num_workers))
        index = self.file_rows("get_metrics").index.view
        meter = Measure(counters=Counters(workers), index=index, worker=torch_worker)
        pipeline = self.plan.pipeline
        return self.with_plan(replace(self.plan, pipeline=replace(pipeline, stages=(meter, *pipeline.stages))))

    def _told(self, state: State) -> dict[str, Any]:
        """What a state says of splits. Where an order is not one of splits, that is nothing."""
        rows = self.plan.pipeline.source
        nothing: dict[str, Any] = {"completed_shards": [], "splits_under_way": []}
        if not isinstance(rows, FileRows) or state.lanes is None or state.mode != "example" or state.appended:
            return nothing
        if not of_splits(rows):
            return nothing
        layout: Layout | None = self.__dict__.get("_layout")
        if layout is None or (layout.epoch, layout.lanes) != (state.epoch, state.lanes):
            layout = Layout(rows, self._splitting, epoch=state.epoch, lanes=state.lanes)
            self._layout = layout
        return layout.told(known_of(state))

    def with_plan(self, plan: Plan) -> Self:
        """A dataset of the same splits with another plan."""
        made = super().with_plan(plan)
        made._splitting, made._shuffle_seed = self._splitting, self._shuffle_seed
        return made

    def __getstate__(self) -> dict[str, Any]:
        own = {"splitting": self._splitting, "seed": self._shuffle_seed, "workers_of_loader": self._num_workers}
        return {**super().__getstate__(), **own}

    def __setstate__(self, values: dict[str, Any]) -> None:
        super().__setstate__(values)
        self._splitting, self._shuffle_seed = values["splitting"], values["seed"]
        self._num_workers = values["workers_of_loader"]


def _hive(listing: Listing, partitioning: Literal["hive"] | None) -> Literal["hive"] | None:
    """The partitioning that was asked for, where a folder with files is named key=value."""
    if partitioning not in (None, "hive"):
        raise ValueError(f"partitioning is {partitioning!r}; it can be 'hive' or None.")
    return partitioning if any("=" in name.rpartition("/")[0] for name in listing.names) else None


def _ranks(rank: int | None, num_ranks: int | None) -> tuple[int, int]:
    """This process's rank and how many there are: one, where nobody says otherwise."""
    if (rank is None) != (num_ranks is None):
        raise ValueError(f"rank is {rank!r} and num_ranks is {num_ranks!r}; pass both, or neither.")
    if rank is not None and num_ranks is not None:
        ranks = check_integer("num_ranks", num_ranks, least=1)
        if check_integer("rank", rank) >= ranks:
            raise ValueError(f"rank is {rank} of {ranks}; it must lie in 0 … {ranks - 1}.")
        return rank, ranks
    return launched_rank() or (0, 1)
