"""Lists of tensors that are sent as one piece of memory arrive as the same tensors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exact import same, sent
from midepoch.delivery.layout import Destination
from midepoch.values.received import copied
from midepoch.values.tensor_lists import JoinedList, with_tensor_lists

DTYPES = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.bfloat16, torch.float16]
OWN, TOGETHER = Destination(), Destination(copied)


@st.composite
def batches(draw):
    lists = {}
    for name in draw(st.lists(st.sampled_from("abcd"), unique=True, min_size=1)):
        dtype = draw(st.sampled_from(DTYPES))
        lengths = draw(st.lists(st.integers(0, 300), min_size=1, max_size=6))
        lists[name] = [torch.from_numpy(np.arange(length)).remainder(251).to(dtype) for length in lengths]
    return {**lists, "more": draw(st.sampled_from([1, "text", None, [1, 2], ["a"], torch.ones(3), np.ones(3)]))}


@pytest.mark.parametrize("destination", [OWN, TOGETHER])
@settings(deadline=None)
@given(batch=batches())
def test_batches_with_lists_of_tensors_arrive_as_they_are(destination, batch):
    assert same(sent(batch, destination), batch)


def test_tensors_have_memory_of_their_own_unless_they_are_copied_together():
    item = {"x": [torch.arange(5), torch.arange(7)]}
    one, other = sent(item, OWN)["x"]
    assert (one.untyped_storage().nbytes(), other.untyped_storage().nbytes()) == (40, 56)
    one, other = sent(item, TOGETHER)["x"]
    assert one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    one += 1
    assert other.tolist() == list(range(7))


@pytest.mark.parametrize("many", [0, 1, 2])
def test_one_tensor_in_two_places_stays_one(many):
    tensor, other = torch.arange(5), torch.arange(3)
    item = [
        {"x": [tensor, tensor]},
        {"x": [tensor, other], "y": tensor},
        {"x": [tensor, other], "y": {"z": tensor}},
    ][many]
    assert with_tensor_lists(item) is item
    got = sent(item, OWN)
    again = [got["x"][1:], [got.get("y")], [(got.get("y") or {}).get("z")] if many == 2 else []][many]
    assert got["x"][0] is again[0]


@pytest.mark.parametrize(
    "values",
    [
        [torch.ones(2)],
        [torch.ones(2), torch.ones(2, dtype=torch.float64)],
        [torch.ones(2), torch.ones(2, 2)],
        [torch.ones(4)[::2], torch.ones(2)],
        [torch.ones(2, requires_grad=True), torch.ones(2)],
        [torch.ones(2), None],
        [torch.ones(0), torch.ones(0)],
        [torch.ones(1).as_strided((1,), (0,)), torch.ones(2)],
        [torch.nn.Parameter(torch.ones(2)), torch.ones(2)],
    ],
)
def test_other_lists_stay_lists(values):
    item = {"x": values}
    assert with_tensor_lists(item) is item
    assert same(sent(item, OWN), item)


def test_the_users_item_is_not_changed():
    item = {"x": [torch.ones(2), torch.ones(3)], "n": 1}
    joined = with_tensor_lists(item)
    assert isinstance(joined["x"], JoinedList)
    assert [type(one) for one in item["x"]] == [torch.Tensor, torch.Tensor]
    assert with_tensor_lists([item]) == [item]
