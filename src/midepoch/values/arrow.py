"""Arrow's memory: numbers as NumPy arrays and the other way round, and rows that are picked, joined and copied.

Nothing here needs pandas, which pyarrow's own conversion imports if it is installed: that takes far longer than opening
a dataset.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.hashing import I64
from midepoch.errors import DataFormatError

DTYPES = {
    pa.type_for_alias(name).id: np.dtype(name)
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}
"""NumPy's dtype of each number type, by Arrow's type id: comparing ids is faster than asking a type what it is."""
TYPES = {dtype: pa.from_numpy_dtype(dtype) for dtype in DTYPES.values()}
"""Arrow's type of each of those dtypes."""

Data = TypeVar("Data", pa.RecordBatch, pa.Table)
LONG_BYTES = 512
"""Lists of numbers with as many bytes on average are copied one by one. Arrow picks single numbers, which is slower."""

FLAT = {*DTYPES, *(kind.id for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.bool_()))}
"""The ids of types without fields, which most columns have: comparing ids is faster than asking a type what it is."""


def take(data: Data, indices: I64) -> Data:
    """The rows at ``indices``, in that order."""
    if isinstance(data, pa.RecordBatch) and any(map(_holds_long_lists, data.columns)):
        return gather([(data, indices)], np.arange(len(indices)))
    return _take(data, indices)


def _take(data: Data, indices: I64) -> Data:
    try:
        return _without_offsets(data).take(arrow_of(indices))
    except pa.ArrowNotImplementedError as error:
        raise _not_picked(data) from error


def gather(parts: Sequence[tuple[pa.RecordBatch, I64]], places: I64) -> pa.RecordBatch:
    """Some rows of several record batches: of all these rows, one part after the other, those at ``places``.

    Long lists of numbers are copied once. Other columns are taken from each part, joined, and put in order.
    """
    schema, long = parts[0][0].schema, dict[str, pa.Array]()
    for number, field in enumerate(schema):
        if len(places) and all(_holds_long_lists(batch.column(number)) for batch, _ in parts):
            long[field.name] = _gather_lists([(batch.column(number), rows) for batch, rows in parts], places)
    others = [name for name in schema.names if name not in long]
    if others or not long:
        taken = [_sliced_or_taken(batch.select(others) if long else batch, rows) for batch, rows in parts]
        rest = _take(taken[0] if len(taken) == 1 else concat_batches(taken), places)
        if not long:
            return rest
        long |= {name: rest.column(name) for name in others}
    return pa.RecordBatch.from_arrays([long[name] for name in schema.names], schema=schema)


def _sliced_or_taken(batch: pa.RecordBatch, rows: I64) -> pa.RecordBatch:
    is_slice = len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())
    return batch.slice(int(rows[0]), len(rows)) if is_slice else _take(batch, rows)


def _not_picked(data: pa.RecordBatch | pa.Table) -> DataFormatError:
    """The error for columns of types of which Arrow cannot pick rows."""
    columns = [f"{field.name!r} ({field.type})" for field in data.schema if not _is_picked(field.type)]
    return DataFormatError(
        f"Arrow cannot pick single rows of {', '.join(columns) or 'a column'}, and a shuffle or a filter picks rows. "
        "Leave such columns out with read(..., columns=[...]), or write them to the files as another type. "
        "pyarrow.compute.run_end_decode(column) decodes a run-end encoded column. A shuffle can pick rows of it as "
        "Python values: with_format('python')."
    )


def _is_picked(kind: pa.DataType) -> bool:
    try:
        pa.array([], kind).take(pa.array([], pa.int64()))
    except pa.ArrowNotImplementedError:
        return False
    return True


def _without_offsets(data: Data) -> Data:
    """The same rows; columns of which Arrow would pick wrong rows are copied, so that they start at offset 0."""
    if all(kind.id in FLAT for kind in data.schema.types):
        return data
    for number, kind in enumerate(data.schema.types):
        if _is_misread(kind):
            column = data.column(number)
            chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
            moved = [pa.concat_arrays([chunk, chunk.slice(0, 0)]) if chunk.offset else chunk for chunk in chunks]
            whole = pa.chunked_array(moved, kind) if isinstance(column, pa.ChunkedArray) else moved[0]
            data = data.set_column(number, data.schema.field(number), whole)
    return data


def _is_misread(kind: pa.DataType) -> bool:
    """True if Arrow (26 and before) ignores the offset of such columns when it takes or filters rows."""
    if kind.id in FLAT:
        return False
    if isinstance(kind, pa.BaseExtensionType):
        return _is_misread(kind.storage_type)
    if pa.types.is_fixed_size_list(kind) and pa.types.is_fixed_size_list(kind.value_type):
        return True
    return any(_is_misread(kind.field(number).type) for number in range(kind.num_fields))


def _holds_long_lists(column: pa.Array) -> bool:
    """True for lists of numbers without nulls that are long on average."""
    kind = column.type
    if (
        kind.id in FLAT
        or not (pa.types.is_list(kind) or pa.types.is_large_list(kind))
        or kind.value_type.id not in DTYPES
    ):
        return False
    if not len(column) or column.null_count or column.values.null_count:
        return False
    ends = numbers_of(column.offsets)
    return bool((ends[-1] - ends[0]) * DTYPES[kind.value_type.id].itemsize >= LONG_BYTES * len(column))


def _gather_lists(parts: "Sequence[tuple[pa.Array, I64]]", places: I64) -> pa.Array:
    """Lists of numbers of several columns. Raises if they have too many numbers: Arrow would not notice."""
    kind, dtype = parts[0][0].type, numbers_of(parts[0][0].offsets).dtype
    bounds = [numbers_of(column.offsets) for column, _ in parts]
    starts, stops = (
        np.concatenate([own[rows + more] for own, (_, rows) in zip(bounds, parts, strict=True)])[places]
        for more in (0, 1)
    )
    ends = np.concatenate([[0], np.cumsum(stops - starts, dtype=np.int64)])
    if ends[-1] > np.iinfo(dtype).max:
        raise pa.ArrowCapacityError(f"offset overflow: {ends[-1]:,} numbers are too many for a column of {kind}")
    values = [numbers_of(column.values) for column, _ in parts]
    owners = np.repeat(np.arange(len(parts)), [len(rows) for _, rows in parts])[places]
    lists = [
        values[owner][start:stop]
        for owner, start, stop in zip(owners.tolist(), starts.tolist(), stops.tolist(), strict=True)
    ]
    child = pa.Array.from_buffers(kind.value_type, ends[-1], [None, pa.py_buffer(np.concatenate(lists))], 0)
    buffers = [None, pa.py_buffer(ends.astype(dtype))]
    return pa.Array.from_buffers(kind, len(places), buffers, 0, children=[child])


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """A view of an array of integers or floats without nulls."""
    dtype = DTYPES[array.type.id]
    values = array.buffers()[1]
    if values is None or not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(values, dtype, len(array), array.offset * dtype.itemsize)


def arrow_of(numbers: npt.NDArray[Any]) -> pa.Array:
    """Arrow's array of integers, floats or booleans. Numbers that lie side by side are not copied."""
    if numbers.dtype == bool:
        values, kind = np.packbits(numbers, bitorder="little"), pa.bool_()
    else:
        values, kind = np.ascontiguousarray(numbers), TYPES.get(numbers.dtype) or pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(values)])


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One record batch out of several. Types that were inferred from single items, and so differ, are promoted."""
    schema = batches[0].schema
    if all(batch.schema.equals(schema) for batch in batches):
        return pa.concat_batches(batches)
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks().to_batches()[0]


def standalone(item: Any) -> Any:
    """An item to send to another process: a record batch is copied out of the block it is a slice of.

    Pickling a slice of a record batch sends the memory of the whole block.
    """
    if not isinstance(item, pa.RecordBatch):
        return item
    try:
        return pa.concat_batches([item, item.slice(0, 0)])
    except pa.ArrowException:  # some dictionaries cannot be joined, not even to themselves
        return item
