"""The items of a pipeline as Arrow record batches of one schema, to write them to files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa

from midepoch.errors import SchemaMismatchError
from midepoch.stages.flow import Context, Flow, single_groups
from midepoch.values.pool import PickedRows
from midepoch.values.to_arrow import common_type, is_known, to_arrow

BATCH_ROWS = 1000
SAMPLED_BATCHES = 16
"""How many batches are made to find a type for columns that begin with nulls or empty lists, at most."""
SAME_COLUMNS = "Let the function return the same columns for every row."


@dataclass(frozen=True, slots=True)
class ItemColumns:
    """Consecutive items as columns. ``keys`` and ``context`` are for messages that name a row."""

    columns: Mapping[str, Any]
    keys: Sequence[int]
    context: Context
    stages: int
    """The number of stages that the items have passed."""

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The items as record batches: one, unless their values do not fit into that."""
        if set(self.columns) != set(schema.names):
            raise SchemaMismatchError(
                f"cache: an item has the columns {list(self.columns)}{self._where(0)}, and the first ones have "
                f"{schema.names}. {SAME_COLUMNS}"
            )
        try:
            columns = [self.column(field.name, field.type) for field in schema]
        except pa.ArrowCapacityError:
            half = len(self.keys) // 2
            if not half:
                raise
            yield from self._slice(0, half).batches(schema)
            yield from self._slice(half, len(self.keys)).batches(schema)
            return
        yield pa.record_batch(columns, schema=schema)

    def column(self, name: str, kind: pa.DataType | None = None) -> pa.Array:
        """A column, of a type or of the one that fits its values. An error names the first row that does not fit."""
        column = self.columns[name]
        try:
            return to_arrow(column, kind)
        except pa.ArrowCapacityError:
            raise
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            row = next((row for row in range(len(self.keys)) if not _fits(column[row], kind)), 0)
            expected = "" if kind is None else f" and was {kind} in the first rows"
            raise SchemaMismatchError(
                f"cache: the column {name!r} holds {_short(column[row])}{self._where(row)}{expected} ({error}). Let "
                "the function return one type for every row, such as NumPy arrays of one dtype. Then delete the "
                "folder of the cache, and cache again."
            ) from error

    def _slice(self, begin: int, end: int) -> "ItemColumns":
        columns = {name: column[begin:end] for name, column in self.columns.items()}
        return ItemColumns(columns, self.keys[begin:end], self.context, self.stages)

    def _where(self, row: int) -> str:
        return self.context.name_row(self.stages, self.keys[row], single=True)


def item_columns(flow: Flow, context: Context, stages: int) -> Iterator[ItemColumns]:
    """The items of a flow as columns, ``BATCH_ROWS`` at a time."""
    if flow.row_runs is not None:
        for run in single_groups(flow.as_row_runs(BATCH_ROWS), BATCH_ROWS):
            data = run.rows.data.batch() if isinstance(run.rows.data, PickedRows) else run.rows.data
            names = data.schema.names if isinstance(data, pa.RecordBatch) else list(data)
            yield ItemColumns({name: data[name] for name in names}, run.keys.tolist(), context, stages)
            run.rows.check_file()  # they may be views of a file, and are written by now
        return
    single_items = flow.as_single_items()
    while singles := list(islice(single_items, BATCH_ROWS)):
        items, _, keys = zip(*singles, strict=True)
        where = partial(context.name_row, stages, single=True)
        yield ItemColumns(_columns(items, keys, where), keys, context, stages)


def sample_schema(items: Iterator[ItemColumns]) -> pa.Schema | None:
    """The types of the first items, and of more where these are nulls or empty lists; None if there are no items."""
    types: dict[str, pa.DataType] = {}
    for columns in islice(items, SAMPLED_BATCHES):
        for name in columns.columns:
            kind = columns.column(name).type
            types[name] = common_type(types[name], kind) if name in types else kind
        if all(map(is_known, types.values())):
            break
    return plain_schema(pa.schema(list(types.items()))) if types else None


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema without dictionaries, of which an Arrow file can have only one for a column."""
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field for field in schema
    ]
    return pa.schema(fields, schema.metadata)


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
                f"cache: an item has the columns {list(item)}{where(key)}, and the first ones have {names}. "
                f"{SAME_COLUMNS}"
            )
    return {name: [item[name] for item in items] for name in names}


def _fits(value: Any, kind: pa.DataType | None) -> bool:
    try:
        to_arrow([value], kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return False
    return True


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
