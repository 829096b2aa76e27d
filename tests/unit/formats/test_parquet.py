"""Parquet: every row group is a block."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from files import write_numbers
from midepoch.formats import FORMATS, Block, parquet, scan_file


def test_a_block_that_cannot_be_decoded_names_the_file(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(2000)}), path, row_group_size=1000, use_dictionary=False, compression="snappy")
    damaged = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    damaged[start : start + 400] = b"\xff" * 400
    path.write_bytes(damaged)
    with pytest.raises(me.DataFormatError, match=r"a\.parquet: row group 1 cannot be decoded"):
        list(me.read(path))


def test_threads_that_read_a_file_side_by_side_never_share_a_reader(tmp_path, monkeypatch):
    """Arrow would crash. Readers that are idle are used again."""
    path = write_numbers(tmp_path / "a.parquet", 0, 40, "parquet", rows=4)
    scan = scan_file(str(path))
    blocks = [Block(number, *place) for number, place in enumerate(scan.blocks)]
    reader = FORMATS["parquet"].open_blocks(str(path), scan.schema, scan.schema)
    both, made = Barrier(2), []

    class Watched:
        def __init__(self, *_arguments, **_options):
            self.inside = []
            made.append(self)

        def read_row_group(self, number, **options):
            self.inside.append(number)
            both.wait()
            alone = self.inside == [number]
            self.inside.remove(number)
            return pa.table({"x": [number if alone else -1]})

    reader._idle.clear()
    monkeypatch.setattr(parquet.pq, "ParquetFile", Watched)
    with ThreadPoolExecutor(2) as pool:
        up, down = (
            pool.submit(lambda step=step: [reader.read(one)["x"][0].as_py() for one in blocks[::step]])
            for step in (1, -1)
        )
    assert up.result() == list(range(10))
    assert down.result() == list(range(9, -1, -1))
    assert len(made) == 2


def test_many_threads_read_the_row_groups_of_one_file(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"x": range(20_000), "text": [f"text {number}" for number in range(20_000)]})
    pq.write_table(table, path, row_group_size=100, compression="zstd")
    scan = scan_file(str(path))
    blocks = [Block(number, *place) for number, place in enumerate(scan.blocks)]
    reader = FORMATS["parquet"].open_blocks(str(path), scan.schema, scan.schema)
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(reader.read, blocks))
    assert pa.concat_tables(read).equals(table)


TEXTS = ["a", None, "", "b" * 50, "ü", "a", "long " * 9] * 10
COLUMNS = {
    "number": pa.array(range(70)),
    "maybe": pa.array([None if row % 3 == 0 else row % 2 == 0 for row in range(70)]),
    "text": pa.array(TEXTS),
    "coded": pa.array(TEXTS).dictionary_encode(),
    "list": pa.array([[row] * (row % 4) if row % 5 else None for row in range(70)]),
    "struct": pa.array([{"x": row, "y": TEXTS[row]} for row in range(70)]),
}


def opened(path, limit=512 << 20):
    scan = scan_file(str(path))
    blocks = [Block(number, *place) for number, place in enumerate(scan.blocks)]
    return FORMATS["parquet"].open_blocks(str(path), scan.schema, scan.schema, limit), blocks


def as_rows(data):
    return [table.to_pylist() for table in data]


@pytest.mark.parametrize("columns", [*([name] for name in COLUMNS), list(COLUMNS)])
@pytest.mark.parametrize("rows", [1, 7, 32])
def test_row_groups_that_are_read_together_are_those_that_are_read_alone(tmp_path, columns, rows):
    table = pa.table({name: COLUMNS[name] for name in columns})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=rows)
    reader, blocks = opened(tmp_path / "a.parquet")
    alone = as_rows(map(reader.read, blocks))
    assert [row for group in alone for row in group] == table.to_pylist()
    for begin in range(0, len(blocks), 3):
        for end in range(begin, len(blocks) + 1):
            assert as_rows(reader.read_all(blocks[begin:end])) == alone[begin:end]
    assert as_rows(reader.read_all(blocks[::-1])) == alone[::-1]


def test_row_groups_are_read_together_by_one_call(tmp_path, monkeypatch):
    path = write_numbers(tmp_path / "a.parquet", 0, 40, "parquet", rows=4)
    reader, blocks = opened(path)
    monkeypatch.setattr(reader, "read", None)
    assert as_rows(reader.read_all(blocks[2:5])) == [
        [{"x": 4 * group + row} for row in range(4)] for group in (2, 3, 4)
    ]


def test_row_groups_without_rows_are_read_together_with_others(tmp_path):
    schema = pa.schema({"x": pa.int64()})
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for rows in (0, 0, 3, 0, 2, 0):
            writer.write_table(pa.table({"x": range(rows)}, schema=schema))
    reader, blocks = opened(tmp_path / "a.parquet")
    assert [len(data) for data in reader.read_all(blocks)] == [0, 0, 3, 0, 2, 0]
    assert [len(data) for data in reader.read_all(blocks[:2])] == [0, 0]


def test_of_row_groups_that_are_read_together_the_damaged_one_is_named_and_those_before_it_are_read(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(4000)}), path, row_group_size=1000, use_dictionary=False, compression="snappy")
    reader, blocks = opened(path)
    damaged = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    damaged[start : start + 400] = b"\xff" * 400
    path.write_bytes(damaged)
    read = iter(reader.read_all(blocks))
    assert [next(read)["x"][0].as_py() for _ in range(2)] == [0, 1000]
    with pytest.raises(me.DataFormatError, match="row group 2 cannot be decoded"):
        next(read)


def test_row_groups_that_are_read_together_have_the_rows_of_the_file_whatever_the_index_says(tmp_path):
    path = write_numbers(tmp_path / "a.parquet", 0, 12, "parquet", rows=4)
    reader, blocks = opened(path)
    for rows in ((5, 4), (5, 3)):
        wrong = [block._replace(rows=number) for block, number in zip(blocks, rows, strict=False)]
        assert [len(data) for data in reader.read_all(wrong)] == [4, 4]
    with pytest.raises(me.DataFormatError, match="row group 7 cannot be decoded"):
        list(reader.read_all([blocks[0], blocks[1]._replace(number=7)]))


def test_row_groups_that_are_decoded_in_steps_are_read_one_by_one(tmp_path, monkeypatch):
    table = pa.table({"text": ["same " * 20] * 40})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    monkeypatch.setattr("midepoch.formats.dictionary_pages.MOST_BYTES", 300)
    reader, blocks = opened(tmp_path / "a.parquet")
    assert reader._read_joined(blocks) is None
    assert as_rows(reader.read_all(blocks)) == [table.slice(10 * group, 10).to_pylist() for group in range(4)]


def test_of_row_groups_that_are_read_together_one_that_becomes_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("midepoch.formats.dictionary_pages.MOST_BYTES", 1 << 20)
    table = pa.table({"text": [str(row) for row in range(1000)] + ["same " * 20_000] * 1000})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500, compression="zstd")
    reader, blocks = opened(tmp_path / "a.parquet", limit=1 << 20)
    read = iter(reader.read_all(blocks))
    assert [len(next(read)) for _ in range(2)] == [500, 500]
    with pytest.raises(me.DataFormatError, match=r"row group 2: .* bytes become .* more than max_record_bytes"):
        next(read)
