"""StructuredDataset: structured files, local or in an object store, with a DataLoader in one call."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from midepoch._common.checks import Size, check_integer
from midepoch._common.world import torch_worker
from midepoch.checkpoint.state import State
from midepoch.dataset import Dataset
from midepoch.dataset.front_door import FrontDoor
from midepoch.delivery.passes import Pass
from midepoch.delivery.plan import Plan
from midepoch.integrations.structured.append import with_appended_files
from midepoch.integrations.structured.metrics import Counters, Measure
from midepoch.integrations.structured.options import OutputFormat, StructuredOptions, dataset_options, loader_options
from midepoch.integrations.structured.progress import SplitLayout, is_order_of_splits, lane_progress
from midepoch.sources.files import FileRows
from midepoch.storage.block_cache import CACHE
from midepoch.storage.listing import PathSpec

if TYPE_CHECKING:
    from midepoch.integrations.structured.loader import StructuredLoader

BATCH_ROWS = 1024
"""The rows of a batch, by default."""


class StructuredDataset(FrontDoor):
    """The rows of structured files.

        loader, dataset = StructuredDataset.create_dataloader("s3://bucket/rows", "parquet", batch_size=1024)

    Its states also name the splits of files that are done.
    """

    _num_workers = 0
    _loader_plan: Plan | None = None
    """The plan of the loader that :meth:`create_dataloader` made of this dataset."""

    def __init__(
        self,
        path: PathSpec | None = None,
        format: str | None = None,
        batch_size: int | None = None,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = "128MiB",
        split_rows: int | None = None,
        split_strategy: None = None,
        num_workers: int | None = 0,
        output_format: OutputFormat | None = None,
        storage_options: Mapping[str, Any] | None = None,
        collate_fn: Callable[..., Any] | None = None,
        partitioning: Literal["hive"] | None = None,
        num_ranks: int | None = None,
        rank: int | None = None,
        show_progress: bool = False,
        progress_interval_sec: float | None = None,
        shuffle_buffer_size: int | None = None,
        *,
        files: PathSpec | Sequence[Any] | None = None,
        read_ahead: Size | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: Size = CACHE,
        index_dir: str | os.PathLike[str] | None = None,
        trust_shared: bool = False,
        executor: Executor | None = None,
    ) -> None:
        """Open files. :meth:`create_dataloader` explains the arguments, which mean the same there.

        ``path`` names the files, all of ``format`` if that is set; ``columns``, ``filters`` and ``partitioning`` say
        what is read of them. ``shuffle``, ``shuffle_seed``, ``shuffle_buffer_size``, ``split_bytes``, ``split_rows``
        and ``split_strategy`` are about the order of rows, ``num_ranks`` and ``rank`` about the shard.
        ``storage_options``, ``read_ahead``, ``cache_dir``, ``cache_bytes``, ``index_dir``, ``trust_shared`` and
        ``executor`` are those of :func:`midepoch.read`.

        The dataset yields rows, or batches of ``batch_size`` rows. By default rows have Python values, and batches,
        also those that a Loader makes of rows, have tensors. ``output_format`` says what both have. ``files``, in place
        of ``path``, is a list of files as torch-dataloader-utils has it: of paths, or of objects with a ``path``; then
        ``batch_size`` is by default 1024. The arguments are in the order of that library. ``num_workers``,
        ``collate_fn``, ``show_progress`` and ``progress_interval_sec`` are among them; they are for the loader, and a
        dataset does not use them.
        """
        arguments = locals()
        if isinstance(path, list | tuple) and any(_is_file_object(one) for one in path) and files is None:
            path, files = None, path
        if (path is None) == (files is None):
            raise TypeError(
                "Pass path, which names files, folders or globs, or files, a list of files: one of the two."
            )
        if files is not None:
            listed = [files] if isinstance(files, str | os.PathLike) else files
            path = [os.fspath(getattr(file, "path", file)) for file in listed]
            batch_size = BATCH_ROWS if batch_size is None else batch_size
        form = output_format or ("dict" if batch_size is None else "torch")
        options = StructuredOptions.of(arguments, output_format=form)
        assert path is not None
        self._begin(options.open(path, format), options)
        if output_format == "dict":  # said by the user, so it holds for the batches of a Loader too
            Dataset.__init__(self, self.with_format("python").plan)
        if batch_size is not None:
            Dataset.__init__(self, self.batch(batch_size).plan)

    def _begin(self, rows: Dataset, options: StructuredOptions) -> None:
        """Start at the beginning of rows, in the order, shard and format that the options ask for."""
        self._splitting = options.splitting(rows.file_rows("splits").index.view)
        self._shuffle_seed = options.seed
        Dataset.__init__(self, options.arrange(rows, self._splitting).plan)

    @classmethod
    def create_dataloader(
        cls,
        path: PathSpec,
        format: str | None = None,
        batch_size: int = BATCH_ROWS,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = "128MiB",
        split_rows: int | None = None,
        split_strategy: None = None,
        num_workers: int | None = 0,
        output_format: OutputFormat = "torch",
        storage_options: Mapping[str, Any] | None = None,
        collate_fn: Callable[..., Any] | None = None,
        partitioning: Literal["hive"] | None = None,
        num_ranks: int | None = None,
        rank: int | None = None,
        show_progress: bool = False,
        progress_interval_sec: float | None = None,
        shuffle_buffer_size: int | None = None,
        *,
        drop_last: bool = False,
        even: Literal["auto", "pad", "drop"] | None = "auto",
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
        trust_shared: bool = False,
        executor: Executor | None = None,
    ) -> "tuple[StructuredLoader, Self]":
        """A loader of batches, and its dataset. The two share one position, so a state of either resumes both.

            loader, dataset = midepoch.StructuredDataset.create_dataloader("data", "parquet", batch_size=32)

        ``path`` is a file, a folder, a glob or a list of those. ``format`` sets the format of all files, and of a
        folder reads only the files with the suffixes of that format; by default each file is detected. Only
        ``columns`` are read, and row groups that ``filters`` rule out are skipped. ``partitioning="hive"`` makes
        columns of folders named key=value, also of those above a single file; by default they are only folders.

        A batch has ``batch_size`` rows; with ``drop_last`` the last one of a lane is left out if it has fewer. The
        dataset yields batches too, and ``collate_fn`` is called on each batch. A batch is what ``output_format`` says:
        a dict of tensors ("torch"), of arrays ("numpy") or of lists ("dict"), or a record batch ("arrow").
        ``num_workers=None`` is 0.

        ``shuffle`` permutes the splits, and the rows inside windows of about ``shuffle_buffer_size`` rows (default
        8192; with 0 rows keep their order), differently in every epoch, by ``shuffle_seed``. If only
        ``shuffle_buffer_size`` is passed, splits stay in the order of the files. A split is a part of a file of about
        ``split_bytes`` bytes, or of ``split_rows`` rows; it has at least one block. With ``split_bytes=None`` it is a
        whole file. A ``split_strategy`` is not needed: workers share rows evenly. ``rank`` and ``num_ranks`` come by
        default from ``torch.distributed`` or the launcher's environment. ``show_progress`` shows a progress bar on a
        terminal, drawn every ``progress_interval_sec`` seconds.

        ``storage_options``, ``read_ahead``, ``cache_dir``, ``cache_bytes``, ``index_dir``, ``trust_shared`` and
        ``executor`` are those of :func:`midepoch.read`. ``num_workers``, ``even``, ``pin_memory``,
        ``prefetch_factor``, ``persistent_workers``, ``multiprocessing_context``, ``worker_init_fn`` and ``timeout`` are
        those of :class:`midepoch.Loader`.
        """
        arguments = locals()
        return cls(path, format, **dataset_options(arguments))._with_loader(**loader_options(arguments))

    def _with_loader(
        self,
        *,
        batch_size: int,
        drop_last: bool,
        num_workers: int | None,
        show_progress: bool,
        progress_interval_sec: float | None,
        **others: Any,
    ) -> "tuple[StructuredLoader, Self]":
        """A loader that reads this dataset and counts what it reads, and the dataset that it reads."""
        from midepoch.integrations.structured.loader import StructuredLoader  # imports torch

        workers = 0 if num_workers is None else num_workers
        dataset = self._measured(workers)
        if not dataset.plan.pipeline.chooses_form:  # "dict" means lists in batches too
            dataset = dataset.with_format("python")
        dataset = dataset.batch(batch_size, drop_last)
        loader = StructuredLoader(dataset, num_workers=workers, **others)
        loader.show_progress = show_progress
        if progress_interval_sec is not None:
            loader.progress_interval = float(progress_interval_sec)
        dataset.share_position_of(loader)
        return loader, dataset

    def share_position_of(self, loader: "StructuredLoader") -> None:
        """Make this dataset and its loader a pair with one position."""
        self._loader_plan, self._num_workers, self._position = loader.plan, loader.num_workers, loader.position

    def _measured(self, num_workers: int) -> Self:
        """This dataset with a first stage that counts rows, bytes and time."""
        workers = max(1, check_integer("num_workers", num_workers))
        index = self.file_rows("get_metrics").index.view
        meter = Measure(counters=Counters(workers), index=index, worker=torch_worker)
        pipeline = self.plan.pipeline
        return self.with_plan(replace(self.plan, pipeline=replace(pipeline, stages=(meter, *pipeline.stages))))

    def state_dict(self) -> dict[str, Any]:
        """What the loop has received, and nothing else.

            torch.save(dataset.state_dict(), "data.pt")

        The loader of :meth:`create_dataloader` has the same state.
        """
        self.position.check_known()
        return self.describe_state(self.position.latest(self._loader_plan or self.plan))

    def describe_state(self, run: Pass) -> dict[str, Any]:
        """The state of a pass as plain values, with the splits that are done.

        ``completed_shards`` has, for each lane, the number of splits done and the last of them by name;
        ``splits_under_way`` has the splits of which some rows are delivered. Both stay small with any number of splits.
        """
        state = super().describe_state(run)
        own = {"_num_workers": self._num_workers, "_shuffle_seed": self._shuffle_seed}
        return {**state, **own, **self._split_report(run.state())}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, new_files: Literal["error", "append"] = "error"
    ) -> None:
        """Resume at a state. If it does not fit, this raises, says what differs, and changes nothing.

            dataset.load_state_dict(torch.load("data.pt", weights_only=True))

        ``state_dict`` is a state of this dataset or of its loader. With ``new_files="append"`` files may have been
        added since. The epoch then continues as it was, and the rows of the new files come after it. The next epoch has
        all files from its start.
        """
        if new_files not in ("error", "append"):
            raise ValueError(f"new_files is {new_files!r}; it can be 'error' or 'append'.")
        plan = self._loader_plan or self.plan
        if new_files == "append":
            state_dict = with_appended_files(state_dict, plan.pipeline)
        self.position.load_state_dict(plan, state_dict)

    def get_metrics(self) -> dict[str, Any]:
        """Rows read, their bytes in the files, and the seconds that reading took: the sums, and for each worker.

            print(dataset.get_metrics()["rows"])

        Workers count what they read, which is ahead of what the loop receives. The counts start with the loader.
        """
        meter = self.plan.pipeline.find(Measure)
        workers = [] if meter is None else meter.counters.totals()
        return {name: sum(one[name] for one in workers) for name in ("rows", "bytes", "seconds")} | {"workers": workers}

    def reset_metrics(self) -> None:
        """Let the counts of :meth:`get_metrics` start again from 0, in all workers.

            dataset.reset_metrics()

        What workers have read ahead by then is not counted again.
        """
        meter = self.plan.pipeline.find(Measure)
        if meter is not None:
            meter.counters.reset()

    def _split_report(self, state: State) -> dict[str, Any]:
        """The splits that are done at a state; none where the order of rows is not one of splits."""
        rows = self.plan.pipeline.source
        if (
            not isinstance(rows, FileRows)
            or state.lanes is None
            or state.mode != "example"
            or state.appended
            or not is_order_of_splits(rows)
        ):
            return {"completed_shards": [], "splits_under_way": []}
        layout: SplitLayout | None = self.__dict__.get("_layout")
        if layout is None or (layout.epoch, layout.lanes) != (state.epoch, state.lanes):
            layout = SplitLayout(rows, self._splitting, epoch=state.epoch, lanes=state.lanes)
            self._layout = layout
        return layout.report(lane_progress(state))

    def with_plan(self, plan: Plan) -> Self:
        """A dataset of the same splits at the beginning of another plan."""
        made = super().with_plan(plan)
        made._splitting, made._shuffle_seed = self._splitting, self._shuffle_seed
        return made

    def with_other_rows(self, plan: Plan) -> Dataset:
        """A plain dataset: its files are not divided into the splits of these."""
        return Dataset(plan)

    def __getstate__(self) -> dict[str, Any]:
        own = {"splitting": self._splitting, "seed": self._shuffle_seed, "workers_of_loader": self._num_workers}
        return {**super().__getstate__(), **own}

    def __setstate__(self, values: dict[str, Any]) -> None:
        super().__setstate__(values)
        self._splitting, self._shuffle_seed = values["splitting"], values["seed"]
        self._num_workers = values["workers_of_loader"]


def _is_file_object(value: Any) -> bool:
    """True for a file as torch-dataloader-utils describes it: an object with a path, which is no path itself."""
    return hasattr(value, "path") and not isinstance(value, os.PathLike)
