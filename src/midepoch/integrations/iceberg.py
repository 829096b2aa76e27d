"""Iceberg tables: the data files of one snapshot, less the rows that it says are deleted."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pyarrow.parquet as pq

from midepoch._common.checks import Size
from midepoch._common.types import I64
from midepoch.dataset import Dataset
from midepoch.delivery.plan import Plan
from midepoch.errors import (
    CheckpointMismatchError,
    DataFormatError,
    MissingExtraError,
    NoDataError,
    SchemaMismatchError,
)
from midepoch.index.index import IndexView
from midepoch.integrations.structured.dataset import OutputFormat, StructuredDataset
from midepoch.order.deletes import Deletes
from midepoch.sources.files import FileRows
from midepoch.storage.options import CACHE
from midepoch.storage.urls import local_path

if TYPE_CHECKING:
    from midepoch.integrations.structured.loader import StructuredLoader

FIELD_ID = b"PARQUET:field_id"


class Snapshot:
    """What a snapshot of a table consists of: its files in a fixed order, the rows deleted in each, its columns."""

    def __init__(self, table: Any, catalog_config: Mapping[str, Any] | None, snapshot_id: int | None) -> None:
        opened = _table(table, catalog_config)
        current = opened.current_snapshot() if snapshot_id is None else opened.snapshot_by_id(snapshot_id)
        name = ".".join(opened.name())
        if current is None:
            told = "has no snapshot yet" if snapshot_id is None else f"has no snapshot {snapshot_id}"
            raise NoDataError(f"The table {name} {told}. Write rows to it, or name one of its snapshots.")
        self.id = int(current.snapshot_id)
        scan = opened.scan(snapshot_id=self.id)
        self.schema, self._io = scan.projection(), opened.io
        tasks = sorted(scan.plan_files(), key=lambda task: str(task.file.file_path))
        if not tasks:
            raise NoDataError(f"Snapshot {self.id} of the table {name} has no data files. Write rows to it.")
        for task in tasks:
            if task.file.file_format.name != "PARQUET":
                raise DataFormatError(
                    f"{task.file.file_path} is a file of format {task.file.file_format.name}, and of Iceberg tables "
                    "only Parquet files are read. Rewrite the table as Parquet."
                )
        self.urls = [str(task.file.file_path) for task in tasks]
        self._deletes = {str(one.file_path): one for task in tasks for one in task.delete_files}

    @property
    def paths(self) -> list[str]:
        """Where the data files lie."""
        return [_path(url) for url in self.urls]

    def deleted(self, index: IndexView) -> I64:
        """The deleted rows, by their rising numbers in an index of the data files."""
        starts = dict(zip(self.urls, index.file_starts[:-1].tolist(), strict=True))
        found = [np.empty(0, np.int64)]
        for url, one in sorted(self._deletes.items()):
            if one.content.name != "POSITION_DELETES" or one.file_format.name != "PARQUET":
                raise DataFormatError(
                    f"{url} deletes rows by {one.content.name.lower().replace('_', ' ')} in a file of format "
                    f"{one.file_format.name}; only position deletes in Parquet files can be applied without reading "
                    "the table. Compact the table, so that its deletes are written into its data files."
                )
            with self._io.new_input(url).open() as file:
                lines = pq.read_table(file, columns=["file_path", "pos"]).combine_chunks()
            for paths, positions in zip(lines["file_path"].chunks, lines["pos"].chunks, strict=True):
                coded = paths.dictionary_encode()
                firsts = np.array([starts.get(path, -1) for path in coded.dictionary.to_pylist()], np.int64)
                first = firsts[coded.indices.to_numpy()]
                found.append((first + positions.to_numpy())[first >= 0])
        return np.unique(np.concatenate(found))

    def filters(self, scan_filter: Any) -> Any:
        """A filter of the table as an Arrow expression."""
        from pyiceberg.expressions import parser
        from pyiceberg.expressions.visitors import bind
        from pyiceberg.io.pyarrow import expression_to_pyarrow

        parsed = parser.parse(scan_filter) if isinstance(scan_filter, str) else scan_filter
        return expression_to_pyarrow(bind(self.schema, parsed, case_sensitive=True))

    def check_names(self, index: IndexView, read: Sequence[str]) -> None:
        """Raise if a column that is read has another name in a file than in the table: files are read by name."""
        for file, schema in enumerate(index.schemas):
            for field in schema or ():
                number = (field.metadata or {}).get(FIELD_ID)
                name = None if number is None else self.schema.find_column_name(int(number))
                if name not in (None, field.name) and not {name, field.name}.isdisjoint(read):
                    raise SchemaMismatchError(
                        f"{index.names[file]} has the column {field.name!r}, which was renamed to {name!r} in the "
                        "table since. Rewrite the older files, so that all have the same names."
                    )


class IcebergDataset(StructuredDataset):
    """The rows of one snapshot of an Iceberg table. Its states name the snapshot."""

    def __init__(
        self,
        table: Any,
        catalog_config: Mapping[str, Any] | None = None,
        *,
        scan_filter: Any = None,
        snapshot_id: int | None = None,
        columns: Sequence[str] | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        shuffle_buffer_size: int | None = None,
        split_bytes: int | str = "128MiB",
        split_rows: int | None = None,
        output_format: OutputFormat = "dict",
        storage_options: Mapping[str, Any] | None = None,
        num_ranks: int | None = None,
        rank: int | None = None,
        read_ahead: Size | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: Size = CACHE,
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Open a snapshot; :meth:`create_dataloader` says what the arguments mean."""
        self._snapshot = Snapshot(table, catalog_config, snapshot_id)
        self._snapshot_id = self._snapshot.id
        super().__init__(
            self._snapshot.paths,
            "parquet",
            columns=list(self._snapshot.schema.column_names) if columns is None else columns,
            filters=None if scan_filter is None else self._snapshot.filters(scan_filter),
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            shuffle_buffer_size=shuffle_buffer_size,
            split_bytes=split_bytes,
            split_rows=split_rows,
            output_format=output_format,
            storage_options=storage_options,
            partitioning=None,
            num_ranks=num_ranks,
            rank=rank,
            read_ahead=read_ahead,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
            index_dir=index_dir,
        )
        del self._snapshot

    @classmethod
    def create_dataloader(  # type: ignore[override]
        cls,
        table: Any,
        catalog_config: Mapping[str, Any] | None = None,
        *,
        scan_filter: Any = None,
        snapshot_id: int | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        shuffle_buffer_size: int | None = None,
        split_bytes: int | str = "128MiB",
        split_rows: int | None = None,
        num_workers: int = 0,
        output_format: OutputFormat = "torch",
        storage_options: Mapping[str, Any] | None = None,
        collate_fn: Callable[..., Any] | None = None,
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
        """A loader of batches, and its data set.

        ``table`` is a name such as "db.events", looked up in the catalog that ``catalog_config`` describes as
        ``pyiceberg.catalog.load_catalog`` takes it, or a table that is open. Without a ``snapshot_id`` the current
        snapshot is read, and stays the one that is. ``scan_filter`` is a filter of Iceberg, as text or as an
        expression. All else is as in :meth:`midepoch.StructuredDataset.create_dataloader`.
        """
        from midepoch.integrations.structured.loader import StructuredLoader

        dataset = cls(
            table,
            catalog_config,
            scan_filter=scan_filter,
            snapshot_id=snapshot_id,
            columns=columns,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            shuffle_buffer_size=shuffle_buffer_size,
            split_bytes=split_bytes,
            split_rows=split_rows,
            output_format=output_format,
            storage_options=storage_options,
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

    def state_dict(self) -> dict[str, Any]:
        """Where the data set stands, with the snapshot that is read."""
        return {**super().state_dict(), "snapshot_id": self._snapshot_id}

    def load_state_dict(self, state: Mapping[str, Any], *, new_files: Literal["error", "append"] = "error") -> None:
        """Go to where a state says. A state of another snapshot is refused: open that one, by its ``snapshot_id``."""
        if new_files != "error":
            raise ValueError("new_files='append' is not possible with Iceberg: a snapshot has the files it has.")
        then = state.get("snapshot_id", self._snapshot_id) if isinstance(state, Mapping) else self._snapshot_id
        if then != self._snapshot_id:
            raise CheckpointMismatchError(
                f"The checkpoint was taken on snapshot {then} of the table, and snapshot {self._snapshot_id} is read "
                f"now. Pass snapshot_id={then}, or start anew without the state."
            )
        super().load_state_dict(state)

    def _chosen(self, opened: Dataset) -> Dataset:
        """The rows that are not deleted."""
        rows = opened.file_rows("deletes")
        self._snapshot.check_names(rows.index.view, rows.names)
        gone = self._snapshot.deleted(rows.index.view)
        return opened.with_order_step("deletes", Deletes(rows=_read(rows, gone))) if len(gone) else opened

    def with_plan(self, plan: Plan) -> Self:
        """A dataset of the same snapshot with another plan."""
        made = super().with_plan(plan)
        made._snapshot_id = self._snapshot_id
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "snapshot_id": self._snapshot_id}

    def __setstate__(self, values: dict[str, Any]) -> None:
        super().__setstate__(values)
        self._snapshot_id = values["snapshot_id"]


def _read(rows: FileRows, numbers: I64) -> I64:
    """Those of some rows that lie in blocks that are read."""
    if rows.where is None:
        return numbers
    return numbers[rows.where.blocks[np.searchsorted(rows.index.view.block_starts, numbers, "right") - 1]]


def _table(table: Any, catalog_config: Mapping[str, Any] | None) -> Any:
    """The table, looked up if it is given by its name."""
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise MissingExtraError("pyiceberg", "iceberg", "IcebergDataset") from error
    if not isinstance(table, str | tuple):
        return table
    if catalog_config is None:
        raise ValueError(f"The table {table!r} is looked up in a catalog; pass catalog_config, or an open table.")
    options = dict(catalog_config)
    return load_catalog(options.pop("name", None), **options).load_table(table)


def _path(url: str) -> str:
    """A local path for the URL of a local file; others stay what they are."""
    return local_path(url) or url
