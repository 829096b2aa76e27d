import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from files import KINDS, numbers, values, write, write_numbers
from midepoch.formats import FORMATS, Block, scan_file


@pytest.mark.parametrize("name", ["a.arrow", "a.parquet", "a.bin", "a"])
@pytest.mark.parametrize("kind", KINDS)
def test_files_are_told_apart_by_their_bytes_not_their_names(tmp_path, kind, name):
    path = write_numbers(tmp_path / name, 0, 10, kind)
    assert values(me.read(path)) == list(range(10))


def test_a_folder_may_mix_formats(tmp_path):
    write_numbers(tmp_path / "a.parquet", 0, 10, "stream")
    write_numbers(tmp_path / "b.arrow", 10, 20, "parquet")
    write_numbers(tmp_path / "c.arrow", 20, 30, "file")
    dataset = me.read(tmp_path)
    assert values(dataset) == list(range(30))
    assert sorted(values(me.read(tmp_path).shuffle(seed=1))) == list(range(30))


@pytest.mark.parametrize("kind", KINDS)
def test_scan_finds_every_block_without_reading_rows(tmp_path, kind):
    path = write(tmp_path / "a", [numbers(0, 5), numbers(5, 6), numbers(6, 13)], kind)
    scan = scan_file(str(path))
    assert scan.format == ("parquet" if kind == "parquet" else "arrow")
    assert scan.schema.equals(numbers(0, 1).schema)
    assert [rows for _, _, rows in scan.blocks] == [5, 1, 7]
    offsets = [offset for offset, _, _ in scan.blocks]
    assert offsets == sorted(offsets)
    assert all(offset + length <= path.stat().st_size for offset, length, _ in scan.blocks)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("kind", ["stream", "file"])
def test_compressed_arrow(tmp_path, kind, compression):
    batches = [pa.record_batch({"x": pa.array([n] * 500), "s": pa.array(["word"] * 500)}) for n in range(4)]
    path = write(tmp_path / "a.arrow", batches, kind, compression=compression)
    assert list(me.read(path)) == [row for batch in batches for row in batch.to_pylist()]
    assert values(me.read(path).skip(1999)) == [3]
    assert sorted(values(me.read(path).shuffle(seed=3, level="row"))) == sorted([0, 1, 2, 3] * 500)


@pytest.mark.parametrize("version", [pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5])
def test_streams_as_written_before_arrow_0_15(tmp_path, version):
    options = {"use_legacy_format": True, "metadata_version": version}
    path = write(tmp_path / "a.arrow", [numbers(0, 5), numbers(5, 8)], **options)
    assert path.read_bytes()[:4] != b"\xff\xff\xff\xff"
    assert values(me.read(path)) == list(range(8))
    assert values(me.read(path).skip(6)) == [6, 7]


def test_a_stream_without_an_end_marker_is_whole(tmp_path):
    path = write_numbers(tmp_path / "a.arrow", 0, 10)
    path.write_bytes(path.read_bytes()[:-8])
    assert values(me.read(path)) == list(range(10))


def test_bytes_after_the_end_marker_are_not_read(tmp_path):
    path = write_numbers(tmp_path / "a.arrow", 0, 10)
    path.write_bytes(path.read_bytes() + b"whatever follows")
    assert values(me.read(path)) == list(range(10))


def test_wide_schemas_and_long_headers(tmp_path):
    names = [f"column_{number}" for number in range(500)]
    batch = pa.record_batch([pa.array([number, -number]) for number in range(500)], names=names)
    path = write(tmp_path / "a.arrow", [batch, batch])
    assert list(me.read(path)) == batch.to_pylist() * 2


def cuts_of(size):
    return sorted({1, 2, 3, 4, 5, 6, 7, 8, *range(9, size, 5), *range(max(9, size - 20), size)})


@pytest.mark.parametrize("kind", ["file", "parquet"])
def test_a_truncated_file_with_a_footer_is_an_error_that_names_it(tmp_path, kind):
    whole = write_numbers(tmp_path / "whole", 0, 12, kind).read_bytes()
    path = tmp_path / "cut.arrow"
    for size in cuts_of(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(me.DataFormatError) as caught:
            me.read(path)
        assert str(path) in str(caught.value), size


@pytest.mark.parametrize("legacy", [False, True], ids=["now", "legacy"])
def test_a_truncated_stream_is_an_error_that_names_it_or_whole_messages(tmp_path, legacy):
    batches = [numbers(0, 4), numbers(4, 8), numbers(8, 12)]
    source = write(tmp_path / "whole", batches, use_legacy_format=legacy)
    whole = source.read_bytes()
    ends = {offset + length: 4 * number for number, (offset, length, _) in enumerate(scan_file(str(source)).blocks, 1)}
    schema_end = scan_file(str(source)).blocks[0][0]
    path = tmp_path / "cut.arrow"
    for size in sorted({*cuts_of(len(whole)), *ends, schema_end}):
        path.write_bytes(whole[:size])
        if size in ends or size == schema_end:
            assert values(me.read(path)) == list(range(ends.get(size, 0))), size
            continue
        with pytest.raises(me.DataFormatError) as caught:
            me.read(path)
        assert str(path) in str(caught.value), size


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_headers_give_a_midepoch_error_or_a_scan_never_another(tmp_path, kind):
    whole = write_numbers(tmp_path / "whole", 0, 12, kind).read_bytes()
    path = tmp_path / "damaged"
    random = np.random.default_rng(0)
    told = []
    for _ in range(400):
        damaged = bytearray(whole)
        for place in random.integers(0, len(whole), 3):
            damaged[place] = random.choice([0, 127, 128, 255])
        path.write_bytes(damaged)
        try:
            scan_file(str(path))
        except me.DataFormatError as error:
            told.append(str(error))
    assert len(told) > 100
    assert all(str(path) in one for one in told)


@pytest.mark.parametrize(
    "garbage", [b"x", b"id,name\n1,a\n", b'{"a": 1\n', b"\x1f\x8b" * 9, bytes(100), b"PAR1" * 9, b"ARROW1\0\0" * 9]
)
def test_garbage_is_an_error_that_names_the_file(tmp_path, garbage):
    write_numbers(tmp_path / "a.arrow", 0, 4)
    (tmp_path / "b.arrow").write_bytes(garbage)
    with pytest.raises(me.DataFormatError) as caught:
        me.read(tmp_path)
    assert str(tmp_path / "b.arrow") in str(caught.value)


@pytest.mark.parametrize(("kind", "wrong"), [("stream", "parquet"), ("file", "parquet"), ("parquet", "arrow")])
def test_another_format_than_asked_for_is_refused(tmp_path, kind, wrong):
    path = write_numbers(tmp_path / "a.data", 0, 4, kind)
    right = "parquet" if wrong == "arrow" else "arrow"
    assert values(me.read(path, format=right)) == [0, 1, 2, 3]
    with pytest.raises(me.DataFormatError, match=rf"a\.data is {right}, but format='{wrong}' was asked for"):
        me.read(path, format=wrong)


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"format is 'avro'; it can be 'arrow', 'parquet', 'orc', .*, or left out"):
        me.read(write_numbers(tmp_path / "a.arrow", 0, 4), format="avro")


@pytest.mark.parametrize("kind", KINDS)
def test_empty_files_and_files_without_rows_among_others_are_fine(tmp_path, kind):
    (tmp_path / "a.arrow").touch()
    write_numbers(tmp_path / "b.arrow", 0, 5, kind)
    write(tmp_path / "c.arrow", [numbers(0, 0)], kind)
    write(tmp_path / "d.arrow", [numbers(5, 7), numbers(0, 0), numbers(7, 8)], kind)
    (tmp_path / "e.arrow").touch()
    dataset = me.read(tmp_path)
    assert len(dataset) == 8
    assert values(dataset) == list(range(8))
    for level in ("file", "block", "row"):
        assert sorted(values(me.read(tmp_path).shuffle(seed=2, level=level))) == list(range(8))
    assert len(me.read(tmp_path, format="parquet" if kind == "parquet" else "arrow")) == 8


def test_only_empty_files_have_no_columns_to_read(tmp_path):
    (tmp_path / "a.arrow").touch()
    with pytest.raises(me.NoDataError, match=r"a\.arrow is empty \(0 bytes\)"):
        me.read(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_hold_no_rows_make_an_empty_data_set(tmp_path, kind):
    path = write(tmp_path / "a.data", [numbers(0, 0)], kind)
    dataset = me.read(path)
    assert len(dataset) == 0
    assert list(dataset) == []
    assert list(me.read(path).shuffle(seed=1).batch(3)) == []
    assert list(me.read(path).repeat()) == []
    assert dataset.schema.names == ["x"]


def test_a_block_that_cannot_be_decoded_names_the_file(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(2000)}), path, row_group_size=1000, use_dictionary=False, compression="snappy")
    damaged = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    damaged[start : start + 400] = b"\xff" * 400
    path.write_bytes(damaged)
    with pytest.raises(me.DataFormatError, match=r"a\.parquet: row group 1 cannot be decoded"):
        list(me.read(path))


@pytest.mark.parametrize("kind", KINDS)
def test_columns_picks_in_the_order_asked_for(tmp_path, kind):
    batch = pa.record_batch({"a": pa.array([1]), "b": pa.array(["x"]), "c": pa.array([0.5])})
    path = write(tmp_path / "a.data", batch, kind)
    dataset = me.read(path, columns=["c", "a"])
    assert [list(row.items()) for row in dataset] == [[("c", 0.5), ("a", 1)]]
    assert dataset.schema.names == ["c", "a"]


def test_columns_as_one_string_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"pass \['x'\]"):
        me.read(write_numbers(tmp_path / "a.arrow", 0, 4), columns="x")


def test_a_missing_column_is_told_with_the_file_and_what_it_has(tmp_path):
    write(tmp_path / "a.arrow", pa.record_batch({"a": pa.array([1]), "b": pa.array([2])}))
    write(tmp_path / "b.arrow", pa.record_batch({"a": pa.array([1])}))
    with pytest.raises(me.SchemaMismatchError, match=r"a\.arrow has no column 'z'\. It has: a, b\."):
        me.read(tmp_path, columns=["z"])
    with pytest.raises(me.SchemaMismatchError, match=r"b\.arrow has no column 'b'\. It has: a\."):
        me.read(tmp_path, columns=["b"])
    assert values(me.read(tmp_path, columns=["a"]), "a") == [1, 1]


@pytest.mark.parametrize("kinds", [("stream", "stream"), ("parquet", "file")])
def test_another_type_names_both_files_and_the_column(tmp_path, kinds):
    write(tmp_path / "a.data", pa.record_batch({"x": pa.array([1]), "y": pa.array([1])}), kinds[0])
    write(tmp_path / "b.data", pa.record_batch({"x": pa.array([1]), "y": pa.array(["s"])}), kinds[1])
    with pytest.raises(me.SchemaMismatchError, match=r"column 'y' is int64 in a\.data and string in b\.data"):
        me.read(tmp_path / "*.data")
    assert values(me.read(tmp_path / "*.data", columns=["x"])) == [1, 1]


@pytest.mark.parametrize("extra", ["a", "b"])
def test_a_column_too_many_names_both_files_and_the_column(tmp_path, extra):
    for name in "ab":
        columns = {"x": pa.array([1])} | ({"more": pa.array([0.5])} if name == extra else {})
        write(tmp_path / f"{name}.arrow", pa.record_batch(columns))
    other = "b" if extra == "a" else "a"
    with pytest.raises(
        me.SchemaMismatchError,
        match=rf"{extra}\.arrow has a column 'more' \(double\) that {other}\.arrow does not",
    ):
        me.read(tmp_path)


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    write(tmp_path / "a.arrow", pa.record_batch([pa.array([1]), pa.array([2])], names=["x", "x"]))
    with pytest.raises(me.SchemaMismatchError, match=r"a\.arrow has the column 'x' more than once"):
        me.read(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_may_stand_in_another_order(tmp_path, kind):
    write(tmp_path / "a.arrow", pa.record_batch({"x": pa.array([1]), "y": pa.array(["a"])}), kind)
    write(tmp_path / "b.arrow", pa.record_batch({"y": pa.array(["b"]), "x": pa.array([2])}), kind)
    rows = [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]
    assert list(map(repr, me.read(tmp_path))) == list(map(repr, rows))
    (batch,) = me.read(tmp_path).batch(2)
    assert batch == {"x": [1, 2], "y": ["a", "b"]}


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_differ_in_nullability_and_metadata_are_read_together(tmp_path, kind):
    strict = pa.schema([pa.field("x", pa.int64(), nullable=False, metadata={"a": "b"})], metadata={"c": "d"})
    write(tmp_path / "a.arrow", pa.record_batch([pa.array([1, 2, 3])], schema=strict), kind)
    write(tmp_path / "b.arrow", pa.record_batch({"x": pa.array([4, None])}), kind)
    assert values(me.read(tmp_path)) == [1, 2, 3, 4, None]
    assert [batch["x"] for batch in me.read(tmp_path).batch(4)] == [[1, 2, 3, 4], [None]]
    assert {row["x"] for row in me.read(tmp_path).shuffle(seed=1)} == {1, 2, 3, 4, None}
    (batch,) = me.read(tmp_path).with_format("arrow").batch(5)
    assert batch["x"].to_pylist() == [1, 2, 3, 4, None]


def test_two_threads_read_a_parquet_file_one_at_a_time(tmp_path):
    """The one that reads ahead, and the one that needs another row group of the same file: Arrow would crash."""
    path = write_numbers(tmp_path / "a.parquet", 0, 40, "parquet", rows=4)
    scan = scan_file(str(path))
    blocks = [Block(number, *place) for number, place in enumerate(scan.blocks)]
    reader = FORMATS["parquet"].open_blocks(str(path), scan.schema, scan.schema)
    inside = []

    class Watched:
        def read_row_group(self, number, **options):
            inside.append(number)
            time.sleep(0.002)
            alone = inside == [number]
            inside.remove(number)
            return pa.table({"x": [number if alone else -1]})

    reader._file = Watched()
    with ThreadPoolExecutor(2) as pool:
        up, down = (
            pool.submit(lambda step=step: [reader.read(one)["x"][0].as_py() for one in blocks[::step]])
            for step in (1, -1)
        )
    assert up.result() == list(range(10))
    assert down.result() == list(range(9, -1, -1))


@pytest.mark.parametrize("kind", ["stream", "file"])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_block_is_a_view_only_if_all_of_its_memory_is_the_files(tmp_path, kind, compression):
    batch = pa.record_batch({"none": pa.nulls(500), "x": pa.array([1, None] * 250), "text": ["the same text"] * 500})
    path = str(write(tmp_path / "a.arrow", [batch], kind, compression=compression))
    scan = scan_file(path)
    reader = FORMATS["arrow"].open_blocks(path, scan.schema, scan.schema)
    data = reader.read(Block(0, *scan.blocks[0]))
    assert data.to_pylist() == batch.to_pylist()
    assert reader.is_view(data) == (compression is None)
    within = pa.RecordBatch.from_arrays([data["none"], batch["x"], data["text"]], ["none", "x", "text"])
    assert not reader.is_view(within)
