"""Blocks of decoded files: read once, ahead of their use, and cut whatever parts their columns come in."""

import threading
from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pytest

import midepoch as me
from files import numbers, values, write, write_numbers
from midepoch.formats.parquet import ParquetBlocks
from midepoch.sources import lane as source
from midepoch.sources.fetcher import BlockFetcher
from midepoch.sources.lane import ReadSizes


@pytest.fixture
def reads(monkeypatch):
    """How often each block is read, and which were read by the thread that uses them."""
    counted, own = Counter(), []
    read_all = BlockFetcher.read_all

    def watched(self, numbers):
        counted.update(numbers)
        if threading.current_thread() is threading.main_thread():
            own.extend(numbers)
        return read_all(self, numbers)

    monkeypatch.setattr(BlockFetcher, "read_all", watched)
    return counted, own


@pytest.mark.parametrize("step", [1, 8, 50, 8192])
@pytest.mark.parametrize("size", [1, 3, 8, 11, 64, 1000])
@pytest.mark.parametrize("form", ["python", "numpy", "torch", "arrow"])
def test_every_row_group_is_read_once_and_all_but_the_first_ahead(tmp_path, monkeypatch, reads, step, size, form):
    monkeypatch.setattr(source, "STEP_ROWS", step)
    monkeypatch.setattr(source, "RUN_ROWS", min(step, source.RUN_ROWS))
    for file in range(3):
        write_numbers(tmp_path / f"{file}.parquet", 90 * file, 90 * file + 90, "parquet", rows=8)
    dataset = me.read(tmp_path).with_format(form).batch(size)
    assert [int(x) if form != "arrow" else x.as_py() for batch in dataset for x in batch["x"]] == list(range(270))
    counted, own = reads
    assert counted == dict.fromkeys(range(36), 1)
    assert own == [0]


def test_row_groups_without_rows_are_passed_over(tmp_path):
    groups = [numbers(0, 0), numbers(0, 5), numbers(0, 0), numbers(0, 0), numbers(5, 9), numbers(0, 0), numbers(9, 20)]
    write(tmp_path / "a.parquet", groups, "parquet")
    write(tmp_path / "b.parquet", [numbers(20, 24), numbers(0, 0)], "parquet")
    assert values(me.read(tmp_path)) == list(range(24))
    assert values(me.read(tmp_path).skip(4)) == list(range(4, 24))
    assert sorted(values(me.read(tmp_path).shuffle(seed=1, window=6))) == list(range(24))


@pytest.mark.parametrize("order", [{}, {"level": "block", "window": 30}, {"level": "row"}])
@pytest.mark.parametrize("form", ["python", "numpy", "arrow"])
def test_columns_may_come_in_several_parts_of_any_length(tmp_path, monkeypatch, order, form):
    groups = [
        pa.record_batch({"x": range(first, first + 20), "s": [f"row {row}" for row in range(first, first + 20)]})
        for first in range(0, 100, 20)
    ]
    write(tmp_path / "a.parquet", groups, "parquet")

    def batches():
        dataset = me.read(tmp_path).with_format(form)
        return [
            (list(map(str, batch["x"])), list(map(str, batch["s"])))
            for batch in (dataset.shuffle(seed=3, **order) if order else dataset).batch(7)
        ]

    whole = batches()
    assert sum(len(x) for x, _ in whole) == 100
    read, parted = ParquetBlocks.read, []

    def in_parts(self, block):
        table = read(self, block)
        parted.append(block.number)
        cuts = {"x": [0, 9, 20], "s": [0, 1, 9, 13, 20]}
        columns = {
            name: pa.chunked_array([table[name].chunk(0)[a:b] for a, b in pairwise(ends)])
            for name, ends in cuts.items()
        }
        return pa.table(columns, schema=table.schema)

    monkeypatch.setattr(ParquetBlocks, "read", in_parts)
    assert batches() == whole
    assert set(parted) == set(range(5))


def test_small_rows_come_in_longer_runs_within_the_same_bounds():
    assert ReadSizes.of(64, 1).run == 8192
    assert ReadSizes.of(256, 1).run == 2048
    assert ReadSizes.of(2000, 1).run == 1024
    assert ReadSizes.of(1 << 20, 1).run == 8
    assert ReadSizes.of(64, 64).run == 128
    assert ReadSizes.of(64, 1, has_dictionaries=True).run == 1024
    for row_bytes in (1, 10, 64, 500, 5000, 1 << 24):
        for lanes in (1, 3, 256, 10_000):
            pace = ReadSizes.of(row_bytes, lanes)
            assert 1 <= pace.run <= pace.step <= 8192


@pytest.mark.parametrize(("coded", "longest"), [(False, 8192), (True, 1024)])
def test_rows_that_name_entries_of_a_dictionary_are_not_taken_for_small(tmp_path, monkeypatch, coded, longest):
    lengths, runs = [], source.LaneRows.runs

    def watched(self, *arguments, **options):
        for run in runs(self, *arguments, **options):
            lengths.append(len(run))
            yield run

    monkeypatch.setattr(source.LaneRows, "runs", watched)
    column = pa.array(range(10_000), pa.int32())
    table = pa.table({"x": column.dictionary_encode() if coded else column})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert values(me.read(tmp_path)) == list(range(10_000))
    assert max(lengths) == longest


def test_files_close_while_the_interpreter_ends_and_has_forgotten_its_modules(tmp_path, monkeypatch):
    source = me.read(write_numbers(tmp_path / "a.parquet", 0, 9, "parquet"))._plan.pipeline.source
    files = source.open(1).fetcher
    monkeypatch.setattr("midepoch.sources.fetcher.sys", None)
    files.close()
