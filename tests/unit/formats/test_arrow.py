"""Arrow streams and files: every record batch is a block, and a view where it can be."""

import io
import struct
import time

import fsspec
import pyarrow as pa
import pytest

import midepoch as me
from files import cuts_of, numbers, values, write
from midepoch.formats import scan_file
from midepoch.storage.objects import StoredFile


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("kind", ["stream", "file"])
def test_compressed_arrow(tmp_path, kind, compression):
    batches = [pa.record_batch({"x": pa.array([n] * 500), "s": pa.array(["word"] * 500)}) for n in range(4)]
    path = write(tmp_path / "a.arrow", batches, kind, compression=compression)
    assert list(me.read(path)) == [row for batch in batches for row in batch.to_pylist()]
    assert values(me.read(path).skip(1999)) == [3]
    assert sorted(values(me.read(path).shuffle(seed=3, level="row"))) == sorted([0, 1, 2, 3] * 500)


def test_wide_schemas_and_long_headers(tmp_path):
    names = [f"column_{number}" for number in range(500)]
    batch = pa.record_batch([pa.array([number, -number]) for number in range(500)], names=names)
    path = write(tmp_path / "a.arrow", [batch, batch])
    assert list(me.read(path)) == batch.to_pylist() * 2


def test_a_truncated_stream_is_an_error_that_names_it_or_whole_messages(tmp_path):
    batches = [numbers(0, 4), numbers(4, 8), numbers(8, 12)]
    source = write(tmp_path / "whole", batches)
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


@pytest.mark.parametrize("shuffled", [False, True])
def test_blocks_of_an_arrow_file_with_dictionaries_are_read_in_parallel(monkeypatch, shuffled):
    schema = pa.schema({"id": pa.int64(), "word": pa.dictionary(pa.int32(), pa.string())})
    words, sink = pa.array(["a", "b", "c"]), io.BytesIO()
    with pa.ipc.new_file(sink, schema) as writer:
        for first in range(0, 200, 5):
            coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0, 1], pa.int32()), words)
            writer.write_batch(pa.record_batch([pa.array(range(first, first + 5)), coded], schema=schema))
    fsspec.filesystem("memory").pipe_file("/coded/a.arrow", sink.getvalue())
    fetched = StoredFile.buffer_at

    def slowly(self, nbytes, offset):
        time.sleep(0.0005)
        return fetched(self, nbytes, offset)

    monkeypatch.setattr(StoredFile, "buffer_at", slowly)
    for seed in range(3):
        dataset = me.read("memory://coded")
        rows = list(dataset.shuffle(seed) if shuffled else dataset)
        assert sorted((row["id"], row["word"]) for row in rows) == [(row, "abcab"[row % 5]) for row in range(200)]


def is_divisible(path):
    return scan_file(str(path), None).divisible


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_rows_can_be_read_alone_if_nothing_is_compressed_or_has_dictionaries(tmp_path, kind):
    plain = pa.record_batch({"x": pa.array(range(500)), "s": pa.array(["word"] * 500)})
    assert is_divisible(write(tmp_path / "plain.arrow", plain, kind))
    for compression in ("lz4", "zstd"):
        assert not is_divisible(write(tmp_path / f"{compression}.arrow", plain, kind, compression=compression))
    encoded = pa.record_batch({"x": pa.array(["a", "b"]).dictionary_encode()})
    assert not is_divisible(write(tmp_path / "encoded.arrow", encoded, kind))
    views = pa.record_batch({"x": pa.array(["a", "b"], pa.string_view())})
    assert not is_divisible(write(tmp_path / "views.arrow", views, kind))
    inside = pa.record_batch({"x": pa.array([{"y": ["a"]}], pa.struct([("y", pa.list_(pa.string_view()))]))})
    assert not is_divisible(write(tmp_path / "inside.arrow", inside, kind))


def test_a_shuffle_of_one_record_batch_mixes_virtual_blocks_of_it(tmp_path):
    path = write(tmp_path / "a.arrow", numbers(0, 40_000))
    first = values(me.read(path).shuffle(1).take(512))
    assert len({row // 250 for row in first}) > 60
    assert sorted(values(me.read(path).shuffle(1))) == list(range(40_000))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_record_batch_has_no_more_rows_than_its_bytes_hold(tmp_path, compression):
    data = pa.record_batch({"id": range(4321), "text": ["xy"] * 4321})
    path = tmp_path / "a.arrow"
    with pa.ipc.new_stream(str(path), data.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(data)
    rows = struct.pack("<q", 4321)
    forged = path.read_bytes().replace(rows, struct.pack("<q", 1 << 45))
    assert len(me.read(path)) == 4321
    path.write_bytes(forged)
    with pytest.raises(me.DataFormatError, match=r"a\.arrow is broken at byte \d+: 35,184,372,088,832 rows in"):
        me.read(path)


def test_columns_without_bytes_may_have_any_number_of_rows(tmp_path):
    write(tmp_path / "a.arrow", pa.record_batch([pa.nulls(100_000)], ["none"]))
    assert len(me.read(tmp_path)) == 100_000


@pytest.mark.parametrize("kind", [pa.int64(), pa.struct([("name", pa.int64())])], ids=["column", "field"])
def test_names_that_are_not_utf8_are_an_error_that_names_the_file(tmp_path, kind):
    write(tmp_path / "a.arrow", pa.record_batch([pa.nulls(3, kind)], ["name"]))
    path = tmp_path / "a.arrow"
    path.write_bytes(path.read_bytes().replace(b"name", b"n\xffme"))
    with pytest.raises(me.DataFormatError, match=r"a\.arrow has a broken Arrow schema"):
        list(me.read(path))


@pytest.mark.parametrize("kind", ["stream", "parquet"])
def test_columns_of_any_file_may_be_null_and_views_become_plain_text(tmp_path, kind):
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("text", pa.string_view())])
    path = write(
        tmp_path / "a", pa.record_batch([[1, 2], pa.array(["a", None], pa.string_view())], schema=schema), kind
    )
    read = scan_file(str(path)).schema
    assert [field.nullable for field in read] == [True, True]
    assert read.field("text").type == pa.large_string()
    assert [row["text"] for row in me.read(path)] == ["a", None]
