"""Files of old programs, which wrote some things wrongly: they are read as Arrow reads them, and limited too."""

import io
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from forged_pages import counted_memory, file_with, header, header_v2, packed, zigzag
from midepoch.formats.parquet_pages import page_at
from midepoch.formats.parquet_writers import PADDING, Mistakes, mistakes_in
from midepoch.formats.shared_prefixes import LENGTHS_FIRST, PREFIXES

SOUND = Mistakes()
PROGRAMS = {
    "parquet-cpp-arrow version 26.0.1": SOUND,
    "parquet-cpp-arrow version 0.17.1": SOUND,
    "parquet-cpp version 1.5.1-SNAPSHOT": Mistakes(True),
    "  parquet-cpp\t version  1.3.2 (build abc)": Mistakes(True),
    "parquet-cpp version 2.0.0": Mistakes(None),
    "parquet-cpp version 4294967297.0.0": Mistakes(None),
    "parquet-cpp version 21": Mistakes(None),
    "parquet-cpp version 0000000000021": Mistakes(None),
    "parquet-cpp version 1.x": Mistakes(True),
    "parquet-cpp version of today": Mistakes(True),
    "parquet-cpp": Mistakes(True),
    "parquet-mr": Mistakes(padding=PADDING),
    "parquet-mr version 1.2.8": Mistakes(padding=PADDING),
    "parquet-mr version 1.2.0-cdh5.0 (build 1)": Mistakes(padding=PADDING),
    "parquet-mr version 1.2.9": SOUND,
    "parquet-mr version 1.10.0 (build 031a665)": SOUND,
    "parquet-rs version 1.2.3": SOUND,
    "": SOUND,
    None: SOUND,
}


@pytest.mark.parametrize(("created_by", "expected"), PROGRAMS.items())
def test_mistakes_are_known_by_the_program_and_its_version(created_by, expected):
    assert mistakes_in(SimpleNamespace(created_by=created_by)) == expected


def written_by(content, program):
    """The file as if another program had written it."""
    own = pq.read_metadata(io.BytesIO(content)).created_by.encode()
    assert content.count(own) == 1
    program = program if isinstance(program, bytes) else program.encode()
    assert len(program) <= len(own)
    return content.replace(own, program.ljust(len(own)))


def test_a_name_that_is_no_text_is_not_trusted():
    content = written_by(file_with(b"", 400, pa.binary()), b"parquet-cpp version 1.5.1 (\xff)")
    assert mistakes_in(pq.read_metadata(io.BytesIO(content))).always_compressed is None


@contextmanager
def little_memory():
    """Arrow takes little memory in the meantime, if this is all right."""
    with counted_memory() as pool:
        yield
    assert pool.max_memory() < 4 << 20


def refused(path, content, match=r"more than max_record_bytes"):
    path.write_bytes(content)
    with little_memory(), pytest.raises(me.DataFormatError, match=match):
        list(me.read(path, max_record_bytes="1MiB"))


def read(path, content):
    path.write_bytes(content)
    return [row["x"] for row in me.read(path, max_record_bytes="1MiB")]


LZ4_BY_CHANCE = [b"\x03\x01\x02\x00", b"\x01\x02\x00\x00"]
"""Pages of one of these texts are LZ4 too, of something that looks forged."""


@pytest.mark.parametrize("text", LZ4_BY_CHANCE)
def test_a_page_that_is_not_compressed_is_not_decompressed(tmp_path, text):
    body = packed([len(text)]) + text
    page = header_v2(body, 1, LENGTHS_FIRST, len(body), is_compressed=False) + body
    assert pa.Codec("lz4_raw").decompress(body, len(body), asbytes=True) != body, "nobody would notice"
    assert read(tmp_path / "a.parquet", file_with(page, 1, pa.binary(), "lz4")) == [text]


@pytest.mark.parametrize("compression", ["snappy", "lz4", "zstd"])
@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_tiny_pages_of_version_2_are_read_exactly(tmp_path, compression, encoding):
    """pyarrow leaves pages uncompressed that would not become smaller."""
    rng, path = np.random.default_rng(0), tmp_path / "a.parquet"
    schema = pa.schema([pa.field("x", pa.binary(), nullable=False)])
    texts = [*LZ4_BY_CHANCE, *(rng.bytes(number % 9) for number in range(300))]
    options = {"use_dictionary": False, "column_encoding": {"x": encoding}, "data_page_version": "2.0"}
    with pq.ParquetWriter(path, schema, compression=compression, **options) as file:
        for text in texts:
            file.write_table(pa.table({"x": [text]}, schema=schema))
    assert [row["x"] for row in me.read(path)] == texts


LONG = packed([0] + [9_000] * 399) + packed([9_000] + [0] * 399) + b"a" * 9_000
"""A page of 400 equal texts of 9,000 bytes."""
SHORT = packed([0] * 400) + packed([5] * 400) + b"abcde" * 400


@pytest.mark.parametrize("compression", ["snappy", "lz4", "zstd"])
@pytest.mark.parametrize("program", ["parquet-cpp version 1.5.1", "parquet-cpp version 1", "parquet-cpp"])
def test_pages_of_old_arrow_are_compressed_whatever_they_say(tmp_path, compression, program):
    path, codec = tmp_path / "a.parquet", pa.Codec("lz4_raw" if compression == "lz4" else compression)
    for content, expected in ((SHORT, [b"abcde"] * 400), (LONG, None)):
        body = codec.compress(content, asbytes=True)
        page = header_v2(body, 400, PREFIXES, len(content), is_compressed=False) + body
        file = written_by(file_with(page, 400, pa.binary(), compression), program)
        if expected is None:
            refused(path, file)
        else:
            assert read(path, file) == expected


@pytest.mark.parametrize("program", ["parquet-cpp-arrow version 3", "parquet-cpp", "parquet-cpp version 2.0.0"])
@pytest.mark.parametrize("is_compressed", [True, False])
def test_pages_of_long_texts_are_refused_whatever_the_footer_and_the_page_say(tmp_path, program, is_compressed):
    """Each is refused, or Arrow cannot decode it: then it takes no memory either."""
    for body in (LONG, pa.Codec("zstd").compress(LONG, asbytes=True)):
        page = header_v2(body, 400, PREFIXES, len(LONG), is_compressed=is_compressed) + body
        file = written_by(file_with(page, 400, pa.binary(), "zstd"), program)
        refused(tmp_path / "a.parquet", file, "more than max_record_bytes|cannot be decoded")


def of_hadoop(file):
    """The file with the old LZ4 of Hadoop in place of that which pyarrow writes. Its number is in the footer."""
    at = file.rindex(b"\x15" + zigzag(7))
    file = file[:at] + b"\x15" + zigzag(5) + file[at + 2 :]
    assert pq.read_metadata(io.BytesIO(file)).row_group(0).column(0).compression == "UNKNOWN"
    return file


@pytest.mark.parametrize("in_parts", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_the_old_lz4_is_read_and_limited_in_both_layouts(tmp_path, in_parts, version):
    path = tmp_path / "a.parquet"
    for content, expected in ((SHORT, [b"abcde"] * 400), (LONG, None)):
        body = pa.Codec("lz4_raw").compress(content, asbytes=True)
        if in_parts:
            body = len(content).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body
        make = header if version == 1 else header_v2
        file = of_hadoop(file_with(make(body, 400, PREFIXES, len(content)) + body, 400, pa.binary(), "lz4"))
        if expected is None:
            refused(path, file)
        else:
            assert read(path, file) == expected


def of_old_mapreduce(texts, program):
    """A file whose footer leaves the header of the dictionary out of the size of its column."""
    sink = io.BytesIO()
    table = pa.table({"x": pa.array(texts)})
    pq.write_table(table, sink, store_schema=False, write_statistics=False, compression="snappy")
    content, chunk = sink.getvalue(), pq.read_metadata(sink).row_group(0).column(0)
    begin, size = chunk.dictionary_page_offset, chunk.total_compressed_size
    missing = page_at(pa.BufferReader(content), begin, begin + size).begin - begin
    said, shorter = b"\x16" + zigzag(size), b"\x16" + zigzag(size - missing)
    assert len(said) == len(shorter)
    at = content.rindex(said + b"\x26")
    return written_by(content[:at] + shorter + content[at + len(said) :], program)


TINY = ["the quick brown fox jumps over the lazy dog", "hello world", "hello world"] * 3
"""Their dictionary is longer than their page, which is shorter than a header."""


@pytest.mark.parametrize("program", ["parquet-mr", "parquet-mr version 1.2.8", "parquet-mr version 1.0.0 (b)"])
def test_a_tiny_last_page_of_old_mapreduce_is_read(tmp_path, program):
    file = of_old_mapreduce(TINY, program)
    assert pq.read_table(io.BytesIO(file))["x"].to_pylist() == TINY
    assert read(tmp_path / "a.parquet", file) == TINY


def test_columns_that_are_too_short_are_refused_if_arrow_does_not_know_of_the_mistake(tmp_path):
    file = of_old_mapreduce(TINY, "parquet-mr version 1.2.9")
    refused(tmp_path / "a.parquet", file, "cannot be read")


def test_dictionaries_of_old_mapreduce_are_limited(tmp_path):
    texts = ["a" * 40_000] * 4_000
    file = of_old_mapreduce(texts, "parquet-mr version 1.2.8")
    assert len(file) < 20_000
    path = tmp_path / "a.parquet"
    path.write_bytes(file)
    assert [len(row["x"]) for row in me.read(path).take(3)] == [40_000] * 3
    nested = pa.ListArray.from_arrays([0, 60_000], pa.array(["a" * 40_000] * 60_000, pa.large_string()))
    refused(path, of_old_mapreduce(nested, "parquet-mr version 1.2.8"))
