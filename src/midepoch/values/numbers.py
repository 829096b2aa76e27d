"""Arrow's numbers as NumPy arrays and the other way round, without pandas.

pyarrow's own conversion imports pandas if it is installed. That import takes far longer than opening a dataset.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
