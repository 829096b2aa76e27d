"""Texts that a Parquet file has once and its rows repeat: they are given up before they fill the memory."""

import io
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from forged_pages import LIST, field, file_with, header, in_one_list
from midepoch.formats import dictionary_pages, parquet
from midepoch.formats.base import Block
from midepoch.formats.dictionary_pages import Decoding, coded_bytes, decoding_of, leaves_of, longest_text, stored_bytes
from midepoch.formats.inflation import InflationError

ROWS = 2_000


def repeated(text, rows=ROWS, compression="zstd", **options):
    """A file in which all rows have one long text."""
    codes = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(rows), "x": codes}), sink, compression=compression, **options)
    return sink.getvalue()


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setattr(dictionary_pages, "MOST_BYTES", 1 << 22)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_a_small_file_of_one_long_text_in_many_rows_is_refused(tmp_path, compression):
    path = tmp_path / "a.parquet"
    path.write_bytes(repeated("a" * 10_000, compression=compression, store_schema=False))  # 20 MB
    dataset = me.read(path, max_record_bytes="1MiB")
    with pytest.raises(me.DataFormatError, match=r"a\.parquet, row group 0: .*more than max_record_bytes \(1,0"):
        list(dataset)
    assert [row["id"] for row in me.read(path)] == list(range(ROWS)), "rows that take several steps are whole"
    assert {row["x"] for row in me.read(path)} == {"a" * 10_000}


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("nested", [True, False])
def test_a_forged_size_of_a_page_that_is_not_compressed_is_not_believed(tmp_path, nested):
    """Arrow does not ask for it, so a page may say that its text has five bytes."""
    path, rows = tmp_path / "a.parquet", 400
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["a" * 100_000]))
    column = pa.ListArray.from_arrays(pa.array([0, rows], pa.int32()), texts) if nested else texts
    pq.write_table(pa.table({"x": column}), path, compression="none", store_schema=False, write_statistics=False)
    content = bytearray(path.read_bytes())
    at = pq.read_metadata(path).row_group(0).column(0).dictionary_page_offset + 3
    end = next(byte for byte in range(at, at + 9) if content[byte] < 0x80)
    content[at : end + 1] = bytes([0x80 | 10, *[0x80] * (end - at - 1), 0])
    path.write_bytes(content)
    with pytest.raises(me.DataFormatError, match=r"a\.parquet, row group 0: .*more than max_record_bytes \(1,0"):
        list(me.read(path, max_record_bytes="1MiB"))


@pytest.mark.usefixtures("_small")
def test_pages_of_trusted_files_are_not_looked_at(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    path.write_bytes(repeated("a" * 10_000, store_schema=False))
    usual = me.read(path)
    next(iter(usual))
    monkeypatch.setattr(parquet, "decoding_of", lambda *_: pytest.fail("its pages were looked at"))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("it was decoded in steps"))
    trusted = me.read(path, max_record_bytes=None)
    trusted.load_state_dict(usual.state_dict())
    assert [row["id"] for row in trusted] == list(range(1, ROWS)), "a state of either is one of both"
    with pytest.raises(pytest.fail.Exception, match="looked at"):
        list(me.read(path))


@pytest.mark.usefixtures("_small")
def test_few_rows_are_decoded_at_a_time(monkeypatch):
    seen = []

    class Counted(pq.ParquetFile):
        def iter_batches(self, **options):
            for batch in super().iter_batches(**options):
                seen.append(batch.nbytes)
                yield batch

    monkeypatch.setattr(pq, "ParquetFile", Counted)

    content = pa.BufferReader(repeated("a" * 100_000, store_schema=False))
    monkeypatch.setattr(parquet, "open_file", lambda path: content)
    scan = parquet.scan("a")
    blocks = parquet.open_blocks("a", scan.schema, scan.schema, 1 << 20)
    with pytest.raises(me.DataFormatError, match="max_record_bytes"):
        blocks.read(Block(0, *scan.blocks[0]))
    assert max(seen) <= 2 << 22
    assert sum(seen) < ROWS * 100_000 / 10


def test_texts_of_usual_files_are_decoded_at_once():
    rng = np.random.default_rng(0)
    table = pa.table({"w": rng.integers(0, 5_000, 100_000).astype(str), "t": [f"{n}" * 20 for n in range(100_000)]})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    metadata, content = pq.read_metadata(sink), pa.BufferReader(sink.getvalue())
    assert decoding_of(content, metadata, 0, leaves_of(metadata, [0, 1]), 1 << 20) == Decoding()
    assert decoding_of(content, metadata, 0, [], 1 << 20) == Decoding()


def different(rows, version="2.0"):
    """A file whose texts differ, so its dictionary has all of them. Codes in pages of version 2 are not counted."""
    sink = io.BytesIO()
    table = pa.table({"x": [f"{number:01000}" for number in range(rows)], "id": range(rows)})
    pq.write_table(table, sink, data_page_version=version)
    return sink


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(("version", "rows"), [("1.0", None), ("2.0", 20)])
def test_texts_that_are_used_once_are_decoded_at_once(version, rows):
    file = different(200, version)
    metadata = pq.read_metadata(file)
    decoding = decoding_of(pa.BufferReader(file.getvalue()), metadata, 0, leaves_of(metadata, [0, 1]), 1 << 20)
    assert decoding == Decoding(rows)


@pytest.mark.usefixtures("_small")
def test_a_text_that_many_rows_use_among_others_is_decoded_in_steps(tmp_path):
    texts = ["a" * 50_000, *(f"{number}" for number in range(500)), *["a" * 50_000] * 1_500]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": texts}), path, store_schema=False)
    with pytest.raises(me.DataFormatError, match=r"a\.parquet, row group 0: .*more than max_record_bytes \(1,0"):
        list(me.read(path, max_record_bytes="1MiB"))
    assert [row["x"] for row in me.read(path)] == texts


def look(content, limit=1 << 20):
    """How the row group of a file would be decoded."""
    metadata = pq.read_metadata(io.BytesIO(content))
    return decoding_of(pa.BufferReader(content), metadata, 0, leaves_of(metadata, range(metadata.num_columns)), limit)


@pytest.mark.usefixtures("_small")
def test_long_texts_may_all_come_in_the_first_rows():
    texts = ["a" * 400_000] * 80 + [f"{number}" for number in range(20_000)]
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": texts}), sink, compression="zstd")
    assert look(sink.getvalue()) == Decoding((1 << 22) // 400_000)


@pytest.mark.usefixtures("_small")
def test_a_footer_that_says_more_rows_than_there_are_texts_makes_no_step_longer():
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": ["a" * 100_000] * 1_000}), sink, data_page_version="2.0", compression="zstd")
    content, said = sink.getvalue(), varint(1_000)
    ends = [at for at in range(len(content) - 1_000, len(content)) if content.startswith(said, at)]
    for number in range(1 << len(ends)):
        forged = bytearray(content)
        for place, at in enumerate(ends):
            if number >> place & 1:
                forged[at : at + 2] = varint(8_000)
        group = pq.read_metadata(io.BytesIO(forged)).row_group(0)
        if (group.num_rows, group.column(0).num_values) == (8_000, 1_000):
            break
    else:
        pytest.fail("no footer says what is wanted")
    assert look(bytes(forged)) == look(content) == Decoding((1 << 22) // 100_000)


@pytest.mark.usefixtures("_small")
def test_columns_in_lists_are_counted_together(tmp_path):
    codes = pa.DictionaryArray.from_arrays(pa.array(np.zeros(300, np.int32)), pa.array(["a" * 10_000]))
    lists = pa.ListArray.from_arrays([0, len(codes)], codes)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": lists, "y": lists, "z": lists}), path, store_schema=False)
    assert look(path.read_bytes()) == Decoding(None, ("y.list.element", "z.list.element")), "3 MB each"
    with pytest.raises(me.DataFormatError, match=r"bytes become 9,.*max_record_bytes"):
        list(me.read(path, max_record_bytes="1MiB"))
    assert list(me.read(path)) == [dict.fromkeys("xyz", ["a" * 10_000] * 300)]


@pytest.mark.parametrize("is_list", [False, True])
def test_a_page_whose_header_only_arrow_can_read_is_refused(tmp_path, is_list):
    texts = b"".join(length.to_bytes(4, "little") + b"a" * length for length in [40] * 40)
    body = (in_one_list(40) if is_list else b"") + texts
    path = tmp_path / "a.parquet"
    for more in (b"", field(9, bytes([0x15, 0]), LIST)):
        page = header(body, 40, 0, more=more) + body
        path.write_bytes(file_with(page, 40, pa.binary(), is_list=is_list))
        assert pq.read_table(path).num_rows == (1 if is_list else 40)
        if more:
            with pytest.raises(me.DataFormatError, match=r"a\.parquet, row group 0: a page of the column 'x.*damaged"):
                list(me.read(path))
        else:
            assert len(list(me.read(path))) == (1 if is_list else 40)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(("rows", "steps"), [(60, 1), (100, 3), (200, 10), (300, None)])
def test_a_dictionary_is_decompressed_only_where_steps_would_be_many(rows, steps, monkeypatch):
    looked = []

    def looking(content):
        looked.append(content)
        return 1_000

    monkeypatch.setattr(dictionary_pages, "longest_text", looking)
    file = different(rows)
    leaves = leaves_of(pq.read_metadata(file), [0, 1])
    decoding = decoding_of(pa.BufferReader(file.getvalue()), pq.read_metadata(file), 0, leaves, 1 << 20)
    if steps is None or steps == 1:
        assert decoding == Decoding()
    else:
        assert -(-rows // decoding.rows) == steps
    assert len(looked) == (steps is None)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("is_joined", [True, False])
def test_rows_that_are_decoded_in_steps_are_one_record_batch_unless_they_are_large(tmp_path, is_joined, monkeypatch):
    if not is_joined:
        monkeypatch.setattr(parquet, "JOINED_BYTES", 1_000)
    path, file = tmp_path / "a.parquet", different(200)
    path.write_bytes(file.getvalue())
    scan = parquet.scan(str(path))
    data = parquet.open_blocks(str(path), scan.schema, scan.schema, 1 << 20).read(Block(0, *scan.blocks[0]))
    assert data.equals(pq.read_table(file))
    assert data.column(0).num_chunks == (1 if is_joined else 10)
    assert [row["id"] for row in me.read(path).shuffle(1)] != [row["id"] for row in me.read(path)] == list(range(200))


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
def test_dictionaries_and_codes_are_read_with_every_compression(compression):
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": ["b" * 9_000, *map(str, range(999))]}), sink, compression=compression)
    metadata, file = pq.read_metadata(sink), pa.BufferReader(sink.getvalue())
    assert decoding_of(file, metadata, 0, leaves_of(metadata, [0]), 1 << 20) == Decoding()


def test_the_longest_text_of_a_dictionary():
    texts = [b"a", b"", b"b" * 5_000, b"c" * 300]
    assert longest_text(b"".join(len(text).to_bytes(4, "little") + text for text in texts)) == 5_000
    assert longest_text(b"\xff\xff\xff\xffab") == 6


def varint(value, length=None):
    """A number as Thrift writes it, or with more bytes than it needs."""
    value, coded = value << 1, bytearray()
    while value or not coded or (length is not None and len(coded) < length):
        coded.append((value & 0x7F) | 0x80)
        value >>= 7
    coded[-1] &= 0x7F
    return bytes(coded)


def test_a_footer_that_says_too_little_is_not_believed(tmp_path):
    """Text that is not repeated, but compresses a thousandfold, in a file whose footer says that it is small."""
    sink = io.BytesIO()
    texts = pa.table({"x": ["a" * 20_000_000 + str(n) for n in range(2)]})
    pq.write_table(texts, sink, compression="zstd", use_dictionary=False, write_statistics=False, store_schema=False)
    content, chunk = sink.getvalue(), pq.read_metadata(sink).row_group(0).column(0)
    said = varint(chunk.total_uncompressed_size)
    footer = content[-4096:].replace(said, varint(99, len(said)))
    path = tmp_path / "a.parquet"
    path.write_bytes(content[:-4096] + footer)
    group = pq.read_metadata(path).row_group(0)
    assert (group.total_byte_size, group.column(0).total_uncompressed_size) == (99, 99)
    dataset = me.read(path, max_record_bytes="1MiB")
    with pytest.raises(me.DataFormatError, match=r"a\.parquet, row group 0: .*bytes become 40,.*max_record_bytes"):
        list(dataset)
    assert [len(row["x"]) for row in me.read(path)] == [20_000_001] * 2


NESTED = {
    "list": lambda codes: pa.ListArray.from_arrays([0, len(codes), len(codes)], codes),
    "list of structs": lambda codes: pa.ListArray.from_arrays(
        [0, len(codes), len(codes)], pa.StructArray.from_arrays([codes], ["t"])
    ),
    "map": lambda codes: pa.MapArray.from_arrays([0, len(codes), len(codes)], pa.array(range(len(codes))), codes),
}


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("shape", NESTED.values(), ids=NESTED)
def test_one_row_of_many_texts_is_refused_before_they_are_decoded(tmp_path, shape):
    codes = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2_000, np.int32)), pa.array(["a" * 10_000]))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": shape(codes), "id": [0, 1]}), path, store_schema=False)
    before = pa.total_allocated_bytes()
    with pytest.raises(me.DataFormatError, match=r"a\.parquet, row group 0: .*bytes become 20,.*max_record_bytes"):
        list(me.read(path, max_record_bytes="1MiB"))
    assert pa.total_allocated_bytes() - before < 1 << 22
    assert [row["id"] for row in me.read(path)] == [0, 1]
    first = me.read(path).with_format("arrow").head(1)[0]
    assert first["x"].to_pylist() == shape(codes).slice(0, 1).to_pylist()


def test_many_numbers_in_one_row_are_refused(tmp_path):
    numbers = pa.ListArray.from_arrays([0, 3_000_000], pa.array(np.zeros(3_000_000, np.int64)))
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": numbers}), sink)
    metadata = pq.read_metadata(sink)
    with pytest.raises(InflationError, match="become 24,000,000 bytes"):
        decoding_of(pa.BufferReader(sink.getvalue()), metadata, 0, leaves_of(metadata, [0]), 1 << 20)


def test_booleans_in_lists_are_counted_with_their_levels():
    """Few bytes say of any number of values that each is there and true, and each takes up to five while decoded."""
    values = pa.array([True] * 3_000_000)
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": pa.ListArray.from_arrays([0, len(values)], values)}), sink)
    with pytest.raises(InflationError, match="become 12,000,000 bytes"):
        look(sink.getvalue())


@pytest.mark.usefixtures("_small")
def test_a_dictionary_that_is_said_to_come_after_the_rows_is_not_where_arrow_begins(tmp_path):
    sink = io.BytesIO()
    table = pa.table({"x": ["a" * 10_000] * ROWS, "y": ["b"] * ROWS})
    pq.write_table(table, sink, store_schema=False, compression="zstd")
    content, group = sink.getvalue(), pq.read_metadata(sink).row_group(0)
    first, other = group.column(0), group.column(1)

    def said(data, dictionary):
        return bytes([0x26]) + varint(data) + bytes([0x26]) + varint(dictionary)

    length = int.from_bytes(content[-8:-4], "little")
    before = said(first.data_page_offset, first.dictionary_page_offset)
    after = said(first.dictionary_page_offset, other.dictionary_page_offset)
    footer = content[-8 - length : -8].replace(before, after)
    path = tmp_path / "a.parquet"
    path.write_bytes(content[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    chunk = pq.read_metadata(path).row_group(0).column(0)
    assert chunk.dictionary_page_offset == other.dictionary_page_offset > chunk.data_page_offset
    assert pq.read_table(path).equals(table), "Arrow begins at the smaller offset"
    with pytest.raises(me.DataFormatError, match=r"more than max_record_bytes"):
        list(me.read(path, columns=["x"], max_record_bytes="1MiB"))


def test_the_bytes_of_a_value_in_memory():
    kinds = {"a": pa.bool_(), "b": pa.binary(1), "c": pa.binary(40), "d": pa.int8(), "e": pa.int64(), "f": pa.string()}
    sink = io.BytesIO()
    pq.write_table(pa.table({name: pa.nulls(1, kind) for name, kind in kinds.items()}), sink)
    assert [leaf.width for leaf in leaves_of(pq.read_metadata(sink), range(6))] == [0, 4, 40, 4, 8, 4]


@pytest.mark.parametrize(
    ("spans", "stored"),
    [
        ([(4, 10), (14, 10)], 20),
        ([(4, 10), (4, 10)], 10),
        ([(14, 10), (4, 15)], 20),
        ([(4, 100), (14, 10)], 100),
        ([(4, -5)], 0),
    ],
)
def test_bytes_that_several_columns_have_are_counted_once(spans, stored):
    chunks = [
        SimpleNamespace(dictionary_page_offset=None, data_page_offset=begin, total_compressed_size=length)
        for begin, length in spans
    ]
    group = SimpleNamespace(column=lambda number: chunks[number])
    assert stored_bytes(group, [SimpleNamespace(number=number) for number in range(len(spans))]) == stored


def test_the_bytes_of_coded_texts():
    codes = pa.array(["a", "bb", None, "bb"]).dictionary_encode()
    columns = {"d": codes, "l": pa.ListArray.from_arrays([0, 2, 2, 3, 4], codes), "n": pa.array([1, 2, 3, 4])}
    for name, texts in (("d", 5), ("l", 5), ("n", 0)):
        table = pa.table({name: columns[name]})
        assert coded_bytes(table) - table.nbytes == texts


@pytest.mark.parametrize("is_checked", [True, False])
def test_page_checksums_are_compared_where_they_were_written(tmp_path, is_checked):
    content = bytearray(repeated("unlikely", compression="none", write_page_checksum=is_checked, use_dictionary=False))
    content[content.index(b"unlikely", 20_000)] = ord("U")
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    if is_checked:
        with pytest.raises(me.DataFormatError, match=r"row group 0 cannot be decoded: .*CRC"):
            list(me.read(path))
    else:
        assert {row["x"] for row in me.read(path)} == {"Unlikely", "unlikely"}


def test_many_columns_of_booleans_are_no_more_than_their_bits(tmp_path):
    rows = 10_000
    columns = {f"flag {number}": np.arange(rows) % 1000 == number for number in range(40)}
    pq.write_table(pa.table({"id": np.arange(rows) // 1000, **columns}), tmp_path / "a.parquet")
    read = me.read(tmp_path / "a.parquet", max_record_bytes=1 << 20).with_format("numpy").batch(rows)
    (batch,) = read
    assert all((batch[name] == column).all() for name, column in columns.items())
