"""Rows of several arrays, picked without joining the arrays."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from midepoch.values.gather import WIDE_BYTES, PartedArray, parted_array

WIDE = WIDE_BYTES // 4


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    row=st.sampled_from([(1,), (3, 2), (WIDE,), (WIDE // 2, 3)]),
    data=st.data(),
)
def test_rows_of_several_arrays_are_picked_as_if_the_arrays_were_one(sizes, row, data):
    whole = np.arange(sum(sizes) * int(np.prod(row)), dtype=np.int32).reshape(sum(sizes), *row)
    parts = np.split(whole, np.cumsum(sizes)[:-1])
    indices = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1))), np.int64)
    picked = PartedArray(parts).pick(indices)
    np.testing.assert_array_equal(picked, whole[indices])
    assert picked.dtype == whole.dtype
    assert not np.shares_memory(picked, whole)


def test_narrow_rows_and_arrays_of_different_dtypes_or_shapes_have_no_parted_array():
    wide, wider = np.zeros((2, WIDE), np.int32), np.zeros((2, WIDE + 1), np.int32)
    assert parted_array([wide, wide]) is not None
    assert parted_array([wide, wider]) is None
    assert parted_array([wide, wide.astype(np.float32)]) is None
    assert parted_array([wide, None]) is None
    assert parted_array([wide[:, 1:]]) is None
    assert parted_array([np.zeros(5)]) is None
