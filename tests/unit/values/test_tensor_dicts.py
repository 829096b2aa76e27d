"""Dicts of arrays and tensors arrive as pickle would send them, and need no pickle."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exact import same, sent
from midepoch.delivery.layout import Destination
from midepoch.values.gather import PartedArray, PickedArray
from midepoch.values.received import RUN_BYTES, RUN_PART, copied
from midepoch.values.tensor_dicts import MARK, described
from midepoch.values.wire import dump

DTYPES = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.bfloat16, torch.float16]
SIZES = [1, 3, 64, RUN_PART // 8, RUN_PART]
DESTINATIONS = {"own memory": Destination(), "copied together": Destination(copied)}


@st.composite
def values(draw):
    size = draw(st.sampled_from(SIZES))
    numbers = torch.arange(size).remainder(113)
    kind = draw(st.sampled_from(["array", "arrays", "tensor", "tensors"]))
    dtype = draw(st.sampled_from(["i8", ">i4", "f4", "M8[s]", "U3", "?"]))
    if kind == "arrays":
        array = numbers.numpy().astype(dtype)
        return [array.copy(), array[:0].copy(), array[: size // 2].copy(), array[::2].copy()]
    if kind == "array":
        return numbers.numpy().astype(dtype).reshape(draw(st.sampled_from([(-1,), (1, -1), (-1, 1, 1)])))
    tensor = numbers.to(draw(st.sampled_from(DTYPES)))
    if kind == "tensor":
        return tensor.reshape(draw(st.sampled_from([(-1,), (1, -1), (-1, 1, 1)])))
    return [tensor.clone(), tensor[:0].clone(), tensor[: size // 2].clone()]


@pytest.mark.parametrize("destination", DESTINATIONS.values(), ids=DESTINATIONS)
@settings(deadline=None, max_examples=60)
@given(item=st.dictionaries(st.text(max_size=3), values(), min_size=1, max_size=5))
def test_dicts_of_arrays_and_tensors_arrive_as_they_are(destination, item):
    assert dump(item).head[:1] == MARK
    assert same(sent(item, destination), item)


@pytest.mark.parametrize("destination", DESTINATIONS.values(), ids=DESTINATIONS)
@settings(deadline=None, max_examples=60)
@given(
    dtype=st.sampled_from(DTYPES),
    all_lengths=st.lists(
        st.lists(st.sampled_from([0, *SIZES]), min_size=2, max_size=5).filter(any), min_size=1, max_size=4
    ),
)
def test_lists_of_tensors_alone_are_cut_up_together(destination, dtype, all_lengths):
    """As in a batch of packs: all columns are lists of tensors of one type."""
    item = {
        str(name): [torch.arange(length).remainder(113 + name).to(dtype) for length in lengths]
        for name, lengths in enumerate(all_lengths)
    }
    assert dump(item).head[:1] == MARK
    assert same(sent(item, destination), item)


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_rows_that_are_not_copied_yet_are_described_too(form):
    array = np.arange(600, dtype=np.int32).reshape(-1, 200)
    picked = PickedArray(PartedArray.of(array), np.array([2, 0]), form, None)
    arrived = sent({"x": picked}, Destination())["x"]
    assert same(arrived, array[[2, 0]] if form == "numpy" else torch.from_numpy(array[[2, 0]]))


def test_descriptions_of_equal_batches_are_equal_bytes():
    one, other = ({"x": torch.full((2, 3), number)} for number in range(2))
    assert dump(one).head is dump(other).head, "it is made once"
    assert dump({"x": torch.ones(2, 2)}).head != dump(one).head


def test_arrays_of_a_list_share_memory_only_if_they_are_small():
    def arrived(size):
        return sent({"x": [np.full(size, number, np.uint8) for number in range(3)]}, Destination())["x"]

    small, large = arrived(1000), arrived(RUN_BYTES // 2)
    assert small[0].base is small[2].base
    assert all(array.base is None for array in large)
    small[0][:] = 7
    assert [array[-1] for array in [*small, *large]] == [7, 1, 2, 0, 1, 2]


TENSOR, NUMBERS = torch.arange(5), np.arange(5)
OTHERS = {
    "no dict": [TENSOR],
    "empty": {},
    "a number": {"x": TENSOR, "n": 1},
    "a name that is no text": {1: TENSOR},
    "one tensor twice": {"x": TENSOR, "y": TENSOR},
    "one tensor in a list too": {"x": TENSOR, "y": [TENSOR, torch.ones(2, dtype=torch.int64)]},
    "a list of numbers": {"x": TENSOR, "y": [1, 2]},
    "an empty list": {"x": []},
    "arrays of two types": {"x": [NUMBERS, NUMBERS.astype("f4")]},
    "arrays of two dimensions": {"x": [np.ones((2, 2)), np.ones((2, 2))]},
    "one array twice": {"x": [NUMBERS, NUMBERS]},
    "one array": {"x": [NUMBERS]},
    "empty arrays": {"x": [np.ones(0), np.ones(0)]},
    "arrays of objects": {"x": [np.array([None]), np.array([None])]},
    "arrays and a number": {"x": [NUMBERS, 1]},
    "arrays not to be written to": {"x": [np.frombuffer(bytes(8), np.int64), np.arange(2)]},
    "an empty tensor": {"x": torch.ones(0)},
    "columns first": {"x": torch.ones(3, 4).T, "y": np.asfortranarray(np.ones((3, 4)))},
    "not to be written to": {"x": np.frombuffer(bytes(800), np.int64)},
    "objects": {"x": np.array([None, "a"])},
    "a gradient": {"x": torch.ones(2, requires_grad=True)},
    "one value with a stride": {"x": torch.ones(1).as_strided((1,), (0,))},
}


@pytest.mark.parametrize("item", OTHERS.values(), ids=OTHERS)
def test_everything_else_is_pickled(item):
    assert described(item) is None
    arrived = sent(item, Destination())
    assert type(arrived) is type(item)
    assert len(arrived) == len(item)
    if isinstance(item, dict):
        assert list(arrived) == list(item)


def test_one_tensor_under_two_names_stays_one():
    arrived = sent(OTHERS["one tensor twice"], Destination())
    assert arrived["x"] is arrived["y"]
