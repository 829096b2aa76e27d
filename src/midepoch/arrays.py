"""Arrow's numbers as NumPy arrays, without pandas.

pyarrow's own conversion imports pandas where that is installed, which takes far longer than opening a data set.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """A view of an array of whole or floating-point numbers, of which none is null."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    values = array.buffers()[1]
    if values is None or not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(values, dtype, len(array), array.offset * dtype.itemsize)
