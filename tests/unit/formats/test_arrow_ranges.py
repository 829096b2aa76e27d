"""Some rows of a record batch equal the slice of the whole one, and no more bytes are read than they need."""

import io
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from midepoch.formats.arrow import scan
from midepoch.formats.arrow_ranges import (
    ALIGNMENT,
    can_read_rows,
    fetch_all,
    parse_layout,
    read_rows,
    shape_of,
    together,
)
from objects import stored

LEAVES = [
    pa.null(),
    pa.bool_(),
    pa.int8(),
    pa.uint16(),
    pa.float32(),
    pa.float64(),
    pa.timestamp("us", "UTC"),
    pa.decimal128(20, 3),
    pa.month_day_nano_interval(),
    pa.binary(3),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.large_binary(),
]
OTHERS = [
    pa.dictionary(pa.int8(), pa.string()),
    pa.string_view(),
    pa.binary_view(),
    pa.list_view(pa.int8()),
    pa.large_list_view(pa.int8()),
    pa.run_end_encoded(pa.int16(), pa.int8()),
    pa.dense_union([pa.field("a", pa.int8())]),
    pa.sparse_union([pa.field("a", pa.int8())]),
]


def nested(inner):
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.tuples(inner, st.integers(1, 3)).map(lambda pair: pa.list_(*pair)),
        st.lists(inner, min_size=0, max_size=3).map(
            lambda kinds: pa.struct([(f"f{n}", t) for n, t in enumerate(kinds)])
        ),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    )


TYPES = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4)


def random_values(kind, count, rng, nulls):
    """An array of a type, made of its buffers and children, with values under nulls too."""
    valid = rng.random(count) >= nulls
    mask = None if not nulls else pa.py_buffer(np.packbits(valid, bitorder="little"))
    if pa.types.is_null(kind):
        return pa.nulls(count)
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(kind, count, [mask, pa.py_buffer(rng.bytes(count // 8 + 1))])
    if pa.types.is_struct(kind):
        children = [random_values(field.type, count, rng, nulls) for field in kind]
        return pa.Array.from_buffers(kind, count, [mask], children=children)
    if pa.types.is_fixed_size_list(kind):
        child = random_values(kind.value_type, count * kind.list_size, rng, nulls)
        return pa.Array.from_buffers(kind, count, [mask], children=[child])
    if kind.num_fields or pa.types.is_binary(kind) or pa.types.is_string(kind) or "large" in str(kind):
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, count))])
        offsets = offsets.astype(np.int64 if "large" in str(kind).partition("<")[0] else np.int32)
        buffers, total = [mask, pa.py_buffer(offsets)], int(offsets[-1])
        if not kind.num_fields:
            text = bytes(rng.integers(97, 123, total, np.uint8))
            return pa.Array.from_buffers(kind, count, [*buffers, pa.py_buffer(text)])
        inside = kind.field(0).type
        if pa.types.is_map(kind):
            keys = random_values(pa.string(), total, rng, 0)
            values = random_values(kind.item_type, total, rng, nulls)
            child = pa.Array.from_buffers(inside, total, [None], children=[keys, values])
        else:
            child = random_values(inside, total, rng, nulls)
        return pa.Array.from_buffers(kind, count, buffers, children=[child])
    if pa.types.is_decimal(kind):
        return pa.array(rng.integers(-(10**6), 10**6, count).tolist(), pa.decimal128(20, 3))
    return pa.Array.from_buffers(kind, count, [mask, pa.py_buffer(rng.integers(0, 100, count * 16, np.uint8))])


def written(batch, make=pa.ipc.new_stream, **options):
    sink = io.BytesIO()
    with make(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


class Reader:
    """Reads rows of the one record batch of a file, and remembers which bytes."""

    def __init__(self, content, schema, names=None):
        self.content, self.rounds = content, []
        file, _ = stored(content)
        ((self.offset, self.length, _),) = scan(file).blocks
        header = content[self.offset : self.offset + self.length]
        wanted = {number: field for number, field in enumerate(schema) if names is None or field.name in names}
        shapes = [shape_of(field.type) for field in schema]
        self.layout = parse_layout(header, self.offset, self.length, shapes, wanted)

    def fetch(self, spans):
        self.rounds.append(spans)
        assert all(self.offset <= end <= self.offset + self.length for _, end in spans)

        def read(nbytes, offset):
            assert any(begin <= offset and offset + nbytes <= end for begin, end in spans)
            return pa.py_buffer(self.content[offset : offset + nbytes])

        return read

    def rows(self, first, count):
        data = fetch_all(read_rows(self.layout, first, count), self.fetch)
        data.validate(full=True)
        return data

    @property
    def bytes(self):
        return sum(end - begin for spans in self.rounds for begin, end in spans)


def has_offset(array):
    if array.offset:
        return True
    if pa.types.is_struct(array.type):
        return any(has_offset(array.field(number)) for number in range(array.type.num_fields))
    return hasattr(array, "values") and array.type.num_fields > 0 and has_offset(array.values)


@settings(max_examples=150)
@given(
    types=st.lists(TYPES, min_size=1, max_size=3),
    count=st.integers(0, 70),
    bounds=st.tuples(st.integers(0, 70), st.integers(0, 70)),
    nulls=st.sampled_from([0.0, 0.3, 1.0]),
    sliced=st.booleans(),
    seed=st.integers(0, 1000),
)
@example(types=[pa.bool_()], count=70, bounds=(3, 20), nulls=0.3, sliced=False, seed=0)
@example(types=[pa.list_(pa.list_(pa.bool_()))], count=70, bounds=(13, 47), nulls=0.3, sliced=True, seed=1)
def test_rows_equal_the_slice_of_the_whole_batch(types, count, bounds, nulls, sliced, seed):
    rng = np.random.default_rng(seed)
    first, last = sorted(min(bound, count) for bound in bounds)
    arrays = [random_values(kind, count + 9 * sliced, rng, nulls) for kind in types]
    batch = pa.RecordBatch.from_arrays(arrays, [f"c{number}" for number in range(len(types))])
    batch = batch.slice(5, count) if sliced else batch  # the writer cuts buffers, and offsets begin above 0
    reader = Reader(written(batch), batch.schema)
    assert all(can_read_rows(kind) for kind in types)
    rows = reader.rows(first, last - first)
    assert rows.schema == batch.schema
    assert rows.equals(batch.slice(first, last - first))
    assert not any(map(has_offset, rows.columns))


@pytest.mark.parametrize("make", [pa.ipc.new_stream, pa.ipc.new_file])
@pytest.mark.parametrize("options", [{}, {"use_legacy_format": True, "metadata_version": pa.ipc.MetadataVersion.V4}])
def test_streams_files_and_old_messages(make, options):
    batch = pa.record_batch({"id": range(1000), "text": [f"text {n}" for n in range(1000)]})
    reader = Reader(written(batch, make, **options), batch.schema)
    assert reader.rows(501, 20).equals(batch.slice(501, 20))


def test_rows_need_only_their_own_bytes_in_two_rounds():
    rows, count, width = 20_000, 100, 500
    rng = np.random.default_rng(0)
    batch = pa.record_batch(
        {
            "id": pa.array(range(rows)),
            "flag": pa.array((rng.random(rows) < 0.5).tolist()),
            "noise": pa.array([rng.bytes(width) for _ in range(rows)]),
            "some": pa.array([None if n % 3 else float(n) for n in range(rows)]),
        }
    )
    reader = Reader(written(batch), batch.schema)
    assert reader.rows(7777, count).equals(batch.slice(7777, count))
    assert len(reader.rounds) == 2
    needed = count * 8 + count // 8 + 4 * (count + 1) + count * width + count * 8 + count // 8
    spans = sum(map(len, reader.rounds))
    assert spans == 6  # no validity where nothing is null
    assert reader.bytes <= needed + spans * (ALIGNMENT + 2)


def test_each_level_of_lists_is_one_more_round():
    lists = pa.array([[[str(n)] * 3] * 2 for n in range(500)])
    batch = pa.record_batch({"lists": lists, "x": range(500), "flat": [[n] for n in range(500)]})
    reader = Reader(written(batch), batch.schema)
    assert reader.rows(100, 7).equals(batch.slice(100, 7))
    assert len(reader.rounds) == 4


def test_only_the_named_columns_are_read():
    batch = pa.record_batch({"id": range(100), "noise": [b"x" * 1000] * 100, "y": [[n] for n in range(100)]})
    reader = Reader(written(batch), batch.schema, ["y", "id"])
    assert reader.rows(10, 5).equals(batch.select(["id", "y"]).slice(10, 5))
    assert reader.bytes < 1000
    none = Reader(written(batch), batch.schema, []).rows(10, 5)
    assert (none.num_rows, none.num_columns) == (5, 0)


def test_extension_types_are_read_as_their_storage():
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 2])
    storage = pa.array([list(range(n, n + 4)) for n in range(50)], pa.list_(pa.int32(), 4))
    batch = pa.record_batch({"t": pa.ExtensionArray.from_storage(kind, storage)})
    assert can_read_rows(kind)
    assert Reader(written(batch), batch.schema).rows(11, 9).equals(batch.slice(11, 9))


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_other_types_are_not_read_by_rows(kind):
    assert not can_read_rows(kind)
    assert not can_read_rows(pa.list_(pa.struct([("x", kind)])))


def test_a_compressed_batch_has_no_layout():
    batch = pa.record_batch({"id": range(1000)})
    assert Reader(written(batch, compression="lz4"), batch.schema).layout is None


def test_the_cost_counts_every_request_as_bytes():
    batch = pa.record_batch({"id": np.arange(100_000), "x": np.arange(100_000)})
    layout = Reader(written(batch), batch.schema).layout
    request, column = 64 << 10, 8 * 100_000
    assert layout.cost([(50_000, 1000)]) == 2 * 8 * 1000 + 2 * request
    assert layout.cost([(0, 1000), (50_000, 1000)]) == 4 * 8 * 1000 + 4 * request
    # Runs that lie near each other share requests, and what lies between them is fetched too.
    assert layout.cost([(50_000, 1000), (53_000, 1000)]) == 2 * 8 * 4000 + 2 * request
    assert layout.cost([(0, 100_000)]) == 2 * column + request > 2 * column


def broken(content, old, new):
    assert content.count(old) == 1
    return content.replace(old, new)


def test_broken_offsets_and_headers_are_arrow_errors():
    text = ["a" * 11, "b" * 1000, "c" * 17]
    batch = pa.record_batch({"text": text})
    content = written(batch)
    offsets = struct.pack("<4i", 0, 11, 1011, 1028)
    for wrong, message in (
        ((0, 11, 1011, 10_000), "a buffer ends after 1,028 bytes"),
        ((0, 1011, 11, 1028), "offsets of a column are not in order"),
        ((-5, 11, 1011, 1028), "offsets of a column are not in order"),
    ):
        reader = Reader(broken(content, offsets, struct.pack("<4i", *wrong)), batch.schema)
        with pytest.raises(pa.ArrowInvalid, match=message):
            reader.rows(0, 3)
    reader = Reader(content, batch.schema)
    with pytest.raises(pa.ArrowInvalid, match="3 rows, and rows up to 4"):
        reader.rows(2, 2)
    with pytest.raises(pa.ArrowInvalid, match="fewer columns than the schema"):
        Reader(content, pa.schema([*batch.schema, pa.field("more", pa.int8())]))
    buffer = struct.pack("<qq", 16, 1028)
    far = broken(content, buffer, struct.pack("<qq", 16, 10**9))
    with pytest.raises(pa.ArrowInvalid, match="a buffer ends"):
        Reader(far, batch.schema)


def test_parts_share_rounds_and_get_their_own_bytes():
    def part(*rounds):
        seen = []
        for spans in rounds:
            seen += yield spans
        return seen

    asked = []

    def fetch(spans):
        asked.append(spans)
        return lambda nbytes, offset: (offset, nbytes)

    parts = [part([(0, 3)], [(640, 700)]), part(), part([(128, 130), (64, 65)])]
    assert fetch_all(together(parts), fetch) == [[(0, 3), (640, 60)], [], [(128, 2), (64, 1)]]
    assert asked == [[(0, 3), (128, 130), (64, 65)], [(640, 700)]]
