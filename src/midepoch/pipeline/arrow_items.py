"""Arrow files of the items that a pipeline makes: items as columns, whose types grow until they hold all values."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from midepoch._common.files import open_privately, remove, temporary_name, write_error
from midepoch.errors import SchemaMismatchError
from midepoch.stages.flow import Context, Flow, single_groups
from midepoch.values.to_arrow import to_arrow, widened

READABLE = 0o644
"""The permissions of files that others may read: rows of a cache are data like any other."""
BATCH_ROWS = 1000
SAME_COLUMNS = "Let the function return the same columns for every row."
SAME_TYPE = "Let the function return one type for every row, such as NumPy arrays of one dtype."


@dataclass(frozen=True, slots=True)
class ItemColumns:
    """Consecutive items as columns. ``keys`` are those of their rows, which ``where`` names in messages."""

    columns: Mapping[str, Any]
    keys: Sequence[int]
    where: Callable[[int], str]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The items as record batches: one, unless their values do not fit into that."""
        try:
            yield pa.record_batch({name: self._column(name) for name in self.columns})
        except pa.ArrowCapacityError:
            half = len(self.keys) // 2
            if not half:
                raise
            yield from self._slice(0, half).batches()
            yield from self._slice(half, len(self.keys)).batches()

    def widened(self, schema: pa.Schema, batch: pa.RecordBatch) -> pa.Schema:
        """The schema that holds a batch of these items too. An error names the first row that does not fit."""
        if not schema.names:  # it is the first batch
            return batch.schema
        if set(self.columns) != set(schema.names):
            raise SchemaMismatchError(
                f"cache: an item has the columns {list(self.columns)}{self.where(self.keys[0])}, and those before it "
                f"have {schema.names}. {SAME_COLUMNS}"
            )
        try:
            return widened(schema, batch.schema)
        except pa.ArrowTypeError:
            for name in batch.schema.names:
                self._check_types(name, schema.field(name).type)
            raise

    def _column(self, name: str) -> pa.Array:
        try:
            return to_arrow(self.columns[name])
        except pa.ArrowCapacityError:
            raise
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            self._check_types(name, pa.null())
            raise SchemaMismatchError(
                f"cache: the column {name!r} cannot be stored{self.where(self.keys[0])} and after it: {error}. "
                f"{SAME_TYPE}"
            ) from error

    def _check_types(self, name: str, kind: pa.DataType) -> None:
        """Raise if values of a column do not fit a type, which grows with each of them."""
        schema = pa.schema([(name, kind)])
        for key, value in zip(self.keys, self.columns[name], strict=True):
            try:
                schema = widened(schema, pa.schema([(name, to_arrow([value]).type)]))
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                before = schema.field(name).type
                expected = "" if pa.types.is_null(before) else f", and was {before} before"
                raise SchemaMismatchError(
                    f"cache: the column {name!r} holds {_short(value)}{self.where(key)}{expected} ({error}). "
                    f"{SAME_TYPE}"
                ) from error

    def _slice(self, begin: int, end: int) -> "ItemColumns":
        columns = {name: column[begin:end] for name, column in self.columns.items()}
        return ItemColumns(columns, self.keys[begin:end], self.where)


def item_columns(flow: Flow, context: Context, stages: int) -> Iterator[ItemColumns]:
    """The items of a flow as columns, ``BATCH_ROWS`` at a time. They have passed ``stages`` stages."""
    where = partial(context.name_row, stages, single=True)
    if flow.row_runs is not None:
        for run in single_groups(flow.as_row_runs(BATCH_ROWS), BATCH_ROWS):
            data = run.rows.data
            names = data.schema.names if isinstance(data, pa.RecordBatch) else list(data)
            yield ItemColumns({name: data[name] for name in names}, run.keys.tolist(), where)
        return
    single_items = flow.as_single_items()
    while singles := list(islice(single_items, BATCH_ROWS)):
        items, _, keys = zip(*singles, strict=True)
        yield ItemColumns(_columns(items, keys, where), keys, where)


def _columns(items: Sequence[Any], keys: Sequence[int], where: Callable[[int], str]) -> dict[str, list[Any]]:
    """Items as columns. All must be dicts, or record batches of one row, with the same columns."""
    if isinstance(items[0], pa.RecordBatch):
        items = [{name: item[name][0].as_py() for name in item.schema.names} for item in items]
    names = list(items[0]) if isinstance(items[0], Mapping) else []
    for item, key in zip(items, keys, strict=True):
        if not isinstance(item, Mapping):
            raise TypeError(
                f"cache needs items that are dicts of columns, but got a {type(item).__name__}{where(key)}. Let the "
                "map before it return a dict."
            )
        if item.keys() != items[0].keys():
            raise SchemaMismatchError(
                f"cache: an item has the columns {list(item)}{where(key)}, and those before it have {names}. "
                f"{SAME_COLUMNS}"
            )
    return {name: [item[name] for item in items] for name in names}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


class ItemFile:
    """A file under a temporary name until it is published. One that is not published is removed at the end."""

    def __init__(self, path: Path, schema: pa.Schema | None = None) -> None:
        self._path = path
        self._open(pa.schema([]) if schema is None else schema)

    def __enter__(self) -> "ItemFile":
        return self

    def __exit__(self, *_: Any) -> None:
        with suppress(OSError):  # a full disk is an error once more
            self._sink.close()
        remove(self._temporary)

    def _open(self, schema: pa.Schema) -> None:
        self.schema, self._temporary = schema, temporary_name(self._path)
        with self._explained():
            self._sink = open_sink(self._temporary)
            self._writer = pa.ipc.new_file(self._sink, schema)

    def write(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        """Add a batch. If the schema is another one, the batches before it are written again in that."""
        if not schema.equals(self.schema):
            self._close()
            narrow = self._temporary
            try:
                self._open(schema)
                for earlier in read_batches(narrow):
                    self.write(earlier, schema)
            finally:
                remove(narrow)
        with self._explained():
            self._writer.write_batch(as_schema(batch, schema))

    def publish(self) -> None:
        """Give the file its name. One that is there stays: it has the same rows, and may be in use.

        A cluster that lost sight of a worker starts its work again, and both may finish.
        """
        self._close()
        with self._explained():
            try:
                os.link(self._temporary, self._path)
            except FileExistsError:
                pass
            except OSError:  # not every file system has hard links
                if not self._path.exists():
                    self._temporary.replace(self._path)

    def replace(self) -> None:
        """Give the file its name, in place of the one that is there, unless that has the same schema already."""
        self._close()
        with self._explained():
            if not pa.ipc.open_file(self._path).schema.equals(self.schema):
                self._temporary.replace(self._path)

    def _close(self) -> None:
        with self._explained():
            self._writer.close()
            self._sink.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say what an error of the file system means for the cache."""
        try:
            yield
        except OSError as error:
            raise write_error(error, self._path.parent, "The cache") from error


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with the columns of a schema, in its order and types. Values that would change raise."""
    return batch if batch.schema.equals(schema) else batch.select(schema.names).cast(schema)


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of a file, mapped."""
    with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def open_sink(path: Path) -> pa.NativeFile:
    """A new file to write to, which no other user can change, unless those of the folder are trusted."""
    open_privately(path, READABLE).close()
    return pa.OSFile(str(path), "wb")
