"""Rows of several arrays, picked without joining the arrays."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from midepoch.values.gather import WIDE_BYTES, PartedArray, joined_array

WIDE = WIDE_BYTES // 4


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    row=st.sampled_from([(WIDE,), (WIDE // 2, 3)]),
    data=st.data(),
)
def test_rows_of_several_arrays_are_picked_as_if_the_arrays_were_one(sizes, row, data):
    whole = np.arange(sum(sizes) * int(np.prod(row)), dtype=np.int32).reshape(sum(sizes), *row)
    parts = np.split(whole, np.cumsum(sizes)[:-1])
    numbers = st.integers(0, len(whole) - 1)
    runs = st.tuples(numbers, numbers).map(lambda ends: [*range(min(ends), max(ends) + 1)])
    indices = np.array(data.draw(st.lists(numbers) | runs), np.int64)
    joined = joined_array([*map(PartedArray.of, parts)])
    picked = joined.pick(indices)
    np.testing.assert_array_equal(picked, whole[indices])
    np.testing.assert_array_equal(joined.at(indices).pick(np.arange(len(indices))), whole[indices])
    assert picked.dtype == whole.dtype
    assert not np.shares_memory(picked, whole)


def test_some_rows_of_each_array_are_numbered_through():
    first, second = np.arange(4 * WIDE).reshape(4, WIDE), 100 + np.arange(5 * WIDE).reshape(5, WIDE)
    parts = [PartedArray.of(first, np.array([3, 1])), PartedArray.of(second), PartedArray.of(first, np.array([0]))]
    joined = joined_array([joined_array(parts).at(np.array([7, 0, 6])), PartedArray.of(second, np.array([2]))])
    picked = joined.pick(np.array([3, 0, 1, 2]))
    np.testing.assert_array_equal(picked, [second[2], first[0], first[3], second[4]])


def test_narrow_rows_and_arrays_of_different_dtypes_or_shapes_are_not_joined():
    wide, wider = np.zeros((2, WIDE), np.int32), np.zeros((2, WIDE + 1), np.int32)

    def joined(*arrays):
        return joined_array([array if array is None else PartedArray.of(array) for array in arrays])

    assert joined(wide, wide) is not None
    assert joined(wide, wider) is None
    assert joined(wide, wide.astype(np.float32)) is None
    assert joined(wide, None) is None
    assert joined(wide[:, 1:]) is None
    assert joined(np.zeros(5)) is None
