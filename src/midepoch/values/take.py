"""Picking rows of Arrow's record batches and tables, right for all types."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Data = TypeVar("Data", pa.RecordBatch, pa.Table)


def take(data: Data, places: npt.NDArray[np.int64]) -> Data:
    """The rows at some places."""
    return _at_its_start(data).take(pa.array(places))


def keep(data: Data, mask: Sequence[bool] | npt.NDArray[np.bool_]) -> Data:
    """The rows where a mask is true."""
    return _at_its_start(data).filter(pa.array(mask, pa.bool_()))


def _at_its_start(data: Data) -> Data:
    """The same rows, with columns that begin where their memory does, if Arrow would pick other rows of them."""
    for number, kind in enumerate(data.schema.types):
        if _is_misread(kind):
            column = data.column(number)
            chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
            moved = [pa.concat_arrays([chunk, chunk.slice(0, 0)]) if chunk.offset else chunk for chunk in chunks]
            whole = pa.chunked_array(moved, kind) if isinstance(column, pa.ChunkedArray) else moved[0]
            data = data.set_column(number, data.schema.field(number), whole)
    return data


def _is_misread(kind: pa.DataType) -> bool:
    """Whether Arrow (as of 26) takes and filters slices of such columns as if they began elsewhere."""
    if isinstance(kind, pa.BaseExtensionType):
        return _is_misread(kind.storage_type)
    if pa.types.is_fixed_size_list(kind) and pa.types.is_fixed_size_list(kind.value_type):
        return True
    return any(_is_misread(kind.field(number).type) for number in range(kind.num_fields))
