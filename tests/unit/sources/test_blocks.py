"""Which blocks a lane holds, reads ahead and drops."""

import threading
from collections import Counter
from concurrent.futures import Future
from itertools import count, pairwise

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from files import numbers, values, write, write_numbers
from midepoch.formats.parquet import ParquetBlocks
from midepoch.index.build import open_index
from midepoch.sources import lane
from midepoch.sources.blocks import HeldBlocks
from midepoch.sources.fetcher import BlockFetcher
from midepoch.sources.growth import Growth
from midepoch.sources.read_block import ReadBlock
from worlds import SUFFIXES
from worlds import write as write_table


class FakeFetcher:
    """A fetcher whose blocks are strings. Blocks from 100 on are views of mapped files."""

    def __init__(self, *, is_remote=False, room=100, group_blocks=1, has_runs=False, decode_threads=1):
        self.is_remote, self.room, self.group_blocks, self.has_runs = is_remote, room, group_blocks, has_runs
        self.decode_threads, self.growth = decode_threads, Growth(1.0)
        self.read_now, self.groups, self.urgent_groups, self.futures = [], [], [], {}

    def check(self, numbers):
        pass

    def is_mapped(self, number):
        return number >= 100

    def read(self, number):
        self.read_now.append(number)
        return ReadBlock(f"block {number}", number >= 100)

    def read_ahead(self, group, *, urgent=False):
        (self.urgent_groups if urgent else self.groups).append(list(group))
        futures = {number: Future() for number in group}
        self.futures |= futures
        if urgent and not self.is_remote:
            self.finish(*group)
        return futures

    def finish(self, *numbers):
        for number in numbers:
            self.futures[number].set_running_or_notify_cancel()
            self.futures[number].set_result(ReadBlock(f"block {number}", False))

    def joins(self, group, number):
        return number == group[-1] + 1 and len(group) < self.group_blocks

    def can_grow(self, group):
        return self.joins(group, group[-1] + 1)

    def reserve(self, number):
        self.room -= 1
        if self.room < 0:
            self.room = 0
            return False
        return True

    def release(self, number):
        self.room += 1


def test_decoded_blocks_are_kept_for_one_more_step():
    fetcher = FakeFetcher()
    held = HeldBlocks(fetcher, max_views=9)
    for step in ([1, 2], [2, 3], [1, 3], [4], [4], [3]):
        held.load(step)
        assert [held[number] for number in step] == [f"block {number}" for number in step]
    assert fetcher.read_now == [1, 2, 3, 4, 3]
    with pytest.raises(KeyError):
        held[1]


def test_views_used_longest_ago_are_dropped_first():
    fetcher = FakeFetcher()
    held = HeldBlocks(fetcher, max_views=2)
    for step in ([101], [102], [101], [103], [101], [102]):
        held.load(step)
        assert held.is_view(step[0])
    assert fetcher.read_now == [101, 102, 103, 102]
    held.load([101, 102, 103, 104])
    assert [held[number] for number in (101, 104)] == ["block 101", "block 104"]


def test_blocks_that_were_read_ahead_are_not_read_again():
    fetcher = FakeFetcher()
    held = HeldBlocks(fetcher, max_views=9)
    held.load([1], lambda: held.read_ahead([1, 2, 101, 3]))
    assert fetcher.groups == [[2], [3]]
    fetcher.finish(2, 3)
    held.load([2, 3])
    assert (held[2], held[3], fetcher.read_now, fetcher.room) == ("block 2", "block 3", [1], 100)


def test_blocks_that_the_last_two_requests_did_not_name_are_cancelled():
    fetcher = FakeFetcher()
    held = HeldBlocks(fetcher, max_views=9)
    held.read_ahead([1, 2])
    held.read_ahead([2])
    assert not fetcher.futures[1].cancelled()
    held.read_ahead([3])
    assert fetcher.futures[1].cancelled()
    assert not fetcher.futures[2].cancelled()
    assert fetcher.room == 98


def test_without_memory_for_a_block_later_blocks_are_not_requested_either():
    fetcher = FakeFetcher(room=2)
    held = HeldBlocks(fetcher, max_views=9)
    held.read_ahead([1, 2, 3, 4])
    assert fetcher.groups == [[1], [2]]
    fetcher.finish(1)
    held.load([1], lambda: held.read_ahead([2, 3, 4]))
    assert fetcher.groups == [[1], [2], [3]]


def test_a_last_group_that_can_grow_is_left_for_the_next_request():
    fetcher = FakeFetcher(group_blocks=3)
    held = HeldBlocks(fetcher, max_views=9)
    held.read_ahead([1, 2, 3, 4], more_follow=True)
    assert (fetcher.groups, fetcher.room) == ([[1, 2, 3]], 97)
    held.read_ahead([4, 5, 6], more_follow=True)
    assert fetcher.groups == [[1, 2, 3], [4, 5, 6]]
    held.read_ahead([7, 8])
    assert fetcher.groups[-1] == [7, 8]


def test_a_last_group_that_can_grow_is_left_too_if_memory_ran_out():
    fetcher = FakeFetcher(room=4, group_blocks=3)
    held = HeldBlocks(fetcher, max_views=9)
    held.read_ahead([1, 2, 3, 4, 5])
    assert (fetcher.groups, fetcher.room) == ([[1, 2, 3]], 1)


def test_remote_blocks_of_a_step_are_fetched_side_by_side_even_if_their_turn_has_not_come():
    fetcher = FakeFetcher(is_remote=True)
    held = HeldBlocks(fetcher, max_views=9)
    held.read_ahead([1, 2])
    fetcher.finish(1)
    held.load([1, 2, 3], lambda: fetcher.finish(2, 3))
    assert fetcher.urgent_groups == [[2], [3]]
    assert [held[number] for number in (1, 2, 3)] == ["block 1", "block 2", "block 3"]
    assert (fetcher.read_now, fetcher.room) == ([], 100)


def test_local_blocks_of_a_step_that_were_not_read_ahead_are_decoded_side_by_side():
    fetcher = FakeFetcher(decode_threads=3)
    held = HeldBlocks(fetcher, max_views=9)
    held.load([1], lambda: held.read_ahead([2]))
    assert (fetcher.read_now, fetcher.urgent_groups) == ([1], [])  # there is nothing to decode beside a single one
    fetcher.finish(2)
    held.load([1, 2, 3, 4, 101])
    assert fetcher.urgent_groups == [[3], [4]]
    assert [held[number] for number in (1, 2, 3, 4)] == ["block 1", "block 2", "block 3", "block 4"]
    assert (fetcher.read_now, held.is_view(101)) == ([1, 101], True)


def test_the_row_groups_of_the_first_window_are_decoded_at_the_same_time(row_groups, monkeypatch):
    """Two threads wait for each other while they decode, after the block of the first row. One alone would hang."""
    monkeypatch.setattr("midepoch.sources.fetcher.usable_cores", lambda: 2)
    meeting, read, numbers_of_reads = threading.Barrier(2), ParquetBlocks.read, count()

    def watched(self, block):
        if 1 <= next(numbers_of_reads) < 3:
            meeting.wait(timeout=60)
        return read(self, block)

    monkeypatch.setattr(ParquetBlocks, "read", watched)
    assert sorted(values(row_groups.shuffle(1, **WINDOWS))) == list(range(4000))


@pytest.fixture
def reads(monkeypatch):
    """How often each block is read, and which blocks the main thread read itself."""
    counted, by_main = Counter(), []
    read_all = BlockFetcher.read_all

    def watched(self, numbers):
        for number, block in read_all(self, numbers):
            counted[number] += 1
            if threading.current_thread() is threading.main_thread():
                by_main.append(number)
            yield number, block

    monkeypatch.setattr(BlockFetcher, "read_all", watched)
    return counted, by_main


@pytest.mark.parametrize("step", [1, 8, 50, 8192])
@pytest.mark.parametrize("size", [1, 3, 8, 11, 64, 1000])
@pytest.mark.parametrize("form", ["python", "numpy", "torch", "arrow"])
def test_every_row_group_is_read_once_and_all_but_the_first_ahead(tmp_path, monkeypatch, reads, step, size, form):
    monkeypatch.setattr(lane, "STEP_ROWS", step)
    monkeypatch.setattr(lane, "RUN_ROWS", min(step, lane.RUN_ROWS))
    for file in range(3):
        write_numbers(tmp_path / f"{file}.parquet", 90 * file, 90 * file + 90, "parquet", rows=8)
    dataset = me.read(tmp_path).with_format(form).batch(size)
    assert [int(x) if form != "arrow" else x.as_py() for batch in dataset for x in batch["x"]] == list(range(270))
    counted, by_main = reads
    assert counted == dict.fromkeys(range(36), 1)
    assert by_main == [0]


def test_row_groups_without_rows_are_skipped(tmp_path):
    groups = [numbers(0, 0), numbers(0, 5), numbers(0, 0), numbers(0, 0), numbers(5, 9), numbers(0, 0), numbers(9, 20)]
    write(tmp_path / "a.parquet", groups, "parquet")
    write(tmp_path / "b.parquet", [numbers(20, 24), numbers(0, 0)], "parquet")
    assert values(me.read(tmp_path)) == list(range(24))
    assert values(me.read(tmp_path).skip(4)) == list(range(4, 24))
    assert sorted(values(me.read(tmp_path).shuffle(seed=1, window=6))) == list(range(24))


@pytest.mark.parametrize("order", [{}, {"level": "block", "window": 30}, {"level": "row"}])
@pytest.mark.parametrize("form", ["python", "numpy", "arrow"])
def test_columns_of_a_block_may_come_in_chunks_of_any_length(tmp_path, monkeypatch, order, form):
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
    read, chunked = ParquetBlocks.read, set()

    def in_chunks(self, block):
        table = read(self, block)
        chunked.add(block.number)
        cuts = {"x": [0, 9, 20], "s": [0, 1, 9, 13, 20]}
        columns = {
            name: pa.chunked_array([table[name].chunk(0)[a:b] for a, b in pairwise(ends)])
            for name, ends in cuts.items()
        }
        return pa.table(columns, schema=table.schema)

    monkeypatch.setattr(ParquetBlocks, "read", in_chunks)
    assert batches() == whole
    assert chunked == set(range(5))


def test_runs_of_rows_are_requested_in_the_order_of_their_files_once_more_are_missing_than_on_their_way():
    fetcher = FakeFetcher(is_remote=True, group_blocks=100, has_runs=True)
    held = HeldBlocks(fetcher, 4)
    held.read_ahead([7, 3, 8, 4])
    assert fetcher.groups == [[3, 4], [7, 8]]
    held.read_ahead([7, 3, 8, 4, 6, 1, 5])
    assert len(fetcher.groups) == 2  # three are missing, four on their way
    assert fetcher.room == 96
    held.read_ahead([7, 3, 8, 4, 6, 1, 5, 2])
    assert fetcher.groups[2:] == [[1, 2], [5, 6]]
    fetcher.finish(1, 2, 3, 4, 5, 6, 7, 8)
    held.load([3, 7])
    assert held[3] == "block 3"
    assert fetcher.read_now == []


def test_runs_of_rows_are_requested_when_none_is_on_its_way():
    fetcher = FakeFetcher(is_remote=True, room=2, has_runs=True)
    held = HeldBlocks(fetcher, 4)
    held.read_ahead([9, 2, 5, 6])
    assert fetcher.groups == [[2], [9]]
    fetcher.finish(2, 9)
    held.load([2, 9])
    held.read_ahead([6, 5])
    assert fetcher.groups[2:] == [[5], [6]]


@pytest.fixture
def decoded(monkeypatch):
    """How often each row group is decoded, by file and number."""
    counted, read = Counter(), ParquetBlocks.read
    monkeypatch.setattr(
        ParquetBlocks, "read", lambda self, block: (counted.update([(self._path, block.number)]), read(self, block))[1]
    )
    return counted


@pytest.fixture
def row_groups(tmp_path):
    """A dataset of 40 row groups of 100 rows in 4 files, which is read in steps of 16 rows."""
    for file in range(4):
        write_numbers(tmp_path / f"{file}.parquet", 1000 * file, 1000 * file + 1000, "parquet", rows=100)
    return me.read(tmp_path)


@pytest.fixture
def small_steps(monkeypatch):
    for name in ("STEP_ROWS", "WINDOW_STEP_ROWS", "RUN_ROWS"):
        monkeypatch.setattr(lane, name, 16)


WINDOWS = {"window": 50, "window_blocks": 8}


def test_every_row_group_of_a_window_is_decoded_once(row_groups, small_steps, decoded):
    assert sorted(values(row_groups.shuffle(1, **WINDOWS))) == list(range(4000))
    assert set(decoded.values()) == {1}
    assert len(decoded) == 40


@pytest.mark.parametrize("taken", [1, 5, 799, 800, 801, 2345])
def test_after_a_resume_every_row_group_that_is_left_is_decoded_once(row_groups, small_steps, decoded, taken):
    whole = values(row_groups.shuffle(1, **WINDOWS))
    iterator = iter(row_groups.shuffle(1, **WINDOWS))
    for _ in range(taken):
        next(iterator)
    resumed = row_groups.shuffle(1, **WINDOWS)
    resumed.load_state_dict(iterator.state_dict())
    del iterator  # its thread decodes nothing more
    decoded.clear()
    assert values(resumed) == whole[taken:]
    assert set(decoded.values()) == {1}


@pytest.mark.parametrize("batch", [1, 7, 30])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("fitting", [3, 8, 1000])
def test_readers_that_share_a_lane_decode_every_row_group_once_each(
    row_groups, small_steps, decoded, ranks, batch, fitting
):
    found = []
    window_bytes = fitting * int(row_groups.file_rows("test").index.view.block_lengths.max())
    for rank in range(ranks):
        decoded.clear()
        shared = row_groups.shuffle(1, **WINDOWS, window_bytes=window_bytes).lanes(1).batch(batch).shard(ranks, rank)
        found += [x for item in shared for x in item["x"]]
        assert set(decoded.values()) == {1}
    assert sorted(found) == list(range(4000))


STEPS = {
    "take": lambda ds: ds.take(3333).shuffle(1, **WINDOWS),
    "skip": lambda ds: ds.shuffle(1, **WINDOWS).skip(777),
    "test half": lambda ds: ds.train_test_split(0.1).test.shuffle(1, **WINDOWS),
    "files first": lambda ds: ds.shuffle(2, level="file").shuffle(1, **WINDOWS),
    "by file": lambda ds: ds.shuffle(1, **WINDOWS).shard(1, 0, mode="file"),
    "bytes bind": lambda ds: ds.shuffle(1, window=50, window_blocks=8, window_bytes=2000),
    "one block": lambda ds: ds.shuffle(1, window=50, window_blocks=8, window_bytes=1),
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_row_groups_are_decoded_once_whatever_is_selected(row_groups, small_steps, decoded, steps):
    found = values(steps(row_groups))
    assert len(found) == len(set(found)) == len(steps(row_groups))
    assert set(decoded.values()) == {1}


def test_row_groups_are_decoded_once_where_a_filter_leaves_some_out(tmp_path, row_groups, small_steps, decoded):
    filtered = me.read(tmp_path, filters=[("x", ">=", 1550)]).shuffle(1, **WINDOWS)
    assert sorted(values(filtered)) == list(range(1550, 4000))
    assert len(decoded) == 25
    assert set(decoded.values()) == {1}


def test_lanes_that_are_in_the_same_window_share_its_row_groups(row_groups, small_steps, decoded):
    wide = {"window": 50, "window_blocks": 40}
    assert sorted(values(row_groups.shuffle(1, **wide).lanes(8))) == list(range(4000))
    assert set(decoded.values()) == {1}


def test_a_lane_holds_one_window_and_reads_ahead_what_fits_beside_it_or_one_block(row_groups, small_steps, monkeypatch):
    monkeypatch.setattr(lane, "WINDOW_STEP_ROWS", 128)  # so that the first step of a window needs all its blocks
    lengths = row_groups.file_rows("test").index.view.block_lengths
    held, load = [], HeldBlocks.load

    def watched(self, *arguments):
        load(self, *arguments)
        held.append([*self._decoded, *self._pending])

    monkeypatch.setattr(HeldBlocks, "load", watched)
    for fitting in (1, 3, 8, 9, 16):
        held.clear()
        window_bytes = fitting * int(lengths.max())
        values(row_groups.shuffle(1, **WINDOWS, window_bytes=window_bytes))
        assert max(lengths[blocks].sum() for blocks in held) <= window_bytes + lengths.max()
    assert max(map(len, held)) > 12


@pytest.mark.parametrize("kind", ["parquet", "stream", "orc"])
@pytest.mark.parametrize("lanes", [1, 4])
def test_a_batch_comes_from_16_blocks_of_real_files(tmp_path, kind, lanes):
    """Blocks are smaller than 256 rows, so those of Arrow count as virtual ones, 4 to one."""
    rows, count = (200, 160) if kind != "orc" else (1024, 40)
    table = pa.table({"id": range(rows * count)})
    path = tmp_path / f"a{SUFFIXES[kind]}"
    write_table(path, table, kind, rows)
    index = me.read(path).file_rows("test").index.view
    dataset = me.read(path).shuffle(1).lanes(lanes).with_format("numpy").batch(512)
    for batch in dataset:
        owners = index.block_starts.searchsorted(batch["id"], "right")
        assert len(set(owners.tolist())) >= min(16, len(index.block_rows)) or len(owners) < 512


class Windows:
    """An order of one window of 800 rows, shuffled, and then windows of 4 rows."""

    size = 880

    def rows(self, positions):
        return np.where(positions < 800, positions * 307 % 800, positions)

    def piece_starts(self, level):
        return np.array([0, *range(800, 881, 4)])


def test_the_rest_of_a_window_is_not_read_together_with_windows_that_follow(tmp_path, decoded):
    sizes = [0, *range(100, 801, 100), *range(802, 881, 2)]
    path = write(tmp_path / "a.parquet", [numbers(begin, end) for begin, end in pairwise(sizes)], "parquet")
    index = open_index(path)
    fetcher = BlockFetcher(index, index.schema(None))
    rows = lane.LaneRows(fetcher, Windows(), lane.ReadSizes(60, 8, 4), int(index.view.block_lengths[:8].sum()))
    found = [row["x"] for run in rows.runs(0, 880) for row in run.rows.items()]
    fetcher.close()
    assert found == Windows().rows(np.arange(880)).tolist()
    assert set(decoded.values()) == {1}
