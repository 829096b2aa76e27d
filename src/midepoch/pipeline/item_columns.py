"""The items of a pipeline as Arrow record batches, to write them to files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa

from midepoch.errors import SchemaMismatchError
from midepoch.stages.flow import Context, Flow, single_groups
from midepoch.values.pool import PickedRows
from midepoch.values.to_arrow import to_arrow, widened

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
            data = run.rows.data.batch() if isinstance(run.rows.data, PickedRows) else run.rows.data
            names = data.schema.names if isinstance(data, pa.RecordBatch) else list(data)
            yield ItemColumns({name: data[name] for name in names}, run.keys.tolist(), where)
            run.rows.check_file()  # they may be views of a file, and are written by now
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
