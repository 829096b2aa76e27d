"""Picking rows of Arrow record batches and tables, correctly for every type."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.types import I64

Data = TypeVar("Data", pa.RecordBatch, pa.Table)


def take(data: Data, indices: I64) -> Data:
    """The rows at ``indices``, in that order."""
    return _without_offsets(data).take(pa.array(indices))


def keep(data: Data, mask: Sequence[bool] | npt.NDArray[np.bool_]) -> Data:
    """The rows where ``mask`` is true."""
    return _without_offsets(data).filter(pa.array(mask, pa.bool_()))


def _without_offsets(data: Data) -> Data:
    """The same rows; columns of which Arrow would pick wrong rows are copied, so that they start at offset 0."""
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
    if isinstance(kind, pa.BaseExtensionType):
        return _is_misread(kind.storage_type)
    if pa.types.is_fixed_size_list(kind) and pa.types.is_fixed_size_list(kind.value_type):
        return True
    return any(_is_misread(kind.field(number).type) for number in range(kind.num_fields))
