"""Arrow numbers as NumPy views."""

import numpy as np
import pyarrow as pa
import pytest

from columns import SCALARS
from midepoch.values.arrow import arrow_of, numbers_of


@pytest.mark.parametrize("name", [name for name in SCALARS if name.startswith(("int", "uint", "float"))])
def test_numbers_and_their_slices_are_views_of_arrows_memory(name):
    arrow_type, plain = SCALARS[name]
    column = pa.array(plain, arrow_type)
    for start, stop in ((0, 5), (1, 4), (4, 5), (2, 2)):
        view = numbers_of(column.slice(start, stop - start))
        assert view.dtype == np.dtype(name)
        assert view.tolist() == column.to_pylist()[start:stop]
        if len(view):
            assert view.ctypes.data == column.buffers()[1].address + start * view.itemsize


@pytest.mark.parametrize(
    "kind", ["int8", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64", "bool"]
)
def test_arrow_of_is_what_pyarrow_makes_of_an_array(kind):
    numbers = np.random.default_rng(0).integers(0, 100, 41).astype(kind)
    for values in (numbers, numbers[:8], numbers[3:20], numbers[::2], numbers[::-3], numbers[:0]):
        found = arrow_of(values)
        found.validate(full=True)
        assert found.equals(pa.array(values))
