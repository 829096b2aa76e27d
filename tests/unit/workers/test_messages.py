"""Messages: what arrives is what was sent, down to its types, and shares no memory with it."""

import datetime
import io
import pickle
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exact import same
from midepoch.delivery.turns import Turns, in_succession
from midepoch.values.rows import RowItems, RowRounds, Rows, row_items
from midepoch.workers.messages import dump, frames_of, load, read_message

LARGE = 259


def sent(item):
    (arrived,) = arrived_turns(Turns([item])).items
    return arrived


def arrived_turns(turns, most=1000):
    """Turns after a way through memory that is overwritten."""
    frames = list(frames_of(turns, most))
    assert all(frame.turns <= most for frame in frames)
    memory = memoryview(bytearray(sum(frame.size for frame in frames)))
    at = 0
    for frame in frames:
        frame.write(memory[at : at + frame.size])
        at += frame.size
    parts = list(read_message(memory))
    memory[:] = bytes(len(memory))  # as the next message would
    return in_succession(parts)


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
    "flags": np.ones(2 * LARGE, bool),
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


def test_the_names_of_the_values_of_lists_arrive():
    """Pickle alone forgets those of fixed-size lists, which Parquet calls "element"."""
    vector = pa.list_(pa.field("element", pa.float32(), nullable=False), 2)
    types = [vector, pa.list_(pa.field("element", vector)), pa.struct({"v": vector}), pa.large_list(vector)]
    batch = pa.RecordBatch.from_arrays([pa.nulls(3, kind) for kind in types], [f"{n}" for n in range(len(types))])
    arrived = sent(batch)
    assert str(arrived.schema) == str(batch.schema)
    assert [str(column.type) for column in arrived.columns] == [str(kind) for kind in types]


def test_a_tensor_owns_its_memory_so_a_file_with_it_is_small():
    batch = {"x": torch.arange(1000), "packs": [torch.arange(9) for _ in range(100)]}
    file = io.BytesIO()
    torch.save(sent(batch)["packs"][3], file)
    assert len(file.getvalue()) < 4000


TYPES = {
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(),
    pa.large_string(): st.text(),
    pa.binary(): st.binary(),
    pa.large_binary(): st.binary(),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2200, 1, 1)),
    pa.decimal128(20, 3): st.integers(-(10**9), 10**9).map(lambda number: Decimal(number).scaleb(-3)),
}
flat = st.sampled_from(list(TYPES)).map(lambda kind: (kind, st.none() | TYPES[kind]))
kinds = st.recursive(
    flat,
    lambda inner: st.one_of(
        inner.map(lambda one: (pa.list_(one[0]), st.none() | st.lists(one[1], max_size=3))),
        inner.map(lambda one: (pa.large_list(one[0]), st.none() | st.lists(one[1], max_size=3))),
        flat.map(lambda one: (pa.list_(one[0], 2), st.none() | st.lists(one[1], min_size=2, max_size=2))),
        inner.map(lambda one: (pa.struct([("x", one[0])]), st.none() | st.fixed_dictionaries({"x": one[1]}))),
    ),
    max_leaves=3,
)


@st.composite
def batches(draw):
    columns = draw(st.lists(kinds, min_size=1, max_size=3))
    count = draw(st.integers(1, 12))
    return pa.RecordBatch.from_arrays(
        [pa.array(draw(st.lists(of, min_size=count, max_size=count)), kind) for kind, of in columns],
        [f"c{number}" for number in range(len(columns))],
    )


def sent_rows(items):
    """The items of rows of one or several lanes, which arrive with their cursors and hashes."""
    count, lanes = len(items), len(items.parts)
    cursors = np.arange(2 * count).reshape(-1, 2)
    hashes = np.arange(count, dtype=np.uint64) + np.uint64(2**63)
    arrived = arrived_turns(Turns(items, cursors, hashes), most=max(lanes, 1 + count // 2))
    assert [tuple(cursor) for cursor in arrived.cursors] == [*map(tuple, cursors.tolist())]
    assert arrived.hashes.tolist() == hashes.tolist()
    return arrived.items


@settings(max_examples=80, deadline=None)
@given(batches(), st.sampled_from(["python", "numpy", "torch"]), st.sampled_from([None, 1, 3, 5]), st.data())
def test_rows_and_batches_are_those_of_this_process(batch, form, size, data):
    start = data.draw(st.integers(0, batch.num_rows - 1))
    rows = Rows(batch.slice(start), form)
    items = row_items(rows, size)
    assert isinstance(items, RowItems)
    assert items.are_columns == (form == "python" or (form == "torch" and size is not None))
    here = [*items]
    if form == "numpy":
        here = pickle.loads(pickle.dumps(here, protocol=5))  # which lets arrays of dates be written to
    assert same(sent_rows(items), here)
    begin = data.draw(st.integers(0, len(items) - 1))
    end = data.draw(st.integers(begin + 1, len(items)))
    assert same(sent_rows(items.slice(begin, end)), here[begin:end])


@pytest.mark.parametrize("form", ["python", "numpy", "torch"])
@pytest.mark.parametrize("size", [None, 7])
def test_rows_of_several_lanes_come_one_of_each_lane(form, size):
    values = np.arange(4 * 1000 * 300, dtype=np.int32).reshape(4, 1000, 300)
    parts = tuple(
        RowItems(Rows(pa.record_batch({"x": pa.FixedSizeListArray.from_arrays(lane.ravel(), 300)}), form), size)
        for lane in values
    )
    items = RowRounds(parts)
    assert same(sent_rows(items), list(items))


def test_other_columns_are_sent_item_by_item():
    column = pa.array(["a", "b"] * 3).dictionary_encode()
    for form in ("python", "numpy", "arrow"):
        items = row_items(Rows(pa.RecordBatch.from_arrays([column], ["x"]), form), 2)
        assert not items.are_columns
        assert same(sent_rows(items), list(items))


def test_a_slice_of_a_record_batch_is_sent_without_the_rest():
    batch = pa.RecordBatch.from_pydict({"x": range(100_000)})
    (frame,) = frames_of(Turns(RowItems(Rows(batch.slice(7, 2), "arrow"), 2)), 10)
    assert frame.size < 2000


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.int64])
def test_an_empty_tensor_of_any_type_arrives(dtype):
    arrived = load([memoryview(piece) for piece in dump(torch.empty((2, 0), dtype=dtype))])
    assert (arrived.dtype, arrived.shape) == (dtype, (2, 0))
