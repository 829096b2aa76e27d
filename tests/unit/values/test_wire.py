"""Items as bytes: what arrives is what was sent, down to its types, and shares no memory with it."""

import pickle
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exact import same
from midepoch.delivery.layout import Destination, Layout, read_layout
from midepoch.values import received
from midepoch.values.gather import PartedArray, PickedArray, joined_array
from midepoch.values.wire import SMALL, dump, load

LARGE = SMALL // 2 + 3


def sent(item):
    head, memory, arrays, _ = dump(item)
    copied = [memoryview(bytearray(one)) for one in memory]
    arrived = load(head, copied, arrays)
    for one in copied:  # as the next message would
        one[:] = bytes(len(one))
    return arrived


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**80), 2**80),
    st.floats(),
    st.text(),
    st.binary(),
    st.integers(0, 255).map(np.uint8),
    st.integers(-9, 9).map(np.int64),
    st.booleans().map(np.bool_),
    st.decimals(allow_nan=False).map(Decimal),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(values)
def test_python_values_arrive_as_they_are(value):
    assert same(sent(value), value)


ARRAYS = {
    "numbers": np.arange(LARGE),
    "small": np.arange(3),
    "rows": np.arange(4 * LARGE, dtype=np.float32).reshape(4, -1),
    "columns first": np.asfortranarray(np.arange(4 * LARGE).reshape(4, -1)),
    "part of rows": np.arange(4 * LARGE).reshape(4, -1)[:, ::2],
    "not to be written to": np.frombuffer(bytes(8 * LARGE), np.int64),
    "without values": np.empty((0, 7)),
    "one value": np.array(7.5),
    "large and with an empty axis": np.empty((LARGE, 0, LARGE)),
    "objects": np.array([{"a": 1}, None, "x"] * LARGE, object),
    "dates": np.arange(LARGE).astype("M8[s]"),
    "text": np.array(["a", "bcd"] * LARGE),
    "records": np.zeros(LARGE, [("x", "i4"), ("y", "f8")]),
    "big endian": np.arange(LARGE, dtype=">i4"),
    "flags": np.ones(2 * SMALL, bool),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_arrays_arrive_as_pickle_sends_them(array):
    expected = pickle.loads(pickle.dumps(array, protocol=5))
    arrived = sent({"x": array})["x"]
    assert type(arrived) is np.ndarray
    assert (arrived.dtype, arrived.shape) == (expected.dtype, expected.shape)
    assert arrived.flags.c_contiguous == expected.flags.c_contiguous
    assert arrived.flags.f_contiguous == expected.flags.f_contiguous
    assert arrived.flags.writeable == expected.flags.writeable
    assert arrived.tobytes() == expected.tobytes() or array.dtype == object
    assert arrived.tolist() == expected.tolist()


class Note(np.ndarray):
    pass


def test_other_classes_of_arrays_keep_their_class():
    arrived = sent(np.arange(LARGE).view(Note))
    assert type(arrived) is Note
    assert arrived.tolist() == list(range(LARGE))


numbers = torch.arange(2 * LARGE)
TENSORS = {
    **{str(dtype): (numbers % 2).to(dtype) for dtype in (torch.bool, torch.uint8, torch.int32, torch.int64)},
    **{str(dtype): (numbers % 9).to(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float64)},
    "complex": numbers.to(torch.complex64) * 1j,
    "conjugate": (numbers.to(torch.complex64) * 1j).conj(),
    "small": torch.tensor([1, 2]),
    "one value": torch.tensor(3.5),
    "without values": torch.empty(0, 5),
    "channels last": torch.rand(2, 3, 16, 16).to(memory_format=torch.channels_last),
    "transposed": torch.rand(20, 30).T,
    "every second": numbers[::2],
    "expanded": torch.tensor([[1.0], [2.0]]).expand(2, LARGE),
    "with a gradient": torch.rand(LARGE, requires_grad=True),
    "sparse": torch.eye(LARGE).to_sparse(),
    "parameter": torch.nn.Parameter(torch.rand(LARGE)),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_tensors_arrive_as_they_are(tensor):
    arrived = sent([tensor])[0]
    assert type(arrived) is type(tensor)
    assert (arrived.dtype, arrived.shape, arrived.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert arrived.requires_grad == tensor.requires_grad
    assert torch.equal(arrived.to_dense().resolve_conj(), tensor.to_dense().resolve_conj())


def test_images_whose_channels_come_last_stay_so():
    arrived = sent(TENSORS["channels last"])
    assert arrived.is_contiguous(memory_format=torch.channels_last)
    assert sent(TENSORS["transposed"]).stride() == TENSORS["transposed"].stride()


def test_what_arrives_can_be_written_to_and_is_nobody_elses():
    array, tensor = np.zeros(LARGE), torch.zeros(LARGE)
    arrived = sent([array, tensor, array])
    arrived[0][:] = 1
    arrived[1][:] = 1
    assert not array.any()
    assert not tensor.any()


def test_one_object_in_two_places_of_an_item_stays_one():
    array, tensor = np.zeros(LARGE), torch.zeros(LARGE)
    arrived = sent({"a": array, "b": array, "c": [tensor, tensor]})
    assert arrived["a"] is arrived["b"]
    assert arrived["c"][0] is arrived["c"][1]


def test_record_batches_arrive():
    batch = pa.RecordBatch.from_pydict({"text": ["x" * SMALL, None, "é"], "n": [1, None, 3], "l": [[1], [], None]})
    assert sent(batch).equals(batch, check_metadata=True)
    assert sent({"b": [batch]})["b"][0].equals(batch)


def test_the_names_of_the_values_of_lists_arrive():
    """Pickle alone forgets those of fixed-size lists, which Parquet calls "element"."""
    vector = pa.list_(pa.field("element", pa.float32(), nullable=False), 2)
    types = [vector, pa.list_(pa.field("element", vector)), pa.struct({"v": vector}), pa.large_list(vector)]
    batch = pa.RecordBatch.from_arrays([pa.nulls(3, kind) for kind in types], [f"{n}" for n in range(len(types))])
    arrived = sent(batch)
    assert str(arrived.schema) == str(batch.schema)
    assert [str(column.type) for column in arrived.columns] == [str(kind) for kind in types]


@pytest.mark.parametrize(
    "shapes", [[(3,), (5, 7), ()], [(received.LARGE,), (1,), (2,), (received.LARGE, 2), (9,)], [(30_000,)] * 40]
)
def test_small_tensors_that_lie_together_are_copied_together(shapes):
    """Between them are an array and other memory. What is copied together is bounded."""
    item = [torch.randint(0, 99, shape, dtype=torch.int16 if len(shape) < 2 else torch.int64) for shape in shapes]
    item.insert(1, np.arange(SMALL))
    item.append({"buffer": pickle.PickleBuffer(b"other"), "turned": torch.arange(600).reshape(20, 30).t()})
    copies = []

    def copy(tensor):
        copies.append(len(tensor))
        return tensor.clone()

    head, memory, arrays, _ = dump(item)
    starts = np.cumsum([0, *(-(-len(part) // 64) * 64 for part in memory)])
    spans = [(int(start), int(start) + len(part)) for start, part in zip(starts[:-1], memory, strict=True)]
    view = memoryview(bytearray(int(starts[-1])))
    for (start, stop), part in zip(spans, memory, strict=True):
        view[start:stop] = part
    parts = [view[start:stop] for start, stop in spans]
    arrived = load(head, parts, arrays, received.TensorRuns(view, spans[:arrays], copy))
    view[:] = bytes(len(view))
    for one, other in zip(item[:-1], arrived[:-1], strict=True):
        assert type(one) is type(other)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert torch.equal(arrived[-1]["turned"], item[-1]["turned"])
    large = [start for start, stop in spans[:arrays] if stop - start >= received.LARGE]
    assert len(copies) <= 2 * len(large) + 2 * len(view) // received.RUN_BYTES + 1
    assert max(copies) <= max(received.RUN_BYTES, *(stop - start for start, stop in spans))


@pytest.mark.parametrize("form", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.float16, np.uint8])
def test_an_array_that_is_picked_where_it_is_sent_arrives_as_if_it_was_picked_before(form, dtype):
    parts = [np.arange(2000 * rows).reshape(rows, 2000).astype(dtype) for rows in (3, 1, 5)]
    column, indices = joined_array([*map(PartedArray.of, parts)]), np.array([8, 0, 3, 3, 5])
    picked, checks = column.pick(indices), []
    later = PickedArray(column, indices, form, lambda: checks.append("check"))
    item = {"x": later, "id": 7}
    memory = bytearray(100_000)
    layout = Layout(memoryview(memory))
    pickled = dump(item)
    assert pickled.memory == [later], "nothing is copied yet"
    layout.add_pickled(pickled, (1,))
    (chunk,) = read_layout(memoryview(memory), layout.finish(), Destination())
    memory[:] = bytes(len(memory))
    assert checks == ["check", "check"]
    (got,) = chunk.items
    np.testing.assert_array_equal(np.asarray(got["x"]), picked)
    expected = torch.from_numpy(picked) if form == "torch" else picked
    assert (type(got["x"]), got["x"].dtype, got["id"]) == (type(expected), expected.dtype, 7)
    got["x"][0] = 0


@dataclass
class Holder:
    tensor: Any


@pytest.mark.parametrize(
    ("item", "is_plain"),
    [
        ({"x": torch.ones(3), "text": "a", "number": 1.5}, True),
        ([1, (torch.ones(2000), None), {"x": [torch.ones(2)] * 3}], True),
        ({"x": np.ones(3), "wide": np.ones(2000), "one": np.float32(2), "objects": np.array([None])}, True),
        (OrderedDict(x=torch.ones(2)), False),
        (Holder(torch.ones(2)), False),
        ({"x": torch.empty(0)}, False),
        ({"x": torch.nn.Parameter(torch.ones(2))}, False),
        ({"x": [torch.ones(2).to_sparse()]}, False),
    ],
)
def test_only_what_has_no_other_tensors_is_plain(item, is_plain):
    assert dump(item).is_plain == is_plain
