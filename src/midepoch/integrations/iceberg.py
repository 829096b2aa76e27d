"""IcebergDataset: the data files of one snapshot of an Iceberg table, without the rows deleted in it."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from midepoch._common.checks import Size
from midepoch._common.types import I64
from midepoch.dataset import Dataset
from midepoch.delivery.passes import Pass
from midepoch.delivery.plan import Plan
from midepoch.errors import (
    CheckpointMismatchError,
    DataFormatError,
    MissingExtraError,
    NoDataError,
)
from midepoch.formats import file_suffixes
from midepoch.index.build import open_index
from midepoch.index.field_ids import FieldIdIndex
from midepoch.index.index import IndexView
from midepoch.index.saved import trusted_index_folder
from midepoch.integrations.structured.dataset import StructuredDataset
from midepoch.integrations.structured.options import OutputFormat, StructuredOptions, dataset_options, loader_options
from midepoch.order.deletes import Deletes
from midepoch.reading import read_index
from midepoch.storage.listing import find
from midepoch.storage.options import CACHE, Fetch
from midepoch.storage.urls import local_path

if TYPE_CHECKING:
    from midepoch.integrations.structured.loader import StructuredLoader


class Snapshot:
    """A snapshot of a table: its files in a fixed order, the rows deleted in each, its columns."""

    def __init__(self, table: Any, catalog_config: Mapping[str, Any] | None, snapshot_id: int | None) -> None:
        opened = _table(table, catalog_config)
        current = opened.current_snapshot() if snapshot_id is None else opened.snapshot_by_id(snapshot_id)
        name = ".".join(opened.name())
        if current is None:
            missing = "snapshot yet" if snapshot_id is None else f"snapshot {snapshot_id}"
            raise NoDataError(f"The table {name} has no {missing}. Write rows to it, or name one of its snapshots.")
        self.id = int(current.snapshot_id)
        # The current snapshot is read by the current schema, which may be newer; an older one by its own.
        scan = opened.scan() if snapshot_id is None else opened.scan(snapshot_id=self.id)
        self.schema, self._io = scan.projection(), opened.io
        self.columns = _arrow_schema(self.schema)
        self._names = _mapped_names(opened)
        tasks = sorted(scan.plan_files(), key=lambda task: str(task.file.file_path))
        if not tasks:
            raise NoDataError(f"Snapshot {self.id} of the table {name} has no data files. Write rows to it.")
        for task in tasks:
            if task.file.file_format.name != "PARQUET":
                raise DataFormatError(
                    f"{task.file.file_path} has the format {task.file.file_format.name}. Only Iceberg tables of "
                    "Parquet files can be read. Rewrite the table as Parquet."
                )
        self.urls = [str(task.file.file_path) for task in tasks]
        self._delete_files = {str(file.file_path): file for task in tasks for file in task.delete_files}

    @property
    def paths(self) -> list[str]:
        """The local paths or URLs of the data files."""
        return [_path(url) for url in self.urls]

    def open(self, options: StructuredOptions) -> Dataset:
        """The rows of the data files under the columns of the table, without those that are deleted."""
        listing = find(self.paths, options.storage_options, suffixes=file_suffixes("parquet"))
        trusted_index_folder(options.index_dir, options.trust_shared)
        index = open_index(listing, format="parquet", index_dir=options.index_dir, executor=options.executor)
        fetch = Fetch.of(options.read_ahead, options.cache_dir, options.cache_bytes, trust_shared=options.trust_shared)
        by_id = FieldIdIndex(index, self.columns, self._names)
        return self.without_deleted(read_index(by_id, options.columns, options.filters, fetch))

    def without_deleted(self, dataset: Dataset) -> Dataset:
        """The dataset of the snapshot's files, without the rows that the snapshot deletes."""
        rows = dataset.file_rows("deletes")
        view = rows.index.view
        deleted = self._deleted(view)
        if not len(deleted):
            return dataset
        if rows.where is not None:  # the order has no blocks that the filter rules out
            deleted = deleted[rows.where.blocks[np.searchsorted(view.block_starts, deleted, "right") - 1]]
        return dataset.with_order_step("deletes", Deletes(rows=deleted))

    def _deleted(self, index: IndexView) -> I64:
        """The rising row numbers, in an index of the data files, of the deleted rows."""
        starts = dict(zip(self.urls, index.file_starts[:-1].tolist(), strict=True))
        deleted = [np.empty(0, np.int64)]
        for url, delete_file in sorted(self._delete_files.items()):
            content, form = delete_file.content.name, delete_file.file_format.name
            if content != "POSITION_DELETES" or form != "PARQUET":
                raise DataFormatError(
                    f"{url} deletes rows by {content.lower().replace('_', ' ')} in a file of format {form}; only "
                    "position deletes in Parquet files can be applied without reading the table. Compact the table, "
                    "so that its deletes are written into its data files."
                )
            with self._io.new_input(url).open() as file:
                table = pq.read_table(file, columns=["file_path", "pos"]).combine_chunks()
            for paths, positions in zip(table["file_path"].chunks, table["pos"].chunks, strict=True):
                encoded = paths.dictionary_encode()
                first_rows = np.array([starts.get(path, -1) for path in encoded.dictionary.to_pylist()], np.int64)
                first_row = first_rows[encoded.indices.to_numpy()]
                deleted.append((first_row + positions.to_numpy())[first_row >= 0])
        return np.unique(np.concatenate(deleted))

    def filters(self, scan_filter: Any) -> Any:
        """A filter on the table, as an Arrow expression."""
        from pyiceberg.expressions import parser
        from pyiceberg.expressions.visitors import bind
        from pyiceberg.io.pyarrow import expression_to_pyarrow

        parsed = parser.parse(scan_filter) if isinstance(scan_filter, str) else scan_filter
        return expression_to_pyarrow(bind(self.schema, parsed, case_sensitive=True))


class IcebergDataset(StructuredDataset):
    """The rows of one snapshot of an Iceberg table.

        loader, dataset = IcebergDataset.create_dataloader("db.events", {"name": "prod"}, batch_size=1024)

    Its states name the snapshot.
    """

    def __init__(
        self,
        table: Any,
        catalog_config: Mapping[str, Any] | None = None,
        *,
        scan_filter: Any = None,
        filters: Any = None,
        snapshot_id: int | None = None,
        columns: Sequence[str] | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        shuffle_buffer_size: int | None = None,
        split_bytes: int | str | None = "128MiB",
        split_rows: int | None = None,
        split_strategy: None = None,
        output_format: OutputFormat = "dict",
        storage_options: Mapping[str, Any] | None = None,
        num_ranks: int | None = None,
        rank: int | None = None,
        read_ahead: Size | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: Size = CACHE,
        index_dir: str | os.PathLike[str] | None = None,
        trust_shared: bool = False,
        executor: Executor | None = None,
    ) -> None:
        """Open a snapshot. :meth:`create_dataloader` explains the arguments, which mean the same there.

        ``table``, ``catalog_config`` and ``snapshot_id`` say what is read. ``scan_filter`` and ``filters`` are two
        names of one filter. By default ``columns`` are all of the table. ``output_format`` is that of each row; the
        default, "dict", has Python values. ``shuffle``, ``shuffle_seed``, ``shuffle_buffer_size``, ``split_bytes``,
        ``split_rows``, ``split_strategy``, ``num_ranks``, ``rank``, ``storage_options``, ``read_ahead``, ``cache_dir``,
        ``cache_bytes``, ``index_dir``, ``trust_shared`` and ``executor`` are those of
        :class:`midepoch.StructuredDataset`.
        """
        arguments = locals()
        snapshot = Snapshot(table, catalog_config, snapshot_id)
        options = StructuredOptions.of(
            arguments,
            columns=snapshot.columns.names if columns is None else columns,
            filters=_arrow_filter(snapshot, scan_filter, filters),
            partitioning=None,
        )
        self._begin(snapshot.open(options), options)
        self._snapshot_id = snapshot.id

    @classmethod
    def create_dataloader(  # type: ignore[override]
        cls,
        table: Any,
        catalog_config: Mapping[str, Any] | None = None,
        *,
        batch_size: int = 1024,
        scan_filter: Any = None,
        filters: Any = None,
        snapshot_id: int | None = None,
        columns: Sequence[str] | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        shuffle_buffer_size: int | None = None,
        split_bytes: int | str | None = "128MiB",
        split_rows: int | None = None,
        split_strategy: None = None,
        num_workers: int | None = 0,
        output_format: OutputFormat = "torch",
        storage_options: Mapping[str, Any] | None = None,
        collate_fn: Callable[..., Any] | None = None,
        num_ranks: int | None = None,
        rank: int | None = None,
        show_progress: bool = False,
        progress_interval_sec: float | None = None,
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

            loader, dataset = midepoch.IcebergDataset.create_dataloader("db.events", {"name": "prod"}, batch_size=32)

        ``table`` is an open table, or a name such as "db.events" in the catalog that ``catalog_config`` describes: the
        arguments of ``pyiceberg.catalog.load_catalog``. ``snapshot_id`` is by default that of the current snapshot;
        a later snapshot of the table changes nothing. ``scan_filter`` is an Iceberg filter, as text or as an
        expression; ``filters`` takes the same, or an Arrow expression. Pass one of the two. By default ``columns`` are
        all of the table.

        All other arguments are those of :meth:`midepoch.StructuredDataset.create_dataloader`. About batches:
        ``batch_size``, ``drop_last``, ``even``, ``output_format`` and ``collate_fn``. About the order and the shard:
        ``shuffle``, ``shuffle_seed``, ``shuffle_buffer_size``, ``split_bytes``, ``split_rows``, ``split_strategy``,
        ``num_ranks`` and ``rank``. About workers: ``num_workers``, ``pin_memory``, ``prefetch_factor``,
        ``persistent_workers``, ``multiprocessing_context``, ``worker_init_fn`` and ``timeout``. About files:
        ``storage_options``, ``read_ahead``, ``cache_dir``, ``cache_bytes``, ``index_dir``, ``trust_shared`` and
        ``executor``. And about the progress bar: ``show_progress`` and ``progress_interval_sec``.
        """
        arguments = locals()
        dataset = cls(
            table,
            catalog_config,
            scan_filter=scan_filter,
            snapshot_id=snapshot_id,
            **dataset_options(arguments),
        )
        return dataset._with_loader(**loader_options(arguments))

    def describe_state(self, run: Pass) -> dict[str, Any]:
        """What the loop has received, with the snapshot that is read."""
        return {**super().describe_state(run), "snapshot_id": self._snapshot_id}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, new_files: Literal["error", "append"] = "error"
    ) -> None:
        """Resume at a state of the same snapshot.

            dataset.load_state_dict(torch.load("data.pt", weights_only=True))

        ``state_dict`` is a state of this dataset or of its loader; one of another snapshot raises. Open that one then,
        by its ``snapshot_id``. The files of a snapshot never change, so ``new_files`` can only be "error".
        """
        if new_files != "error":
            raise ValueError("new_files='append' is not possible with Iceberg: the files of a snapshot never change.")
        saved = (
            state_dict.get("snapshot_id", self._snapshot_id) if isinstance(state_dict, Mapping) else self._snapshot_id
        )
        if saved != self._snapshot_id:
            raise CheckpointMismatchError(
                f"The checkpoint was taken on snapshot {saved} of the table, and snapshot {self._snapshot_id} is read "
                f"now. Pass snapshot_id={saved}, or start over without the state."
            )
        super().load_state_dict(state_dict)

    def with_plan(self, plan: Plan) -> Self:
        """A dataset of the same snapshot at the beginning of another plan."""
        made = super().with_plan(plan)
        made._snapshot_id = self._snapshot_id
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "snapshot_id": self._snapshot_id}

    def __setstate__(self, values: dict[str, Any]) -> None:
        super().__setstate__(values)
        self._snapshot_id = values["snapshot_id"]


def _arrow_filter(snapshot: Snapshot, scan_filter: Any, filters: Any) -> Any:
    """The filter as an Arrow expression, whichever of the two arguments it came in."""
    if scan_filter is not None and filters is not None:
        raise ValueError("scan_filter and filters mean the same. Pass one of them.")
    if filters is not None and type(filters).__module__.startswith("pyarrow"):
        return filters
    wanted = filters if scan_filter is None else scan_filter
    return None if wanted is None else snapshot.filters(wanted)


def _table(table: Any, catalog_config: Mapping[str, Any] | None) -> Any:
    """The table, opened in the catalog if it is given by name."""
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise MissingExtraError("pyiceberg", "iceberg", "IcebergDataset") from error
    if not isinstance(table, str | tuple):
        return table
    if catalog_config is None:
        raise ValueError(f"The table {table!r} is a name in a catalog; pass catalog_config too, or pass an open table.")
    options = dict(catalog_config)
    return load_catalog(options.pop("name", None), **options).load_table(table)


def _arrow_schema(schema: Any) -> pa.Schema:
    """The columns of a table in Arrow, with their field ids. Columns of an extension type are read as what it holds."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    fields = (field.with_type(getattr(field.type, "storage_type", field.type)) for field in schema_to_pyarrow(schema))
    return pa.schema([field.with_nullable(True) for field in fields])


def _mapped_names(table: Any) -> dict[str, int]:
    """The ids of columns by the names that they may have in files without ids."""
    mapping = table.name_mapping()
    fields = [] if mapping is None else mapping.root
    return {name: field.field_id for field in fields for name in field.names if field.field_id is not None}


def _path(url: str) -> str:
    """The path of a file:// URL; any other URL is returned unchanged.

    Names of partition folders are quoted, and that is how writers call the folders.
    """
    path = local_path(url)
    as_written = url.partition("://")[2]
    return url if path is None else as_written if os.path.exists(as_written) else path
