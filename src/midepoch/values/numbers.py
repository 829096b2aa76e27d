"""Arrow's numbers as NumPy arrays, without pandas.

pyarrow's own conversion imports pandas if it is installed. That import takes far longer than opening a dataset.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

DTYPES = {
    kind.id: np.dtype(kind.to_pandas_dtype())
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64()),
    )
}
"""NumPy's dtype of each number type, by Arrow's type id: comparing ids is faster than asking a type what it is."""


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """A view of an array of integers or floats without nulls."""
    dtype = DTYPES[array.type.id]
    values = array.buffers()[1]
    if values is None or not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(values, dtype, len(array), array.offset * dtype.itemsize)
