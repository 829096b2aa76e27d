"""Rows of many arrays, copied by where they lie in memory: the same rows as NumPy copies."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midepoch.values.addresses import RowAddresses, can_address
from midepoch.values.gather import PartedArray


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def parted(arrays):
    owners = np.repeat(np.arange(len(arrays)), [len(array) for array in arrays])
    rows = np.concatenate([np.arange(len(array)) for array in arrays])
    return owners, rows


@settings(max_examples=100, deadline=None)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    gaps=st.lists(st.integers(0, 7), min_size=6, max_size=6),
    shape=st.sampled_from([(1,), (3,), (64,), (2, 5), (171,)]),
    dtype=st.sampled_from(["u1", "<i2", "<i4", ">i4", "<f8", "M8[s]", "?"]),
    data=st.data(),
)
def test_rows_of_any_arrays_are_those_of_numpy(counts, gaps, shape, dtype, data):
    """Also if the arrays do not lie in their order, with gaps that no row divides."""
    size = np.dtype(dtype).itemsize * int(np.prod(shape))
    memory = np.random.default_rng(1).integers(0, 2, 200 + size * sum(counts), dtype=np.uint8)
    arrays, at = [], 0
    for count, gap in zip(counts, gaps, strict=False):
        at += gap
        arrays.append(memory[at : at + count * size].view(dtype).reshape(count, *shape))
        at += count * size
    arrays = data.draw(st.permutations(arrays))
    owners, rows = parted(arrays)
    indices = np.array(data.draw(st.lists(st.integers(0, sum(counts) - 1), max_size=9)), np.int64)
    picked = np.empty((len(indices), *shape), dtype)
    RowAddresses(arrays, owners, rows).pick_into(picked, indices)
    assert (picked == np.concatenate(arrays)[indices]).all()


def test_rows_are_copied_to_memory_that_lies_between_them():
    """Where all rows begin at multiples of their size, as in one map of a file and one of shared memory."""
    memory = np.arange(12 * 64, dtype=np.int64).reshape(12, 64)
    arrays, picked = [memory[:4], memory[8:]], memory[4:8]
    RowAddresses(arrays, *parted(arrays)).pick_into(picked, np.array([7, 0, 4, 1]))
    assert (picked[:, 0] // 64).tolist() == [11, 0, 8, 1]


@pytest.mark.usefixtures("one_thread")
def test_rows_of_several_arrays_are_copied_by_one_call(monkeypatch):
    arrays = tuple(np.arange(start, start + 3 * 600, dtype=np.int32).reshape(3, 600) for start in (0, 10_000, 20_000))
    column = PartedArray(arrays, *parted(arrays), is_whole=True)
    monkeypatch.setattr(np, "concatenate", None)
    assert column.pick(np.array([8, 0, 3]))[:, 0].tolist() == [21_200, 0, 10_000]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("threads", [1, 2])
def test_only_with_one_thread_and_arrays_without_gaps(threads):
    torch.set_num_threads(threads)
    array = np.zeros((4, 600))
    assert can_address([array, array]) is (threads == 1)
    assert not can_address([array, array[:, ::2]])
    assert not can_address([array, array[:0]])
