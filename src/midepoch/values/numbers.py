"""Arrow's numbers as NumPy arrays, without pandas.

pyarrow's own conversion imports pandas where that is installed, which takes far longer than opening a data set.
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
"""The types of numbers by their ids: asking a type for its name, or what it is, takes longer than the view."""


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """A view of an array of whole or floating-point numbers, of which none is null."""
    dtype = DTYPES[array.type.id]
    values = array.buffers()[1]
    if values is None or not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(values, dtype, len(array), array.offset * dtype.itemsize)
