"""Texts that share their beginning with the text before: a Parquet file has it once, and its size is still known."""

import io
from itertools import accumulate, pairwise, takewhile
from operator import eq
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import midepoch as me
from forged_pages import counted_memory, file_with, header, header_v2, in_one_list, packed, varint, zigzag
from midepoch.formats import dictionary_pages
from midepoch.formats.dictionary_pages import Decoding, Leaf, decoding_of, leaves_of
from midepoch.formats.inflation import InflationError
from midepoch.formats.page_content import UncountableError, contents_of
from midepoch.formats.parquet_pages import DATA, DATA_V2, Page, pages_of
from midepoch.formats.shared_prefixes import LENGTHS_FIRST, PREFIXES, shared_bytes, sum_of_lengths

SHAPES = {
    "flat": lambda texts: texts,
    "struct": lambda texts: pa.StructArray.from_arrays([texts], ["t"]),
    "list": lambda texts: pa.ListArray.from_arrays([0, len(texts)], texts),
    "list of structs": lambda texts: pa.ListArray.from_arrays(
        [0, len(texts)], pa.StructArray.from_arrays([texts], ["t"])
    ),
    "map": lambda texts: pa.MapArray.from_arrays([0, len(texts)], pa.array(range(len(texts))), texts),
}
VERSIONS = ["1.0", "2.0"]
COMPRESSIONS = ["none", "snappy", "gzip", "zstd", "brotli", "lz4"]


def write(table, target, encoding="DELTA_BYTE_ARRAY", **options):
    """Write all texts of a table with an encoding, and numbers as usual."""
    sink = io.BytesIO()
    pq.write_table(table.slice(0, 1), sink)
    schema = pq.read_metadata(sink).schema
    leaves = [schema.column(number) for number in range(len(schema))]
    encodings = {leaf.path: encoding for leaf in leaves if leaf.physical_type.endswith("BYTE_ARRAY")}
    pq.write_table(table, target, use_dictionary=False, column_encoding=encodings, store_schema=False, **options)


def look(content, limit=1 << 20):
    """How the row group of a file would be decoded."""
    metadata = pq.read_metadata(io.BytesIO(content))
    return decoding_of(pa.BufferReader(content), metadata, 0, leaves_of(metadata, range(metadata.num_columns)), limit)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_small_file_of_equal_long_texts_is_refused_before_they_are_decoded(tmp_path, shape, version, compression):
    texts = shape(pa.array(["a" * 100_000] * 400))
    path = tmp_path / "a.parquet"
    write(pa.table({"x": texts}), path, data_page_version=version, compression=compression)
    assert path.stat().st_size < 400_000
    dataset = me.read(path, max_record_bytes="1MiB")
    too_large = r"a\.parquet, row group 0: .*bytes become 4.,.*more than max_record_bytes \(1,0"
    with counted_memory() as pool, pytest.raises(me.DataFormatError, match=too_large):
        list(dataset)
    assert pool.max_memory() < 1 << 20
    assert me.read(path).with_format("arrow").head(1)[0]["x"].to_pylist() == texts.slice(0, 1).to_pylist()


def urls(count, seed=0):
    rng = np.random.default_rng(seed)
    hosts, paths = rng.integers(0, 50, count), rng.integers(0, 10**6, (count, 2))
    return sorted(
        f"https://{host}.example.org/{first}/{last}" for host, (first, last) in zip(hosts, paths, strict=True)
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_usual_texts_are_read_exactly_and_at_once(tmp_path, version, compression, encoding):
    texts = urls(30_000)
    texts[1::7] = [None] * len(texts[1::7])
    lists = pa.ListArray.from_arrays(np.arange(0, 30_001, 30, dtype=np.int32), pa.array(texts))
    structs = pa.StructArray.from_arrays([pa.array(texts[:1_000]), pa.array(range(1_000))], ["t", "n"])
    table = pa.table({"x": lists, "s": structs, "t": texts[-1_000:], "null": pa.nulls(1_000, pa.string())})
    path = tmp_path / "a.parquet"
    options = {"data_page_version": version, "compression": compression, "data_page_size": 200_000}
    write(table, path, encoding, **options)
    assert look(path.read_bytes()) == Decoding()
    assert list(me.read(path, max_record_bytes="1MiB")) == table.to_pylist()


def shared_in(texts):
    """How many bytes texts have in common with the one before them."""
    known = [text.encode() for text in texts if text is not None]
    return sum(len(list(takewhile(bool, map(eq, *pair)))) for pair in pairwise(known))


def counted(column, compression="none", **options):
    """What is counted of a column that pyarrow writes."""
    sink = io.BytesIO()
    write(pa.table({"x": column}), sink, compression=compression, **options)
    metadata, file = pq.read_metadata(sink), pa.BufferReader(sink.getvalue())
    chunk, (leaf,) = metadata.row_group(0).column(0), leaves_of(metadata, [0])
    begin = chunk.data_page_offset
    pages = pages_of(file, begin, begin + chunk.total_compressed_size, chunk.num_values)
    contents = [contents_of(file, page, chunk.compression) for page in pages.data]
    return [shared_bytes(content, page, leaf.levels) for page, (content,) in zip(pages.data, contents, strict=True)]


@pytest.mark.parametrize(("compression", "is_read"), [("LZ4", False), ("UNKNOWN", False), ("ZSTD", True)])
def test_a_page_of_lz4_that_only_arrow_may_decompress_counts_as_too_large(compression, is_read):
    """There are several ways to decompress LZ4. What no codec decompresses, Arrow cannot decode either."""
    page = Page(DATA_V2, 0, 5, 1 << 20, 100, (PREFIXES,))
    column = SimpleNamespace(compression=compression)
    leaf = Leaf(0, "x", "BYTE_ARRAY", 4, (False, False))
    found = dictionary_pages._Sharing(pa.BufferReader(b"12345"), [page], column, leaf).bytes_besides()
    assert (found == 0) == is_read
    assert is_read or found > 100 << 20


TEXTS = st.lists(st.none() | st.text("ab", max_size=40) | st.sampled_from(["a" * 5_000, "a" * 4_000 + "b"]))


@given(TEXTS, st.sampled_from(VERSIONS), st.sampled_from(COMPRESSIONS))
@example([None], "1.0", "zstd")
@example([None], "2.0", "zstd")
@example([], "1.0", "none")
def test_what_texts_have_in_common_is_counted(texts, version, compression):
    options = {"compression": compression, "data_page_version": version}
    flat = pa.array(texts, pa.string())
    assert sum(counted(flat, **options)) == shared_in(texts)
    cuts = sorted({0, len(texts) // 3, len(texts)})
    assert sum(counted(pa.ListArray.from_arrays(cuts, flat), **options)) == shared_in(texts)


def test_every_page_is_counted():
    texts = urls(20_000)
    pages = counted(pa.array(texts), data_page_size=20_000)
    assert len(pages) >= 10
    whole = counted(pa.array(texts))
    assert whole == [shared_in(texts)]
    assert sum(whole) - 100 * len(pages) <= sum(pages) < sum(whole), "the first text of a page is whole"


LAYOUTS = st.sampled_from([(128, 1), (128, 4), (256, 8), (256, 2), (1024, 4), (4096, 1)])


@given(st.lists(st.integers(0, 300) | st.integers(0, (1 << 31) - 1), max_size=700), LAYOUTS, st.binary(max_size=9))
@example([0, (1 << 31) - 1, 0], (128, 4), b"")
def test_lengths_are_summed_whatever_their_layout(lengths, layout, after):
    content = b"\xff" + packed(lengths, *layout)
    assert sum_of_lengths(content + after, 1, len(lengths)) == (sum(lengths), len(content))
    assert sum_of_lengths(content + after, 1, len(lengths) + 1) == (sum(lengths), len(content))


@pytest.mark.parametrize("count", [32_768, 32_769, 32_770, 100_000])
@pytest.mark.parametrize("layout", [(128, 4), (256, 1), (65_536, 8)])
def test_many_lengths_are_summed(count, layout):
    lengths = np.random.default_rng(count).integers(0, 1000, count).tolist()
    content = packed(lengths, *layout)
    assert sum_of_lengths(content, 0, count) == (sum(lengths), len(content))


def test_bits_of_parts_that_are_not_needed_mean_nothing():
    content = packed([5] * 40)
    assert content[-4:] == bytes(4), "the bits of four parts, two of which have values"
    assert sum_of_lengths(content[:-2] + b"\x07\xff", 0, 40) == (200, len(content))


BLOCK, REST = varint(128) + varint(4), packed([0] * 300)
"""The usual layout of 300 lengths, and those of the rests of 300 texts, which come after the lengths of beginnings."""
FORGED = {
    "more lengths than values": varint(512) + varint(1) + varint(401) + zigzag(0) + bytes(2) + REST,
    "no values in a block": varint(0) + varint(1) + varint(300) + zigzag(0) + bytes(300),
    "no parts": varint(128) + varint(0) + varint(300) + zigzag(0) + bytes(300),
    "many parts": varint(128) + varint(1 << 30) + varint(300) + zigzag(0) + bytes(300),
    "parts of other sizes": varint(128) + varint(3) + varint(300) + zigzag(0) + bytes(12) + REST,
    "a block that would need much memory": varint(1 << 25) + varint(1) + varint(300) + zigzag(0) + bytes(2) + REST,
    "numbers of more than 32 bits": BLOCK + varint(300) + zigzag(0) + (bytes([0, 33, 0, 0, 0]) + bytes(132)) * 3 + REST,
    "lengths below 0": BLOCK + varint(300) + zigzag(5) + (zigzag(-1) + bytes(4)) * 3 + REST,
    "lengths that are too large": BLOCK + varint(300) + zigzag(5) + (zigzag((1 << 31) - 1) + bytes(4)) * 3 + REST,
    "differences that are too large": BLOCK + varint(300) + zigzag(5) + (zigzag(1 << 66) + bytes(4)) * 3 + REST,
    "a first length below 0": BLOCK + varint(300) + zigzag(-1) + (zigzag(1) + bytes(4)) * 3 + REST,
    "a number without an end": b"\xff" * 3_000,
    "blocks without an end": BLOCK + varint(300) + zigzag(0) + zigzag(0) + bytes(4),
    "parts without an end": BLOCK + varint(300) + zigzag(0) + zigzag(0) + bytes([32, 32, 32, 32]),
    "nothing after the lengths": packed([0] * 300),
    "more rests of texts than values": packed([0] * 300) + packed([5] * 10, count=401),
}


@pytest.mark.parametrize("count", [257, 300])
def test_lengths_that_end_early_are_not_counted(count):
    content = packed(list(accumulate(number * number % 97 for number in range(count))))
    for length in range(len(content)):
        with pytest.raises((UncountableError, IndexError)):
            sum_of_lengths(content[:length], 0, count)


@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED)
def test_forged_lengths_are_not_counted_and_refused(content):
    page = Page(DATA, 0, len(content), len(content), 400, (PREFIXES, 3, 3))
    with pytest.raises(UncountableError):
        shared_bytes(content, page, (False, False))
    with pytest.raises(InflationError, match="max_record_bytes"):
        look(file_with(header(content, 400, PREFIXES) + content, 400, pa.binary()))
    body = in_one_list(400) + content
    with pytest.raises(InflationError, match="max_record_bytes"):
        look(file_with(header(body, 400, PREFIXES) + body, 400, pa.binary(), is_list=True))


def test_lengths_that_are_not_forged_are_counted():
    for content in (packed([0] * 300) + REST, BLOCK + varint(300) + zigzag(5) + (zigzag(0) + bytes(4)) * 3 + REST):
        page = Page(DATA, 0, len(content), len(content), 400, (PREFIXES, 3, 3))
        assert shared_bytes(content, page, (False, False)) == 300 * content[len(BLOCK) + 2] // 2


def test_more_lengths_than_values_would_take_much_memory_whether_beginnings_are_shared_or_not():
    forged = varint(1 << 30) + varint(1) + varint(1 << 24) + zigzag(0) + zigzag(0) + b"\0"
    file = file_with(header(forged, 400, LENGTHS_FIRST) + forged, 400, pa.binary())
    with counted_memory() as pool:
        assert pq.ParquetFile(io.BytesIO(file)).read()["x"].to_pylist() == [b""] * 400
    assert pool.max_memory() >= 1 << 26, "if it were less, Arrow would check this and nothing else had to"
    with pytest.raises(InflationError, match="max_record_bytes"):
        look(file)


def test_levels_of_an_old_encoding_are_not_passed_over():
    content = in_one_list(8) + packed([0] * 8) + packed([0] * 8)
    page = Page(DATA, 0, len(content), len(content), 8, (PREFIXES, 3, 3))
    assert shared_bytes(content, page, (True, True)) == 0
    for encodings in [(PREFIXES, 4, 3), (PREFIXES, 3, 4), (PREFIXES, 3, None)]:
        with pytest.raises(UncountableError):
            shared_bytes(content, page._replace(encodings=encodings), (True, True))


def test_the_beginning_of_a_page_is_enough_if_it_has_all_lengths_and_not_otherwise():
    levels = (5_000).to_bytes(4, "little") + bytes(5_000)
    lengths = packed([7] * 100)
    content = levels + lengths + packed([1] * 100) + b"a" * 100
    page = Page(DATA, 0, 0, len(content), 100, (PREFIXES, 3, 3))
    assert shared_bytes(content[:-100], page, (True, False)) == 700
    for length in (0, 3, 4, 4_000, 5_004, len(levels + lengths) - 1, len(levels + lengths)):
        with pytest.raises(UncountableError):
            shared_bytes(content[:length], page, (True, False))


def test_a_page_with_more_lengths_than_its_beginning_has_is_counted_whole():
    content = packed([0, (1 << 31) - 1] * 5_000) + packed([0] * 10_000) + b"a" * 100_000
    with pytest.raises(InflationError, match=r"become 10,737,418,\d{3},\d{3} bytes"):
        look(file_with(header(content, 10_000, PREFIXES) + content, 10_000, pa.binary()))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_lengths_that_come_after_a_long_beginning_are_counted(tmp_path, compression):
    """Levels of nulls and texts in turn are long, and so is what is decompressed to count."""
    texts = [None if row % 3 else "a" * 5_000 for row in range(40_000)]
    path = tmp_path / "a.parquet"
    write(pa.table({"x": pa.array(texts)}), path, compression=compression)
    with pytest.raises(InflationError, match="become 66,"):
        look(path.read_bytes())


EQUAL = packed([0] + [9_000] * 399) + packed([9_000] + [0] * 399) + b"a" * 9_000
"""A page of 400 equal texts of 9,000 bytes."""


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("is_compressed", [None, True, False])
def test_pages_may_say_whether_they_are_compressed(tmp_path, compression, is_compressed):
    has_codec = compression != "none" and is_compressed is not False
    codec = "lz4_raw" if compression == "lz4" else compression
    body = pa.Codec(codec).compress(EQUAL, asbytes=True) if has_codec else EQUAL
    page = header_v2(body, 400, PREFIXES, len(EQUAL), is_compressed=is_compressed) + body
    path = tmp_path / "a.parquet"
    path.write_bytes(file_with(page, 400, pa.binary(), compression))
    assert {row["x"] for row in me.read(path)} == {b"a" * 9_000}
    with pytest.raises(me.DataFormatError, match=r"become 3,6.*more than max_record_bytes"):
        list(me.read(path, max_record_bytes="10kB"))


@pytest.mark.parametrize("order", [1, -1])
def test_the_larger_of_two_contents_is_believed(monkeypatch, order):
    small = packed([0] * 400) + packed([0] * 400)
    monkeypatch.setattr(dictionary_pages, "contents_of", lambda *_: [small, EQUAL][::order])
    file = file_with(header(EQUAL, 400, PREFIXES) + EQUAL, 400, pa.binary())
    with pytest.raises(InflationError, match=r"become 3,6"):
        look(file, limit=10_000)


def test_texts_of_a_fixed_width_are_read_exactly(tmp_path):
    values = [(b"%016d" % row)[:16] for row in range(5_000)]
    lists = pa.ListArray.from_arrays(np.arange(0, 5_001, 5, dtype=np.int32), pa.array(values, pa.binary(16)))
    table = pa.table({"f": pa.array(values[:1_000], pa.binary(16)), "x": lists})
    path = tmp_path / "a.parquet"
    write(table, path)
    assert look(path.read_bytes()) == Decoding()
    assert list(me.read(path)) == table.to_pylist()


@pytest.mark.parametrize("is_list", [False, True])
def test_texts_that_are_longer_than_their_fixed_width_are_refused_before_they_are_decoded(tmp_path, is_list):
    content = packed([0] + [8_999] * 399) + packed([9_000] + [1] * 399) + b"a" * 9_399
    body = (in_one_list(400) if is_list else b"") + content
    page = header(body, 400, PREFIXES) + body
    path = tmp_path / "a.parquet"
    path.write_bytes(file_with(page, 400, pa.binary(40), is_list=is_list))
    with counted_memory() as pool, pytest.raises(me.DataFormatError, match=r"more than max_record_bytes"):
        list(me.read(path, max_record_bytes="10kB"))
    assert pool.max_memory() < 1 << 20
    with counted_memory() as pool, pytest.raises(me.DataFormatError, match=r"cannot be decoded"):
        list(me.read(path))
    assert pool.max_memory() > 3_000_000, "if it were less, Arrow would check this and nothing else had to"


@pytest.mark.parametrize("is_list", [False, True])
@pytest.mark.parametrize("kind", [pa.decimal128(30), pa.binary(16)])
def test_numbers_of_a_fixed_width_are_counted(is_list, kind):
    values = pa.array([0 if pa.types.is_decimal(kind) else b"0" * 16] * 300_000, kind)
    table = pa.table({"x": pa.ListArray.from_arrays([0, len(values)], values) if is_list else values})
    for encoding in ("DELTA_BYTE_ARRAY", "PLAIN"):
        sink = io.BytesIO()
        write(table, sink, encoding, compression="zstd")
        with pytest.raises(InflationError, match=r"become \d,\d{3},\d{3}"):
            look(sink.getvalue())
