"""A snapshot of an Iceberg table: its data files, the rows deleted in them, and the columns that the table has."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from midepoch._common.hashing import I64
from midepoch.dataset import Dataset
from midepoch.dataset.reading import read_index
from midepoch.errors import DataFormatError, MissingExtraError, NoDataError
from midepoch.formats import file_suffixes
from midepoch.index.build import open_index
from midepoch.index.index import IndexView
from midepoch.index.saved import trusted_index_folder
from midepoch.integrations.iceberg_columns import FieldIdIndex, NamedField, TableColumns, fields_inside, id_of
from midepoch.integrations.structured.options import StructuredOptions
from midepoch.order.selection import Deletes
from midepoch.storage.block_cache import Fetch
from midepoch.storage.listing import find
from midepoch.storage.urls import local_path

FILE_URL = re.compile(r"^file:(//(localhost)?)?", re.IGNORECASE)


class Snapshot:
    """A snapshot of a table: its files in a fixed order, the rows deleted in each, its columns."""

    def __init__(
        self,
        table: Any,
        catalog_config: Mapping[str, Any] | None,
        snapshot_id: int | None,
        schema_id: int | None = None,
    ) -> None:
        opened = _table(table, catalog_config)
        current = opened.current_snapshot() if snapshot_id is None else opened.snapshot_by_id(snapshot_id)
        name = ".".join(opened.name())
        if current is None:
            missing = "snapshot yet" if snapshot_id is None else f"snapshot {snapshot_id}"
            raise NoDataError(f"The table {name} has no {missing}. Write rows to it, or name one of its snapshots.")
        self.id = int(current.snapshot_id)
        # The current snapshot is read by the current schema, which may be newer; an older one by its own.
        scan = opened.scan() if snapshot_id is None else opened.scan(snapshot_id=self.id)
        self.schema, self._io = scan.projection() if schema_id is None else _schema(opened, schema_id), opened.io
        self.schema_id = int(self.schema.schema_id)
        self.columns = _arrow_schema(self.schema)
        self._table = _table_columns(self.schema, self.columns, opened.name_mapping())
        tasks = _tasks(scan, name)
        if not tasks:
            raise NoDataError(f"Snapshot {self.id} of the table {name} has no data files. Write rows to it.")
        for task in tasks:
            if task.file.file_format.name != "PARQUET":
                raise DataFormatError(
                    f"{task.file.file_path} has the format {task.file.file_format.name}. Only Iceberg tables of "
                    "Parquet files can be read. Rewrite the table as Parquet."
                )
        self.urls = [str(task.file.file_path) for task in tasks]
        self._values = [_partition_values(opened.specs()[task.file.spec_id], task.file, self.columns) for task in tasks]
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
        by_id = FieldIdIndex(index, self._table, self._values, self._read(options))
        return self.without_deleted(read_index(by_id, options.columns, options.filters, fetch))

    def _read(self, options: StructuredOptions) -> list[str]:
        """The columns that are read, and those that only the filter needs."""
        needed = list(options.columns or ())
        if options.filters is not None:
            from midepoch.index.filters import Predicate  # loads parts of Arrow that only filters need

            needed += Predicate.of(options.filters, self.columns).columns
        return list(dict.fromkeys(needed))

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
        return expression_to_pyarrow(bind(self.schema, parsed, case_sensitive=True), self.schema)


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


def _schema(table: Any, schema_id: int) -> Any:
    schemas = table.schemas()
    if schema_id not in schemas:
        raise ValueError(
            f"The table {'.'.join(table.name())} has no schema {schema_id!r}. Its schemas are "
            f"{', '.join(map(str, sorted(schemas)))}."
        )
    return schemas[schema_id]


def _tasks(scan: Any, name: str) -> list[Any]:
    """The data files of a scan, each with the files that delete rows of it, in a fixed order."""
    try:
        return sorted(scan.plan_files(), key=lambda task: str(task.file.file_path))
    except (ValueError, NotImplementedError) as error:
        raise DataFormatError(
            f"The table {name} cannot be read: {str(error).rstrip('.')}. If that is about deletes, compact the table, "
            "so that its deletes are written into its data files."
        ) from error


def _arrow_schema(schema: Any) -> pa.Schema:
    """The columns of a table in Arrow, with their ids. Columns of an extension type are read as what it holds."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.schema([_stored(field).with_nullable(True) for field in schema_to_pyarrow(schema)])


def _stored(field: pa.Field) -> pa.Field:
    kind = getattr(field.type, "storage_type", field.type)
    inside = [_stored(one) for one in fields_inside(kind)]
    if pa.types.is_struct(kind):
        kind = pa.struct(inside)
    elif pa.types.is_map(kind):
        kind = pa.map_(*inside)
    elif inside:
        kind = (pa.large_list if pa.types.is_large_list(kind) else pa.list_)(*inside)
    return field.with_type(kind)


def _table_columns(schema: Any, columns: pa.Schema, mapping: Any) -> TableColumns:
    """What the table says of its columns, and of the names that they have in files without ids."""
    from pyiceberg.schema import index_by_id

    known, types = index_by_id(schema), _types(list(columns))
    defaults = {number: getattr(field, "initial_default", None) for number, field in known.items()}
    return TableColumns(
        schema=columns,
        names=None if mapping is None else _names(mapping.root),
        defaults={number: _scalar(value, types[number]) for number, value in defaults.items() if value is not None},
        required=frozenset(number for number, field in known.items() if field.required),
    )


def _names(fields: Sequence[Any]) -> dict[str, NamedField]:
    return {name: NamedField(field.field_id, _names(field.fields)) for field in fields for name in field.names}


def _partition_values(spec: Any, file: Any, columns: pa.Schema) -> dict[int, pa.Scalar]:
    """The columns by which the table was partitioned as they are: a data file may lack them."""
    from pyiceberg.transforms import IdentityTransform

    types, values = _types(list(columns)), dict[int, pa.Scalar]()
    for position, field in enumerate(spec.fields):
        if isinstance(field.transform, IdentityTransform) and field.source_id in types:
            value = file.partition[position]
            if value is not None:
                values[field.source_id] = _scalar(value, types[field.source_id])
    return values


def _types(fields: Sequence[pa.Field]) -> dict[int, pa.DataType]:
    """The types of fields, and of those inside of them, by id."""
    found = dict[int, pa.DataType]()
    for field in fields:
        number = id_of(field)
        if number is not None:
            found[number] = field.type
        found.update(_types(fields_inside(field.type)))
    return found


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(value.bytes if isinstance(value, UUID) else value, kind)


def _path(url: str) -> str:
    """The path of a file: URL; any other URL is returned unchanged.

    Names of partition folders are quoted, and that is how writers call the folders.
    """
    path = local_path(url)
    as_written = FILE_URL.sub("", url)
    return url if path is None else as_written if os.path.exists(as_written) else path
