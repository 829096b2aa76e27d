"""Blocks that become much larger in memory than in their files do not fill the memory because they are read ahead."""

from concurrent.futures import Future

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from midepoch.index.build import open_index
from midepoch.order.orders import Sequential, Shuffle
from midepoch.sources import fetcher as module
from midepoch.sources import lane
from midepoch.sources.blocks import HeldBlocks
from midepoch.sources.fetcher import BlockFetcher
from midepoch.sources.growth import KEPT, OUTDATED, Growth
from midepoch.sources.lane import LaneRows, ReadSizes
from midepoch.storage.options import Fetch
from midepoch.storage.ranges import grouped

ROWS, GROUPS, TEXT = 100, 40, "abcd" * 2_500
GROWN = ROWS * len(TEXT)
"""About the bytes of a row group in memory."""


def test_growth_is_unknown_at_first_and_never_below_one():
    growth = Growth()
    assert (growth.is_known, growth.factor) == (False, 1.0)
    growth.note(100, 30)
    assert (growth.is_known, growth.factor) == (True, 1.0)
    growth.note(0, 30)
    assert growth.factor == 30
    assert (Growth(1.0).is_known, Growth(1.0).factor) == (True, 1.0)


def test_growth_rises_at_once_and_falls_slowly():
    growth = Growth()
    for _ in range(100):
        growth.note(100, 200)
    growth.note(100, 5_000)
    assert growth.factor == 50
    growth.note(100, 200)
    assert growth.factor == KEPT * 50
    for _ in range(100):
        growth.note(100, 200)
    assert growth.factor == 2


def test_a_request_is_outdated_if_blocks_grow_several_times_as_much():
    growth = Growth()
    assert not growth.outdates(1.0)
    growth.note(1, 2 * OUTDATED)
    assert not growth.outdates(2.0)
    growth.note(1, 2 * OUTDATED + 1)
    assert growth.outdates(2.0)


def write(path, grown=range(GROUPS)):
    """Row groups of numbers and texts, of which some repeat one long text."""
    schema = pa.schema({"id": pa.int64(), "text": pa.string()})
    with pq.ParquetWriter(path, schema, use_dictionary=["text"]) as file:
        for group in range(GROUPS):
            ids = range(group * ROWS, (group + 1) * ROWS)
            texts = [TEXT] * ROWS if group in grown else [f"{row:0100}" for row in ids]
            file.write_table(pa.table({"id": ids, "text": texts}, schema=schema))
    return path


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(module, "usable_cores", lambda: 2)


@pytest.fixture
def small_steps(monkeypatch):
    """A step reads the rows of one row group, or of as many as its window has."""
    monkeypatch.setattr(lane, "STEP_ROWS", ROWS)
    monkeypatch.setattr(lane, "WINDOW_STEP_ROWS", ROWS)
    monkeypatch.setattr(lane, "RUN_ROWS", ROWS)


@pytest.fixture
def held(monkeypatch, small_steps):
    """How many bytes a lane holds, is reading ahead or has read ahead, after each of its steps."""
    found, load = [], HeldBlocks.load

    def watched(self, *arguments):
        load(self, *arguments)
        wait = [pending.result() for pending in self._pending.values() if not pending.cancelled()]
        blocks = [*self._decoded.values(), *(block.data for block in wait)]
        found.append(sum(block.get_total_buffer_size() for block in blocks))

    monkeypatch.setattr(HeldBlocks, "load", watched)
    return found


def ids(dataset):
    return [row["id"] for row in dataset]


def test_row_groups_that_grow_are_decoded_ahead_as_far_as_their_bytes_in_memory_fit(tmp_path, two_cores, held):
    """All of them fit, by what the footer says: each is 10 kB there and 1 MB in memory."""
    path = write(tmp_path / "a.parquet")
    view = open_index(path).view
    assert view.block_lengths.sum() * 10 < 2 * module.BYTES_OF_A_THREAD < GROUPS * GROWN
    assert ids(me.read(path)) == list(range(GROUPS * ROWS))
    step = 2 * GROWN  # those of the step before are kept
    assert GROWN * 6 < max(held) <= 2 * module.BYTES_OF_A_THREAD + step + 2 * GROWN


def test_row_groups_that_do_not_grow_are_decoded_ahead_as_before(tmp_path, two_cores, monkeypatch):
    path = write(tmp_path / "a.parquet", grown=())
    index = open_index(path)
    lengths = index.view.block_lengths
    monkeypatch.setattr(module, "BYTES_OF_A_THREAD", 10 * int(lengths.max()))
    fetcher = BlockFetcher(index, index.schema(None))
    rows = LaneRows(fetcher, Sequential(index.view.file_starts, index.view.block_starts), ReadSizes(ROWS, ROWS, 4))
    ahead = [len(rows._held._pending) for _ in rows.runs(0, GROUPS * ROWS)]
    fetcher.close()
    assert 15 <= max(ahead) <= 20


def test_row_groups_that_grow_are_shared_by_the_threads(tmp_path, two_cores):
    index = open_index(write(tmp_path / "a.parquet"))
    fetcher = BlockFetcher(index, index.schema(None))
    assert max(map(len, grouped(range(GROUPS), fetcher.joins))) > 10
    fetcher.read(0)
    assert {len(group) for group in grouped(range(GROUPS), fetcher.joins)} == {2}, "of 8 in 16 MiB"
    fetcher.close()


def test_blocks_that_were_dropped_are_requested_again(tmp_path, two_cores):
    index = open_index(write(tmp_path / "a.parquet"))
    fetcher = BlockFetcher(index, index.schema(None))
    fetcher.threads = 1
    held = HeldBlocks(fetcher, 4)
    held.read_ahead(range(20))
    fetcher._thread_pools.pop(False).shutdown()
    assert [number for number, block in held._pending.items() if not block.cancelled()] == [0]
    held.read_ahead([0, 1, 2])
    assert [held._pending[number].result(100).data.num_rows for number in range(3)] == [ROWS] * 3
    held.load([0, 1, 2, 19])
    assert [held[number].num_rows for number in (0, 1, 2, 19)] == [ROWS] * 4
    fetcher.close()


def test_a_block_that_is_dropped_while_it_is_waited_for_is_read(tmp_path, two_cores, monkeypatch):
    index = open_index(write(tmp_path / "a.parquet"))
    fetcher = BlockFetcher(index, index.schema(None))
    held = HeldBlocks(fetcher, 4)
    held.read_ahead([0, 1])
    wait = held._take_pending

    def late(number):
        pending, dropped = wait(number), Future()
        dropped.cancel()
        return pending and dropped

    monkeypatch.setattr(held, "_take_pending", late)
    held.load([0, 1])
    assert [held[number].num_rows for number in (0, 1)] == [ROWS] * 2
    fetcher.close()


@pytest.mark.parametrize("together", [1, 10])
def test_requests_are_dropped_when_blocks_grow_more_than_was_known(tmp_path, monkeypatch, two_cores, together):
    """The first 10 row groups say nothing of those after them. One of these is enough to know."""
    index = open_index(write(tmp_path / "a.parquet", grown=range(10, GROUPS)))
    fetcher = BlockFetcher(index, index.schema(None))
    fetcher.threads = 1
    pending = {}
    for first in range(0, GROUPS, together):
        pending |= fetcher.read_ahead(range(first, first + together))
    fetcher._thread_pools[False].shutdown()
    assert [number for number, block in pending.items() if not block.cancelled()] == list(range(11))
    assert all(pending[number].result().data.num_rows == ROWS for number in range(11))
    urgent = fetcher.read_ahead([11, 12], urgent=True)
    assert [block.result(100).data.num_rows for block in urgent.values()] == [ROWS] * 2
    fetcher.close()


@pytest.mark.parametrize("order", ["in order", "windows", "lanes", "scattered"])
def test_rows_are_those_of_the_order_whatever_is_dropped(tmp_path, two_cores, small_steps, monkeypatch, order):
    path = write(tmp_path / "a.parquet", grown=[3, 4, 11, 12, 13, 14, 15, 16, *range(30, GROUPS)])
    steps = {
        "in order": lambda dataset: dataset,
        "windows": lambda dataset: dataset.shuffle(1, window=300, window_blocks=4),
        "lanes": lambda dataset: dataset.shuffle(1, window=300, window_blocks=2).lanes(4),
        "scattered": lambda dataset: dataset.take(1_000).shuffle(1, level="row"),
    }
    found = ids(steps[order](me.read(path)))
    monkeypatch.setattr(BlockFetcher, "_note_growth", lambda *_: None)
    assert found == ids(steps[order](me.read(path)))
    assert sorted(found) == list(range(len(found)))


@pytest.mark.parametrize(("fitting", "most"), [(12, 8), (2, 6), (1, 5)])
def test_of_the_next_window_no_more_is_decoded_ahead_than_fits_window_bytes(
    tmp_path, two_cores, held, monkeypatch, fitting, most
):
    """A window has 4 row groups, by their bytes in the file. What it takes in memory is part of the order."""
    monkeypatch.setattr(lane, "STEP_BYTES", 1 << 16)
    windows = {"window": 100, "window_blocks": 4, "window_bytes": fitting * GROWN * 102 // 100}
    path = write(tmp_path / "a.parquet")
    assert sorted(ids(me.read(path).shuffle(1, **windows))) == list(range(GROUPS * ROWS))
    assert round(max(held) / GROWN) == most


@pytest.fixture
def remote_index(tmp_path):
    fsspec.filesystem("memory").pipe_file("/growth/a.parquet", write(tmp_path / "a.parquet").read_bytes())
    yield open_index("memory://growth/a.parquet")
    fsspec.filesystem("memory").rm("/growth", recursive=True)


def test_memory_is_reserved_for_what_blocks_become_and_released_as_it_was_reserved(remote_index):
    lengths = remote_index.view.block_lengths
    assert lengths.max() - lengths.min() < 100
    fetcher = BlockFetcher(remote_index, remote_index.schema(None), Fetch(read_ahead=10 * int(lengths.max())))
    assert all(fetcher.reserve(number) for number in range(4))
    fetcher.growth.note(10, 25)
    assert [fetcher.reserve(number) for number in range(4, 8)] == [True, True, False, False]
    assert fetcher.reserve(0) is False
    fetcher.release(0)
    assert not fetcher.reserve(0)
    fetcher.release(1)
    assert [fetcher.reserve(1), fetcher.reserve(1)] == [True, False]
    fetcher.release(2)
    assert not fetcher.reserve(3)
    fetcher.release(1)
    assert [fetcher.reserve(3), fetcher.reserve(3)] == [True, False], "two lanes may read a block ahead"
    for number in (3, 3, 4, 5):
        fetcher.release(number)
    assert (fetcher._reserved_bytes, fetcher._reserved) == (0, {})
    fetcher.growth.note(1, 1_000)
    assert [fetcher.reserve(7), fetcher.reserve(8)] == [True, False], "one block always fits"


def test_few_blocks_are_requested_until_it_is_known_how_much_they_grow(remote_index, monkeypatch):
    fetcher = BlockFetcher(remote_index, remote_index.schema(None))
    view, requested = remote_index.view, []
    rows = LaneRows(fetcher, Sequential(view.file_starts, view.block_starts), ReadSizes(ROWS, ROWS, 4))
    monkeypatch.setattr(rows._held, "read_ahead", lambda numbers, **_: requested.append(len(list(numbers))))
    rows._read_ahead(0, GROUPS * ROWS)
    fetcher.growth.note(100, 100)
    for position in (0, 1, ROWS):
        rows._read_ahead(position, GROUPS * ROWS)
    assert requested == [module.FETCH_THREADS, GROUPS - 1, GROUPS - 2]


def test_more_blocks_are_requested_when_the_first_one_has_come(remote_index):
    fetcher, view = BlockFetcher(remote_index, remote_index.schema(None)), remote_index.view
    rows = LaneRows(fetcher, Sequential(view.file_starts, view.block_starts), ReadSizes(ROWS, ROWS, 4))
    next(rows.runs(0, GROUPS * ROWS))
    assert len(rows._held._requested[0]) in (0, module.FETCH_THREADS), "none if it comes before any are requested"
    assert len(rows._held._requested[1]) == GROUPS - 1
    fetcher.close()


def test_blocks_of_a_store_that_grow_are_fetched_ahead_as_far_as_their_bytes_in_memory_fit(remote_index, held):
    dataset = me.read("memory://growth/a.parquet", read_ahead=16 * GROWN)
    assert ids(dataset) == list(range(GROUPS * ROWS))
    assert GROWN * 8 < np.median(held) <= 18 * GROWN


def test_few_blocks_of_a_window_are_requested_until_it_is_known_how_much_they_grow(remote_index, monkeypatch):
    fetcher = BlockFetcher(remote_index, remote_index.schema(None))
    fetcher.threads, requested, view = 3, [], remote_index.view
    order = Shuffle(seed=1, level="block", window=1_000).apply(Sequential(view.file_starts, view.block_starts), 0)
    rows = LaneRows(fetcher, order, ReadSizes(ROWS, ROWS, 4), 1 << 30)
    monkeypatch.setattr(rows._held, "read_ahead", lambda numbers, **_: requested.append(len(list(numbers))))
    rows._read_ahead(0, GROUPS * ROWS)
    assert requested == [3]
