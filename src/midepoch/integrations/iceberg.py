"""IcebergDataset: the rows of one snapshot of an Iceberg table.

A snapshot is a table's data files, the rows deleted in them, and the columns that the table has. Columns are found by
their ids, whatever they were called when files were written: pyiceberg does that too, but it makes empty lists and maps
of structs out of null ones.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from midepoch._common.checks import cached_property, options_among
from midepoch._common.hashing import I64
from midepoch.dataset import Dataset, file_rows, from_source, plan_of, with_order_step
from midepoch.dataset.read import ReadOptions
from midepoch.delivery.passes import Pass
from midepoch.errors import CheckpointMismatchError, DataFormatError, NoDataError, SchemaMismatchError, needs
from midepoch.extending import FrontDoor
from midepoch.formats import Block, BlockReader
from midepoch.index.index import Index, IndexView, WrappedIndex
from midepoch.index.schemas import BYTES, TEXT, WithConstants
from midepoch.integrations.structured import OutputFormat, StructuredDataset, TableOptions
from midepoch.order.selection import Deletes
from midepoch.storage.urls import local_path

if TYPE_CHECKING:
    from midepoch.integrations.structured_loader import StructuredLoader

FILE_URL = re.compile(r"^file:(//(localhost)?)?", re.IGNORECASE)


class IcebergDataset(StructuredDataset):
    """The rows of one snapshot of an Iceberg table.

        loader, dataset = IcebergDataset.create_dataloader("db.events", {"name": "prod"}, batch_size=1024)

    Its states name the snapshot, and the schema under which it is read.
    """

    def __init__(
        self,
        table: Any,
        catalog_config: Mapping[str, Any] | None = None,
        *,
        scan_filter: Any = None,
        filters: Any = None,
        snapshot_id: int | None = None,
        schema_id: int | None = None,
        columns: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        """Open a snapshot. :meth:`create_dataloader` explains the arguments, which mean the same there.

        ``table``, ``catalog_config``, ``snapshot_id`` and ``schema_id`` say what is read. ``scan_filter`` and
        ``filters`` are two names of one filter. By default ``columns`` are all of the table. All other ``options`` are
        those of :class:`midepoch.StructuredDataset` with the same names: ``shuffle``, ``shuffle_seed``,
        ``shuffle_buffer_size``, ``split_bytes``, ``split_rows``, ``output_format``, ``num_ranks``, ``rank``,
        ``storage_options``, ``read_ahead``, ``cache_dir``, ``cache_bytes``, ``index_dir``, ``trust_shared`` and
        ``executor``.
        """
        snapshot = Snapshot(table, catalog_config, snapshot_id, schema_id)
        self._read_as = {"snapshot_id": snapshot.id, "schema_id": snapshot.schema_id}
        read = TableOptions(
            format="parquet",
            partitioning=None,
            schema=None,
            columns=snapshot.columns.names if columns is None else columns,
            filters=snapshot.filters(scan_filter, filters),
            **options,
        )
        FrontDoor.__init__(self, plan_of(self._arranged(snapshot.open(read), read)))

    @classmethod
    def create_dataloader(  # type: ignore[override]
        cls,
        table: Any,
        catalog_config: Mapping[str, Any] | None = None,
        *,
        scan_filter: Any = None,
        snapshot_id: int | None = None,
        schema_id: int | None = None,
        output_format: OutputFormat = "torch",
        **options: Any,
    ) -> "tuple[StructuredLoader, Self]":
        """A loader of batches, and its dataset. The two share one position, so a state of either resumes both.

            loader, dataset = midepoch.IcebergDataset.create_dataloader("db.events", {"name": "prod"}, batch_size=32)

        ``table`` is an open table, or a name such as "db.events" in the catalog that ``catalog_config`` describes: the
        arguments of ``pyiceberg.catalog.load_catalog``. ``options`` are those of this class and of
        :meth:`midepoch.StructuredDataset.create_dataloader`. A batch is what ``output_format`` says there.

        ``snapshot_id`` is by default that of the current snapshot; a later snapshot of the table changes nothing.
        ``schema_id`` is by default that of the current schema, or with a ``snapshot_id`` that of the schema under which
        it was written. ``scan_filter`` is an Iceberg filter, as text or as an expression; ``filters`` takes the same,
        or an Arrow expression. Pass one of the two. By default ``columns`` are all of the table.
        """
        own = options_among(TableOptions, options)
        dataset = cls(
            table,
            catalog_config,
            scan_filter=scan_filter,
            snapshot_id=snapshot_id,
            schema_id=schema_id,
            output_format=output_format,
            **own,
        )
        return dataset._with_loader(**{name: value for name, value in options.items() if name not in own})

    def own_keys(self, run: Pass) -> dict[str, Any]:
        """The splits that are done, the snapshot that is read, and the schema under which it is read."""
        return {**super().own_keys(run), **self._read_as}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, new_files: Literal["error", "append"] = "error"
    ) -> None:
        """Resume at a state of the same snapshot and the same columns.

            dataset.load_state_dict(torch.load("data.pt", weights_only=True))

        ``state_dict`` is a state of this dataset or of its loader. If it is one of another snapshot, or if the columns
        have other names, ids or types since the table's schema has changed, this raises. Open the table with the
        ``snapshot_id`` and ``schema_id`` that the error names then. The files of a snapshot never change, so
        ``new_files`` can only be "error".
        """
        if new_files != "error":
            raise ValueError("new_files='append' is not possible with Iceberg: the files of a snapshot never change.")
        if isinstance(state_dict, Mapping):
            self._check_read_as(state_dict)
        super().load_state_dict(state_dict)

    def _check_read_as(self, state: Mapping[str, Any]) -> None:
        """Raise if a state was taken on another snapshot, or under a schema by which rows are others."""
        now = self._read_as
        then = {name: state.get(name, value) for name, value in now.items()}
        saved, own = _read_stage(state.get("fingerprint")), _read_stage(plan_of(self).pipeline.fingerprint)
        if then["snapshot_id"] == now["snapshot_id"] and (then == now or saved == own):
            return
        raise CheckpointMismatchError(
            f"The checkpoint was taken on snapshot {then['snapshot_id']} of the table, read by schema "
            f"{then['schema_id']}, and snapshot {now['snapshot_id']} is read by schema {now['schema_id']} now. Pass "
            f"snapshot_id={then['snapshot_id']}, schema_id={then['schema_id']}, or start over without the state."
        )


def _read_stage(fingerprint: Any) -> Any:
    """What a fingerprint says of the columns that are read: their names, ids and types."""
    stages = fingerprint.get("pipeline") if isinstance(fingerprint, Mapping) else None
    return stages[0] if isinstance(stages, list) and stages else None


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

    def open(self, options: ReadOptions) -> Dataset:
        """The rows of the data files under the columns of the table, without those that are deleted."""
        index = options.index([_path(url) for url in self.urls])
        by_id = FieldIdIndex(index, self._table, self._values, self._read(options))
        return self._without_deleted(from_source(options.rows(by_id), Dataset))

    def _read(self, options: ReadOptions) -> list[str]:
        """The columns that are read, and those that only the filter needs."""
        needed = list(options.columns or ())
        if options.filters is not None:
            from midepoch.index.filters import Predicate

            needed += Predicate.of(options.filters, self.columns).columns
        return list(dict.fromkeys(needed))

    def _without_deleted(self, dataset: Dataset) -> Dataset:
        """The dataset of the snapshot's files, without the rows that the snapshot deletes."""
        rows = file_rows(dataset, "deletes")
        view = rows.index.view
        deleted = self._deleted(view)
        if not len(deleted):
            return dataset
        if rows.where is not None:  # the order has no blocks that the filter rules out
            deleted = deleted[rows.where.blocks[np.searchsorted(view.block_starts, deleted, "right") - 1]]
        return with_order_step(dataset, "deletes", Deletes(rows=deleted))

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

    def filters(self, scan_filter: Any, filters: Any) -> Any:
        """The filter as an Arrow expression, whichever of the two arguments it came in."""
        from pyiceberg.expressions import parser
        from pyiceberg.expressions.visitors import bind
        from pyiceberg.io.pyarrow import expression_to_pyarrow

        if scan_filter is not None and filters is not None:
            raise ValueError("scan_filter and filters mean the same. Pass one of them.")
        wanted = filters if scan_filter is None else scan_filter
        if wanted is None or type(wanted).__module__.startswith("pyarrow"):
            return wanted
        parsed = parser.parse(wanted) if isinstance(wanted, str) else wanted
        return expression_to_pyarrow(bind(self.schema, parsed, case_sensitive=True), self.schema)


def _table(table: Any, catalog_config: Mapping[str, Any] | None) -> Any:
    """The table, opened in the catalog if it is given by name."""
    with needs("pyiceberg", "iceberg", "IcebergDataset"):
        from pyiceberg.catalog import load_catalog
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
    return field.with_type(with_fields_inside(kind, [_stored(one) for one in fields_inside(kind)]))


def _table_columns(schema: Any, columns: pa.Schema, mapping: Any) -> "TableColumns":
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


def _names(fields: Sequence[Any]) -> "dict[str, NamedField]":
    return {name: NamedField(field.field_id, _names(field.fields)) for field in fields for name in field.names}


def _partition_values(spec: Any, file: Any, columns: pa.Schema) -> dict[int, pa.Scalar]:
    """The columns by which the table was partitioned as they are: a data file may lack them."""
    from pyiceberg.transforms import IdentityTransform

    types, values = _types(list(columns)), dict[int, pa.Scalar]()
    for position, one in enumerate(spec.fields):
        if isinstance(one.transform, IdentityTransform) and one.source_id in types:
            value = file.partition[position]
            if value is not None:
                values[one.source_id] = _scalar(value, types[one.source_id])
    return values


def _types(fields: Sequence[pa.Field]) -> dict[int, pa.DataType]:
    """The types of fields, and of those inside of them, by id."""
    found = dict[int, pa.DataType]()
    for one in fields:
        number = id_of(one)
        if number is not None:
            found[number] = one.type
        found.update(_types(fields_inside(one.type)))
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


FIELD_ID = b"PARQUET:field_id"
ELEMENT, KEY, VALUE = "element", "key", "value"
"""What a table calls the values of a list, and the keys and values of a map, whatever files call them."""


class NamedField(NamedTuple):
    """The id of a name, if it has one, and the names inside of it."""

    id: int | None
    fields: "Mapping[str, NamedField]"


def id_of(field: pa.Field) -> int | None:
    """The id of a field, if it has one."""
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def have_ids(fields: Sequence[pa.Field]) -> bool:
    """True if all fields have ids, and all inside of them."""
    return all(id_of(field) is not None and have_ids(fields_inside(field.type)) for field in fields)


def fields_inside(kind: pa.DataType) -> list[pa.Field]:
    """The fields inside of a type: of a struct all, of a list its values, of a map its keys and values."""
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(number) for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []


def described(field: pa.Field) -> str:
    """The id and the type of a field, with the names, ids and types of the fields inside of it, as text."""
    inside = [f"{one.name} {described(one)}" for one in fields_inside(field.type)]
    kind = f"{str(field.type).partition('<')[0]}<{', '.join(inside)}>" if inside else str(field.type)
    return f"#{id_of(field)} {kind}"


def with_fields_inside(kind: pa.DataType, fields: Sequence[pa.Field]) -> pa.DataType:
    """The type with other fields inside of it."""
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(*fields, keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(*fields, kind.list_size)
    return (pa.large_list if pa.types.is_large_list(kind) else pa.list_)(*fields) if fields else kind


def with_ids(fields: Sequence[pa.Field], names: Mapping[str, NamedField]) -> list[pa.Field]:
    """The fields with the ids of their names. Those that have none there keep no id, so that nothing finds them."""
    return [_with_id(field, names.get(field.name)) for field in fields]


def _with_id(field: pa.Field, named: NamedField | None) -> pa.Field:
    own = fields_inside(field.type)
    inside = (
        [one.name for one in own] if pa.types.is_struct(field.type) else [KEY, VALUE] if len(own) == 2 else [ELEMENT]
    )
    names = named.fields if named is not None else {}
    fields = [_with_id(one, names.get(name)) for one, name in zip(own, inside, strict=False)]
    metadata = {} if named is None or named.id is None else {FIELD_ID: str(named.id)}
    return field.with_type(with_fields_inside(field.type, fields)).with_metadata(metadata)


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """The columns of a table, with their ids, and what they are in files that lack them."""

    schema: pa.Schema
    names: Mapping[str, NamedField] | None = None
    """The ids of the columns of files without ids, by the names that they may have there. None: there are no such."""
    defaults: Mapping[int, pa.Scalar] = field(default_factory=dict)
    """The values, by id, of columns and fields of structs in files that lack them. Others are null."""
    required: frozenset[int] = frozenset()
    """The ids of columns and fields that are never null."""

    def missing(self, rows: int, wanted: pa.Field) -> pa.Array:
        """The column in place of one that a file lacks."""
        number = id_of(wanted)
        value = None if number is None else self.defaults.get(number)
        if value is not None:
            return pa.repeat(value, rows)
        if number in self.required:
            raise pa.ArrowInvalid(
                f"it lacks {wanted.name!r}, which is never null in the table and has no default value"
            )
        return pa.nulls(rows, wanted.type)


class FieldIdIndex(WrappedIndex):
    """An index whose files have the columns of a table. Columns and fields of structs are found by their ids.

    So a column may be renamed, moved and widened. ``values`` has, for each file, the values by id of columns that it
    may lack because all its rows have the same. ``read`` are the columns that are needed: a state remembers their ids
    and types, because a table may change both and keep the name.
    """

    def __init__(
        self,
        inner: Index,
        table: TableColumns,
        values: Sequence[Mapping[int, pa.Scalar]] = (),
        read: Sequence[str] = (),
    ) -> None:
        super().__init__(inner)
        self._columns, self._values, self._read = table, values, read
        self._table = table.schema
        self.layout = {"types": {name: described(self._table.field(name)) for name in read}}
        _ = self._distinct  # raises now if a file has no ids

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldIdIndex, (self._inner, self._columns, self._values, self._read)

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:  # noqa: D102
        missing = [name for name in columns or () if name not in self._table.names]
        if missing:
            raise SchemaMismatchError(
                f"The table has no column {missing[0]!r}. It has: {', '.join(self._table.names)}."
            )
        return self._table if columns is None else pa.schema([self._table.field(name) for name in columns])

    def stored_name(self, file: int, name: str) -> str | None:  # noqa: D102
        number = id_of(self._table.field(name))
        return next((str(one.name) for one in self._own(file) if id_of(one) == number), None)

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:  # noqa: D102
        numbers = set(map(id_of, wanted))
        stored = [one for one in self._own(file) if id_of(one) in numbers]
        inner = self._inner.open(file, pa.schema(stored)) if stored else None
        defaults = {**self._columns.defaults, **(self._values[file] if self._values else {})}
        return TableBlocks(inner, stored, wanted, self.view.path(file), replace(self._columns, defaults=defaults))

    def _own(self, file: int) -> Sequence[pa.Field]:
        number = self.view.schema_numbers[file]
        return () if number < 0 else self._distinct[number]

    @cached_property
    def _distinct(self) -> list[Sequence[pa.Field]]:
        """The columns, with ids, of each of the distinct schemas of files."""
        return [self._with_ids(number, list(own)) for number, own in enumerate(self.view.distinct_schemas)]

    def _with_ids(self, number: int, own: Sequence[pa.Field]) -> Sequence[pa.Field]:
        if have_ids(own):
            return own
        if self._columns.names is None:
            raise DataFormatError(
                f"{self.view.path(self.view.schema_numbers.index(number))} has columns without ids, and the table does "
                "not say which of its columns they are. Set schema.name-mapping.default in the table's properties."
            )
        return with_ids(own, self._columns.names)


class TableBlocks(WithConstants):
    """The blocks of another reader with the columns of a table. ``stored`` are those of them that the file has."""

    def __init__(
        self, inner: BlockReader | None, stored: Sequence[pa.Field], wanted: pa.Schema, path: str, table: TableColumns
    ) -> None:
        super().__init__(inner, {}, wanted)
        self._stored, self._schema, self._path, self._table = stored, wanted, path, table

    def _complete(self, block: Block, own: pa.Table | pa.RecordBatch | None) -> pa.Table | pa.RecordBatch:
        try:
            if not isinstance(own, pa.Table):
                return self._made([] if own is None else own.columns, block.rows)
            batches = [self._made(batch.columns, len(batch)) for batch in own.to_batches()]
            return pa.Table.from_batches(batches, self._schema)
        except pa.ArrowException as error:
            raise DataFormatError(
                f"{self._path}: {error}. Rewrite the file with the columns and types of the table."
            ) from error

    def _made(self, columns: Sequence[pa.Array], rows: int) -> pa.RecordBatch:
        made = _fields(columns, self._stored, self._schema, rows, self._table)
        return pa.RecordBatch.from_arrays(made, schema=self._schema)


def _fields(
    columns: Sequence[pa.Array], own: Sequence[pa.Field], wanted: Iterable[pa.Field], rows: int, table: TableColumns
) -> list[pa.Array]:
    """The wanted fields, each made of the column whose own field has its id."""
    places = {id_of(one): place for place, one in enumerate(own)}
    made = []
    for one in wanted:
        place = places.get(id_of(one))
        if place is None:
            made.append(table.missing(rows, one))
            continue
        try:
            made.append(_as_field(columns[place], own[place], one, table))
        except pa.ArrowException as error:
            what = f"{own[place].name!r} is {own[place].type}, which does not become {one.type}"
            raise pa.ArrowInvalid(f"{what}: {error}") from error
    return made


def _as_field(column: pa.Array, own: pa.Field, field: pa.Field, table: TableColumns) -> pa.Array:
    """A column of a file as a field of the table: the fields of structs are found by id too."""
    if _is_same(own, field):
        return column
    kind = field.type
    if not pa.types.is_nested(kind):
        return _cast(column, kind)
    if pa.types.is_fixed_size_list(own.type):
        column = column.cast(pa.list_(own.type.value_field))
    if column.offset:  # the arrays inside would not be those of these rows
        column = pa.concat_arrays([column, column.slice(0, 0)])
    missing = column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        inside = [column.field(number) for number in range(own.type.num_fields)]
        children = _fields(inside, fields_inside(own.type), kind, len(column), table)
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)
    if pa.types.is_map(kind):
        keys = _as_field(column.keys, own.type.key_field, kind.key_field, table)
        items = _as_field(column.items, own.type.item_field, kind.item_field, table)
        return pa.MapArray.from_arrays(column.offsets, keys, items, type=kind, mask=missing)
    values = _as_field(column.values, own.type.value_field, kind.value_field, table)
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(column.offsets.cast(pa.int64()), values, type=kind, mask=missing)
    return pa.ListArray.from_arrays(column.offsets.cast(pa.int32()), values, type=kind, mask=missing)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column as another type of the same kind. Times lose what is below the table's unit; nothing else is lost."""
    own = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_timestamp(own) and pa.types.is_timestamp(kind):
        return column.cast(kind, safe=False)
    if not _is_wider(own, kind):
        raise pa.ArrowInvalid("values of one are not values of the other")
    return column.cast(kind)


def _is_wider(own: pa.DataType, kind: pa.DataType) -> bool:
    """True if a cast to a type gives the same values, or raises if one is too large for it."""
    if pa.types.is_floating(own) and pa.types.is_floating(kind):
        return bool(own.bit_width <= kind.bit_width)
    return pa.types.is_null(own) or any(
        all(any(is_kind(one) for is_kind in kinds) for one in (own, kind)) for kinds in KINDS
    )


KINDS = (
    (pa.types.is_integer,),
    (pa.types.is_decimal,),
    (pa.types.is_time,),
    (pa.types.is_boolean,),
    (pa.types.is_date, pa.types.is_timestamp),
    (*TEXT, *BYTES, pa.types.is_fixed_size_binary),
)
"""A cast between two types of the same kind keeps values as they are."""


def _is_same(one: pa.Field, other: pa.Field) -> bool:
    """True if values of one field are values of the other as they are."""
    if not one.type.equals(other.type) or id_of(one) != id_of(other):
        return False
    return all(map(_is_same, fields_inside(one.type), fields_inside(other.type)))
