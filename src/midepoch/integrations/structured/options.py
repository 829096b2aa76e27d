"""The options that StructuredDataset and IcebergDataset share: one set of names, defaults and checks.

Both classes spell all options out in their signatures, for users and editors, and hand them on together:
``StructuredOptions.of(locals())`` picks the options from the arguments of a call. A test compares the signatures with
the fields below.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, get_args

from midepoch._common.checks import Size, check_integer, parse_size
from midepoch._common.files import check_trust
from midepoch.dataset import Dataset
from midepoch.dataset.reading import read
from midepoch.formats import file_suffixes
from midepoch.index.index import IndexView
from midepoch.integrations.structured.splits import ShuffleSplits, Splitting
from midepoch.order.windows import WINDOW
from midepoch.storage.block_cache import CACHE
from midepoch.storage.listing import PathSpec, find

OutputFormat = Literal["torch", "numpy", "arrow", "dict"]
LOADER_OPTIONS = (
    "batch_size",
    "num_workers",
    "collate_fn",
    "show_progress",
    "progress_interval_sec",
    "drop_last",
    "even",
    "pin_memory",
    "prefetch_factor",
    "persistent_workers",
    "multiprocessing_context",
    "worker_init_fn",
    "timeout",
)
"""The arguments of ``create_dataloader`` that are for the loader, which checks them."""


@dataclass(frozen=True, kw_only=True)
class StructuredOptions:
    """How structured files are read. Wrong values raise when this is built."""

    columns: Sequence[str] | None = None
    filters: Any = None
    shuffle: bool = False
    shuffle_seed: int = 42
    shuffle_buffer_size: int | None = None
    split_bytes: int | str | None = "128MiB"
    split_rows: int | None = None
    output_format: OutputFormat = "dict"
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    split_strategy: None = None
    partitioning: Literal["hive"] | None = None
    num_ranks: int | None = None
    rank: int | None = None
    read_ahead: Size | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: Size = CACHE
    index_dir: str | os.PathLike[str] | None = None
    trust_shared: bool = False
    executor: Executor | None = None

    def __post_init__(self) -> None:
        if self.output_format not in get_args(OutputFormat):
            known = ", ".join(map(repr, get_args(OutputFormat)))
            raise ValueError(f"output_format is {self.output_format!r}; it can be {known}.")
        check_trust(self.trust_shared)
        if self.partitioning not in (None, "hive"):
            raise ValueError(f"partitioning is {self.partitioning!r}; it can be 'hive' or None.")
        if self.split_strategy is not None:
            raise TypeError(
                f"split_strategy is a {type(self.split_strategy).__name__}. No strategy is needed: any number of ranks "
                "and workers shares the rows evenly. To set the size of the splits, pass split_bytes or split_rows."
            )
        if self.split_rows is None and self.split_bytes is not None:
            check_integer("split_bytes", parse_size("split_bytes", self.split_bytes), least=1)
        if self.split_rows is not None:
            check_integer("split_rows", self.split_rows, least=1)
        check_integer("shuffle_seed", self.shuffle_seed, least=None)
        if self.shuffle_buffer_size is not None:
            check_integer("shuffle_buffer_size", self.shuffle_buffer_size)
        if (self.rank is None) != (self.num_ranks is None):
            raise ValueError(f"rank is {self.rank!r} and num_ranks is {self.num_ranks!r}; pass both, or neither.")
        if self.rank is not None and self.num_ranks is not None:
            ranks = check_integer("num_ranks", self.num_ranks, least=1)
            if check_integer("rank", self.rank) >= ranks:
                raise ValueError(f"rank is {self.rank} of {ranks}; it must be between 0 and {ranks - 1}.")

    @classmethod
    def of(cls, arguments: Mapping[str, Any], **others: Any) -> Self:
        """The options among the arguments of a call, with ``others`` set by the caller itself."""
        return cls(**dataset_options(arguments) | others)

    def open(self, path: PathSpec, format: str | None) -> Dataset:
        """The rows of files, in file order."""
        listing = find(path, self.storage_options, suffixes=file_suffixes(format))
        return read(
            listing,
            format=format,
            partitioning=self.partitioning,
            columns=self.columns,
            filters=self.filters,
            read_ahead=self.read_ahead,
            cache_dir=self.cache_dir,
            cache_bytes=self.cache_bytes,
            index_dir=self.index_dir,
            trust_shared=self.trust_shared,
            executor=self.executor,
        )

    def splitting(self, index: IndexView) -> Splitting:
        """Where the files of an index are cut into splits."""
        if self.split_rows is not None:
            return Splitting(index=index, most_rows=int(self.split_rows))
        if self.split_bytes is None:
            return Splitting(index=index)
        return Splitting(index=index, most_bytes=parse_size("split_bytes", self.split_bytes))

    @property
    def seed(self) -> int | None:
        """The seed of the shuffle; None without one."""
        return int(self.shuffle_seed) if self.shuffle or self.shuffle_buffer_size else None

    def arrange(self, rows: Dataset, splitting: Splitting) -> Dataset:
        """Shuffle rows, keep the shard of this rank, and convert to the output format, as far as asked for."""
        if self.seed is not None:
            window = WINDOW if self.shuffle_buffer_size is None else int(self.shuffle_buffer_size)
            step = ShuffleSplits(seed=self.seed, window=window, splitting=splitting, permutes=self.shuffle)
            rows = rows.with_order_step("shuffle", step)
        if self.rank is not None and self.num_ranks is not None:
            rows = rows.shard(self.num_ranks, self.rank)
        else:
            rows = rows.with_launched_shard()
        return rows if self.output_format == "dict" else rows.with_format(self.output_format)


def dataset_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call that are fields of :class:`StructuredOptions`."""
    return {option.name: arguments[option.name] for option in fields(StructuredOptions) if option.name in arguments}


def loader_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call that are for the loader."""
    return {name: arguments[name] for name in LOADER_OPTIONS}
