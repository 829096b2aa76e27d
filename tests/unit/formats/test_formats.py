"""Formats describe themselves: a new one is one declaration, and nothing else has to know it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import midepoch as me
from midepoch.formats import FORMATS, Block, Scan, file_suffixes, register_format
from midepoch.formats.base import Format, Range, read_as
from midepoch.storage.objects import open_bytes

MAGIC, SUFFIX = b"TOY\n", ".toy"
BLOCK_ROWS = 3


def scan(path, limit=0):
    """Every byte after the magic is a row."""
    rows = len(open_bytes(path).read_at(1 << 20, len(MAGIC)))
    starts = range(0, rows, BLOCK_ROWS)
    blocks = [(len(MAGIC) + start, min(BLOCK_ROWS, rows - start), min(BLOCK_ROWS, rows - start)) for start in starts]
    return Scan("toy", pa.schema([("byte", pa.int64())]), blocks)


class ToyBlocks:
    def __init__(self, path, wanted):
        self._file, self._wanted = open_bytes(path), wanted

    def read(self, block: Block):
        content = self._file.read_at(block.length, block.offset)
        return read_as(pa.record_batch({"byte": pa.array(list(content), pa.int64())}), self._wanted)


def ranges(path, columns):
    """The bounds of every block, which a real format would store."""
    blocks = [open_bytes(path).read_at(length, offset) for offset, length, _ in scan(path).blocks]
    return [{"byte": Range(pa.scalar(min(block)), pa.scalar(max(block)), 0, len(block))} for block in blocks]


TOY = Format(
    name="toy",
    suffixes=(SUFFIX,),
    has_magic=lambda head: head.startswith(MAGIC),
    scan=scan,
    open_blocks=lambda path, own, wanted: ToyBlocks(path, wanted),
    ranges=ranges,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS, TOY.name, TOY)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.toy").write_bytes(MAGIC + bytes(range(10)))
    (tmp_path / "data" / "b.toy").write_bytes(MAGIC + bytes(range(10, 15)))
    (tmp_path / "data" / "notes.txt").write_text("not data")
    return tmp_path / "data"


def rows(dataset):
    return [row["byte"] for row in dataset]


def test_a_registered_format_is_listed_scanned_read_and_resumed(folder):
    dataset = me.read(folder)
    assert len(dataset) == 15
    assert rows(dataset) == list(range(15))
    shuffled = me.read(folder).shuffle(seed=1)
    expected = rows(shuffled)
    assert sorted(expected) == list(range(15))
    shuffled.set_epoch(0)
    first = [next(iterator)["byte"] for iterator in [iter(shuffled)] for _ in range(4)]
    resumed = me.read(folder).shuffle(seed=1)
    resumed.load_state_dict(shuffled.state_dict())
    assert first + rows(resumed) == expected


def test_a_registered_format_is_recognised_by_its_bytes_whatever_the_name(folder):
    (folder / "a.toy").rename(folder / "a.bin")
    assert rows(me.read(str(folder / "a.bin"))) == list(range(10))
    with pytest.raises(me.DataFormatError, match=r"a\.bin is toy, but format='csv' was asked for"):
        me.read(str(folder / "a.bin"), format="csv")


def test_the_statistics_of_a_registered_format_rule_blocks_out(folder):
    read = []
    plain = ToyBlocks.read
    ToyBlocks.read = lambda self, block: read.append(block.offset) or plain(self, block)
    try:
        assert rows(me.read(folder, filters=[("byte", ">=", 12)])) == [12, 13, 14]
    finally:
        ToyBlocks.read = plain
    assert read == [len(MAGIC), len(MAGIC) + BLOCK_ROWS]


def test_a_registered_text_format_is_known_by_its_name(tmp_path, monkeypatch):
    text = Format(
        name="bytes",
        suffixes=(".bytes",),
        is_text=lambda head: head.assumed == "bytes",
        scan=lambda path, limit: Scan("bytes", pa.schema([("byte", pa.int64())]), [(0, 3, 3)]),
        open_blocks=lambda path, own, wanted: ToyBlocks(path, wanted),
    )
    monkeypatch.setitem(FORMATS, "bytes", text)
    (tmp_path / "a.bytes").write_text("abc")
    assert rows(me.read(tmp_path)) == [97, 98, 99]


def test_the_suffixes_of_a_format_and_of_all():
    assert file_suffixes("parquet") == (".parquet", ".pq")
    assert set(file_suffixes("csv")) == {".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst"}
    assert file_suffixes("json") == file_suffixes("jsonl")
    assert file_suffixes() == file_suffixes("lines") == file_suffixes("unknown")
    assert {".arrow", ".feather", ".ipc", ".parquet", ".pq", ".orc", ".json", ".ndjson.zst"} < set(file_suffixes())
    assert len(file_suffixes()) == 28 == len(set(file_suffixes()))


def test_a_name_is_registered_once(folder):
    register_format(TOY)
    with pytest.raises(ValueError, match="There is a format 'toy' already"):
        register_format(replace(TOY, suffixes=(".other",)))
    assert FORMATS["toy"] is TOY


SCRIPT = """
import sys
import midepoch as me
from midepoch.extending import register_format
from toy import TOY

{guard}register_format(TOY)

if __name__ == "__main__":
    loader = me.Loader(me.read(sys.argv[1]), num_workers=1, multiprocessing_context="spawn")
    print(sum(row["byte"] for row in loader))
"""


@pytest.mark.parametrize(
    ("guard", "expected"), [("", "105"), ('if __name__ == "__main__": ', "names formats that are not registered here")]
)
def test_a_spawned_worker_knows_a_format_if_it_imports_what_registers_it(folder, tmp_path, guard, expected):
    (tmp_path / "toy.py").write_text(Path(__file__).read_text())
    (tmp_path / "script.py").write_text(SCRIPT.format(guard=guard))
    run = subprocess.run(
        [sys.executable, tmp_path / "script.py", folder], capture_output=True, text=True, timeout=100, check=False
    )
    assert expected in run.stdout + run.stderr
