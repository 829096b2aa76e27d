"""Blocks are read correctly on demand and ahead, by few open files, within the memory that was allowed."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Timer

import fsspec
import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from files import numbers, write, write_numbers
from forking import in_a_forked_process
from midepoch.errors import DataChangedError, DataFormatError
from midepoch.index.build import open_index
from midepoch.order.orders import Sequential
from midepoch.order.windows import virtual_counts, virtual_starts
from midepoch.sources import fetcher as module
from midepoch.sources.cached_blocks import CachedBlocks
from midepoch.sources.fetcher import GROUP_RUNS, GROUPS_AHEAD, BlockFetcher
from midepoch.sources.lane import LaneRows, ReadSizes
from midepoch.sources.virtual import VirtualBlocks
from midepoch.storage.cache import BlockCache
from midepoch.storage.options import Fetch
from midepoch.storage.ranges import GROUP_BLOCKS, GROUP_BYTES, grouped
from objects import find, parquet_bytes, put


@pytest.fixture
def index(tmp_path):
    """Files of ten rows in blocks of four: numbers 0 to 49."""
    for file in range(5):
        kind = ("parquet", "stream")[file % 2]
        suffix = {"parquet": "parquet", "stream": "arrow"}[kind]
        write_numbers(tmp_path / f"{file}.{suffix}", 10 * file, 10 * file + 10, kind, rows=4)
    return open_index(tmp_path)


def rows_of(block):
    return block.data.to_pydict()["x"]


def test_blocks_are_read_by_their_number_and_views_are_those_of_mapped_files(index):
    fetcher = BlockFetcher(index, index.schema(None))
    assert [rows_of(fetcher.read(number)) for number in (3, 0, 14)] == [[10, 11, 12, 13], [0, 1, 2, 3], [48, 49]]
    assert [fetcher.read(number).is_view for number in (0, 3)] == [False, True]
    assert [fetcher.is_mapped(number) for number in (0, 3)] == [False, True]
    assert not fetcher.all_mapped
    fetcher.close()


def test_blocks_read_ahead_equal_blocks_read_at_once(index):
    fetcher = BlockFetcher(index, index.schema(None))
    pending = fetcher.read_ahead([6, 7, 8])
    assert {number: rows_of(future.result(100)) for number, future in pending.items()} == {
        number: rows_of(fetcher.read(number)) for number in (6, 7, 8)
    }
    fetcher.close()


def test_an_error_of_a_background_thread_reaches_whoever_waits(index, monkeypatch):
    fetcher = BlockFetcher(index, index.schema(None))

    def broken(self, numbers):
        yield from self._read_local(list(numbers)[:1])
        raise OSError("disk gone")

    monkeypatch.setattr(BlockFetcher, "read_all", broken)
    pending = fetcher.read_ahead([0, 1, 2])
    assert rows_of(pending[0].result(100)) == [0, 1, 2, 3]
    for number in (1, 2):
        with pytest.raises(OSError, match="disk gone"):
            pending[number].result(100)
    fetcher.close()


def test_a_block_that_was_requested_and_not_read_is_an_error_and_nobody_hangs(index, monkeypatch):
    fetcher = BlockFetcher(index, index.schema(None))
    monkeypatch.setattr(BlockFetcher, "read_all", lambda self, numbers: self._read_local(list(numbers)[:1]))
    pending = fetcher.read_ahead([0, 1, 2])
    assert rows_of(pending[0].result(100)) == [0, 1, 2, 3]
    for number in (1, 2):
        with pytest.raises(RuntimeError, match=r"blocks \[1, 2\] were requested and not read"):
            pending[number].result(100)
    fetcher.close()


def test_no_more_files_are_open_than_allowed(index, monkeypatch):
    monkeypatch.setattr(module, "MAX_OPEN_FILES", 2)
    fetcher = BlockFetcher(index, index.schema(None))
    for number in (*range(15), 0, 14, 7):
        first = 10 * (number // 3) + 4 * (number % 3)
        assert rows_of(fetcher.read(number)) == list(range(first, min(first + 4, 10 * (number // 3) + 10)))
        assert len(fetcher._open_files) <= 2
    fetcher.close()


def test_a_block_of_one_chunk_is_a_record_batch(index):
    fetcher = BlockFetcher(index, index.schema(None))
    assert all(isinstance(fetcher.read(number).data, pa.RecordBatch) for number in range(15))
    fetcher.close()


@pytest.fixture
def remote_index(tmp_path):
    """A Parquet file in a store: four blocks of equal length."""
    path = write(tmp_path / "a.parquet", [numbers(0, 100)] * 4, "parquet", compression="none", use_dictionary=False)
    fsspec.filesystem("memory").pipe_file("/fetcher/a.parquet", path.read_bytes())
    yield open_index("memory://fetcher/a.parquet")
    fsspec.filesystem("memory").rm("/fetcher", recursive=True)


def test_memory_for_reading_ahead_is_limited_but_one_block_always_fits(remote_index):
    schema, length = remote_index.schema(None), int(remote_index.view.block_lengths[0])
    fetcher = BlockFetcher(remote_index, schema, Fetch(read_ahead=2 * length))
    assert [fetcher.reserve(number) for number in range(3)] == [True, True, False]
    fetcher.release(0)
    assert fetcher.reserve(2)
    small = BlockFetcher(remote_index, schema, Fetch(read_ahead=1))
    assert [small.reserve(number) for number in range(2)] == [True, False]
    assert not BlockFetcher(remote_index, schema, Fetch(read_ahead=0)).reserve(0)


@pytest.mark.parametrize(("cores", "workers", "threads"), [(16, 1, 12), (16, 4, 5), (16, 14, 2), (2, 8, 2), (1, 2, 1)])
def test_workers_share_the_cores_that_decode(tmp_path, monkeypatch, cores, workers, threads):
    monkeypatch.setattr(module, "usable_cores", lambda: cores)
    monkeypatch.setattr(module, "torch_worker", lambda: (workers - 1, workers))
    write_numbers(tmp_path / "a.parquet", 0, 40, "parquet")
    index = open_index(tmp_path)
    fetcher = BlockFetcher(index, index.schema(None))
    assert fetcher.decode_threads == threads
    assert fetcher.bytes_ahead == (threads - 1) * module.BYTES_OF_A_THREAD


@pytest.mark.parametrize(
    ("kind", "cores", "threads"), [("parquet", 2, 3), ("parquet", 1, 1), ("parquet", 64, 12), ("jsonl", 2, 1)]
)
def test_threads_decode_blocks_side_by_side_where_the_format_allows_it(tmp_path, monkeypatch, kind, cores, threads):
    monkeypatch.setattr(module, "usable_cores", lambda: cores)
    write_numbers(tmp_path / f"a.{kind}", 0, 40, kind)
    index = open_index(tmp_path)
    fetcher = BlockFetcher(index, index.schema(None), lanes=2)
    assert fetcher.bytes_ahead == (threads - 1) * module.BYTES_OF_A_THREAD // 2
    assert rows_of(fetcher.read_ahead([0])[0].result()) == rows_of(fetcher.read(0))
    assert fetcher._thread_pools[False]._max_workers == threads
    fetcher.close()


@pytest.fixture
def small_groups(tmp_path, monkeypatch):
    """Two files of ten row groups, of which a thread decodes up to three one after the other."""
    for number in range(2):
        write_numbers(tmp_path / f"{number}.parquet", 100 * number, 100 * number + 100, "parquet", rows=10)
    index = open_index(tmp_path)
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    monkeypatch.setattr(module, "DECODED_TOGETHER", 3 * int(index.view.block_lengths.max()))
    return index


def test_a_thread_decodes_small_row_groups_of_a_file_one_after_the_other(small_groups, monkeypatch):
    fetcher = BlockFetcher(small_groups, small_groups.schema(None))
    assert grouped(range(20), fetcher.joins) == [
        *([first, first + 1, first + 2] for first in (0, 3, 6)),
        [9],
        *([first, first + 1, first + 2] for first in (10, 13, 16)),
        [19],
    ]
    assert grouped([0, 2, 1, 3], fetcher.joins) == [[0], [2], [1], [3]]
    monkeypatch.setattr(module, "usable_cores", lambda: 1)  # nothing is decoded ahead that could be shared
    assert not BlockFetcher(small_groups, small_groups.schema(None)).joins([0], 1)


def test_row_groups_before_one_that_cannot_be_decoded_are_delivered(small_groups, monkeypatch):
    fetcher = BlockFetcher(small_groups, small_groups.schema(None))
    reader = fetcher._reader(0)
    read = reader.read

    def broken(block):
        if block.number == 1:
            raise DataFormatError("it is damaged")
        return read(block)

    monkeypatch.setattr(reader, "read", broken)
    pending = fetcher.read_ahead([0, 1, 2])
    assert rows_of(pending[0].result(100)) == list(range(10))
    with pytest.raises(DataFormatError, match="it is damaged"):
        pending[1].result(100)
    fetcher.close()


def test_no_row_group_is_delivered_if_the_file_changed_while_those_after_it_were_decoded(small_groups, monkeypatch):
    fetcher = BlockFetcher(small_groups, small_groups.schema(None))
    reader = fetcher._reader(0)
    read = reader.read

    def changing(block):
        if block.number == 2:
            os.utime(small_groups.view.path(0), ns=(0, 0))
        return read(block)

    monkeypatch.setattr(reader, "read", changing)
    pending = fetcher.read_ahead([0, 1, 2])
    for number in range(3):
        with pytest.raises(DataChangedError):
            pending[number].result(100)
    fetcher.close()


@pytest.mark.parametrize(("step", "most"), [(4, 6), (12, 6), (40, 10)])
def test_row_groups_are_decoded_ahead_within_their_bytes_but_at_least_those_of_the_next_step(
    tmp_path, monkeypatch, step, most
):
    write_numbers(tmp_path / "a.parquet", 0, 400, "parquet", rows=4)
    index = open_index(tmp_path)
    lengths = index.view.block_lengths
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    monkeypatch.setattr(module, "BYTES_OF_A_THREAD", 3 * int(lengths.max()))
    fetcher, late = BlockFetcher(index, index.schema(None)), []
    rows = LaneRows(fetcher, Sequential(index.view.file_starts, index.view.block_starts), ReadSizes(step, 4, 4))
    read, read_ahead = fetcher.read, fetcher.read_ahead
    monkeypatch.setattr(fetcher, "read", lambda number: (late.append(number), read(number))[1])
    monkeypatch.setattr(
        fetcher, "read_ahead", lambda group, urgent=False: (late.extend(group * urgent), read_ahead(group))[1]
    )
    got, ahead = [], []
    for run in rows.runs(0, 400):
        got += [row["x"] for row in run.rows.items()]
        ahead.append(len(rows._held._pending))
    fetcher.close()
    assert got == list(range(400))
    assert max(ahead) == most
    assert late == [0]


def test_local_blocks_are_always_allowed(index):
    fetcher = BlockFetcher(index, index.schema(None), Fetch(read_ahead=0))
    assert all(fetcher.reserve(number) for number in range(15))


def test_close_does_nothing_while_the_interpreter_ends_and_has_cleared_its_modules(index, monkeypatch):
    fetcher = BlockFetcher(index, index.schema(None))
    monkeypatch.setattr(module, "sys", None)
    fetcher.close()
    fetcher.close(lambda: True)


def files_of(url, read_ahead, columns=None, lanes=1):
    index = open_index(find(url))
    return BlockFetcher(index, index.schema(columns), Fetch(read_ahead=read_ahead), lanes)


@pytest.fixture
def url():
    table = pa.table({"id": range(4000), "x": [float(number) for number in range(4000)]})
    for number in range(2):
        put(f"/joining/p-{number}.parquet", parquet_bytes(table, 100, compression="none", use_dictionary=False))
    yield "memory://joining"
    fsspec.filesystem("memory").rm("/joining", recursive=True)


def test_blocks_join_those_before_them_in_their_file_up_to_a_part_of_what_is_read_ahead(url):
    files = files_of(url, GROUP_BYTES * GROUPS_AHEAD)
    assert [len(one) for one in grouped(range(80), files.joins)] == [GROUP_BLOCKS, 8, GROUP_BLOCKS, 8]
    assert grouped([3, 4, 6, 5, 39, 40], files.joins) == [[3, 4], [6], [5], [39], [40]]
    assert not files.joins([79], 80)
    length = int(files.view.block_lengths[0])
    for blocks in (1, 3, 4):
        for spare, expected in ((0, blocks), (-1, max(1, blocks - 1))):
            few = files_of(url, GROUPS_AHEAD * (blocks * length + spare))
            assert len(grouped(range(40), few.joins)[0]) == expected
            assert (
                len(grouped(range(40), files_of(url, 2 * GROUPS_AHEAD * blocks * length, lanes=2).joins)[0]) == blocks
            )
    assert len(grouped(range(40), files_of(url, 0).joins)) == 40
    # The bytes of some columns do not lie side by side.
    assert len(grouped(range(40), files_of(url, GROUP_BYTES, ["id"]).joins)) == 40


def test_pending_blocks_are_cancelled_when_the_threads_end(url):
    files, go_on = files_of(url, GROUP_BYTES), Event()
    pool = files._thread_pools[False] = ThreadPoolExecutor(1)
    pool.submit(go_on.wait)
    promises = files.read_ahead([0, 1])
    Timer(0.05, go_on.set).start()
    files.close()
    assert all(promise.cancelled() for promise in promises.values())


def test_a_cancelled_block_is_not_read_and_the_rest_of_its_group_is(url):
    files, go_on = files_of(url, GROUP_BYTES), Event()
    pool = files._thread_pools[False] = ThreadPoolExecutor(1)
    pool.submit(go_on.wait)
    promises = files.read_ahead([0, 1, 2])
    assert promises[1].cancel()
    go_on.set()
    assert promises[0].result(100)[0]["id"].to_pylist() == list(range(100))
    assert promises[2].result(100)[0]["id"].to_pylist() == list(range(200, 300))
    assert promises[1].cancelled()
    files.close()


def test_a_forked_process_neither_reads_nor_waits_for_the_threads_of_its_parent(index):
    fetcher = BlockFetcher(index, index.schema(None))
    fetcher.read_ahead([0])[0].result(100)
    (pool,) = fetcher._thread_pools.values()

    def close_and_check():
        fetcher.close()
        fetcher.check([0])

    with pool._shutdown_lock:  # as a thread holds it that requests blocks
        answer = in_a_forked_process(close_and_check)
    assert "StaleIteratorError: This iterator was started in process" in answer
    fetcher.check([0])
    fetcher.close()


def test_a_block_is_not_returned_if_its_file_changed_while_it_was_read(index, monkeypatch):
    fetcher = BlockFetcher(index, index.schema(None))
    path = index.view.path(0)
    reader = fetcher._reader(0)
    read = reader.read

    def change_and_read(block):
        os.utime(path, ns=(0, 0))
        return read(block)

    monkeypatch.setattr(reader, "read", change_and_read)
    with pytest.raises(DataChangedError, match=r"0\.parquet was changed while it was in use"):
        fetcher.read(0)
    fetcher.close()


def test_a_file_that_looks_broken_because_it_changed_is_reported_as_changed(index, monkeypatch):
    fetcher = BlockFetcher(index, index.schema(None))
    fetcher._reader(0)
    os.truncate(index.view.path(0), 10)
    with pytest.raises(DataChangedError, match=r"0\.parquet was changed while it was in use"):
        fetcher.read(0)
    fetcher.close()


def test_blocks_of_the_same_files_share_a_check(index):
    fetcher = BlockFetcher(index, index.schema(None))
    check = fetcher.file_check([0, 1])
    assert fetcher.file_check([2]) is check
    assert fetcher.file_check([2, 3]) is not check
    os.utime(index.view.path(0), ns=(0, 0))
    with pytest.raises(DataChangedError):
        check()
    fetcher.close()


@pytest.fixture
def by_rows(tmp_path, monkeypatch):
    """Makes fetchers of two Arrow objects with two record batches of 10,000 rows each, and a Parquet file.

    Runs have at most 128 rows.
    """
    monkeypatch.setattr("midepoch.order.windows.VIRTUAL_ROWS", 128)
    rows = np.arange(20_000)
    table = pa.table({"id": rows, "x": rows * 0.5, "text": [str(row).zfill(50) for row in rows]})
    for number in range(2):
        path = write(tmp_path / "a.arrow", table.to_batches(max_chunksize=10_000), "file")
        put(f"/rows/{number}.arrow", path.read_bytes())
    put("/rows/2.parquet", parquet_bytes(table, 5000, compression="none", use_dictionary=False))

    def make(read_ahead=GROUP_BYTES * GROUPS_AHEAD, columns=None, cache=None):
        index = open_index(find("memory://rows"))
        view = index.view
        blocks = VirtualBlocks(view, virtual_starts(view.blocks, virtual_counts(view.blocks)))
        fetch = Fetch(read_ahead=read_ahead, cache=cache)
        return BlockFetcher(index, index.schema(columns), fetch, blocks=blocks)

    yield make
    fsspec.filesystem("memory").rm("/rows", recursive=True)


def test_runs_of_rows_are_read_by_their_number(by_rows):
    fetcher = by_rows()
    assert len(fetcher.blocks.block_starts) == 4 * 79 + 4 + 1
    for number in (0, 1, 78, 79, 157, 158, 315, 316, 319):
        first, end = fetcher.blocks.block_starts[number : number + 2].tolist()
        read = fetcher.read(number).data
        assert read["id"].to_pylist() == [row % 20_000 for row in range(first, end)]
        assert read["text"].to_pylist() == [str(row % 20_000).zfill(50) for row in range(first, end)]
    several = dict(fetcher.read_all([5, 3, 100]))
    assert {number: block.data["id"][0].as_py() for number, block in several.items()} == {
        number: int(fetcher.blocks.block_starts[number]) for number in (3, 5, 100)
    }
    fetcher.close()


def test_memory_is_reserved_for_the_rows_of_a_run_not_for_its_record_batch(by_rows):
    length = int(by_rows().blocks.block_lengths[:4].max())
    assert length < by_rows().view.block_lengths[0] // 75
    fetcher = by_rows(read_ahead=3 * length)
    assert [fetcher.reserve(number) for number in range(4)] == [True, True, True, False]
    fetcher.release(1)
    assert fetcher.reserve(3)


def test_runs_of_one_file_are_fetched_together_in_any_order_and_do_not_wait_for_others(by_rows):
    fetcher = by_rows()
    assert grouped([3, 70, 5, 157, 158, 200, 315, 316, 317, 319], fetcher.joins) == [
        [3, 70, 5, 157],
        [158, 200, 315],
        [316, 317],
        [319],
    ]
    assert [len(group) for group in grouped(range(79), fetcher.joins)] == [*[GROUP_RUNS] * (79 // GROUP_RUNS), 15]
    assert not fetcher.can_grow([3, 70])
    assert fetcher.can_grow([316, 317])
    length = int(fetcher.blocks.block_lengths[:16].max())
    assert len(grouped(range(16), by_rows(read_ahead=GROUPS_AHEAD * 4 * length).joins)) == 4


def test_the_cache_knows_runs_of_one_record_batch_apart(by_rows, tmp_path, monkeypatch):
    cache = BlockCache(tmp_path / "cache", 1 << 30)
    first = [fetcher_rows(by_rows(cache=cache), number) for number in (0, 1, 78, 79, 316)]
    assert [rows[0] for rows in first] == [0, 126, 9873, 10_000, 0]
    fetcher = by_rows(cache=cache)
    assert [fetcher_rows(fetcher, number)[0] for number in (0, 2)] == [0, 253]
    assert (fetcher.cache.hits, fetcher.cache.misses) == (1, 1)
    monkeypatch.setattr(BlockFetcher, "_reader", None)
    assert [fetcher_rows(by_rows(cache=cache), number) for number in (0, 1, 78, 79, 316)] == first
    # A whole record batch is another entry than its first rows.
    whole = BlockFetcher(by_rows().index, by_rows().index.schema(None), Fetch(cache=cache))
    assert whole.cache.key(*whole.blocks.block(0)) != whole.cache.key(*by_rows().blocks.block(0))


@pytest.mark.parametrize(
    "forged", [{"id": [7] * 3}, {"no": [7] * 126}, {"id": ["7"] * 126}], ids=["rows", "name", "type"]
)
def test_a_cached_block_that_does_not_fit_the_index_is_fetched(by_rows, tmp_path, forged):
    cache = BlockCache(tmp_path / "cache", 1 << 30)
    first = by_rows(cache=cache)
    expected = fetcher_rows(first, 0)
    key = first.cache.key(*first.blocks.block(0))
    cache.put(key, pa.table(forged))
    again = by_rows(cache=cache)
    assert fetcher_rows(again, 0) == expected
    assert again.cache.misses == 1
    assert cache.get(key).num_rows == 126


@pytest.mark.parametrize("kind", ["stream", "file", "parquet"])
def test_a_block_with_other_rows_than_the_index_says_is_an_error(tmp_path, kind, monkeypatch):
    write(tmp_path / "a", numbers(0, 10), kind)
    index = open_index(tmp_path / "a", index_dir=tmp_path / "index")
    monkeypatch.setattr(index.view, "block_rows", np.array([1 << 40]))
    fetcher = BlockFetcher(index, index.schema(None))
    with pytest.raises(DataChangedError, match=r"block 0 has 10 rows, and the index says 1,099.* Delete the index, "):
        fetcher.read(0)
    fetcher.close()


def fetcher_rows(fetcher, number):
    rows = fetcher.read(number).data["id"].to_pylist()
    fetcher.close()
    return rows


def test_closing_does_not_wait_for_a_store_that_does_not_answer(remote_index, monkeypatch):
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.0)
    asked, may_answer = Event(), Event()

    def stalled(*_):
        asked.set()
        may_answer.wait()

    fetcher = BlockFetcher(remote_index, remote_index.schema(None))
    monkeypatch.setattr(remote_index, "open", stalled)
    pending = fetcher.read_ahead([0])
    asked.wait()
    fetcher.close()
    assert not pending[0].done()
    may_answer.set()
    assert isinstance(pending[0].exception(), AttributeError)  # the stalled one returns no reader


@pytest.mark.parametrize(
    ("order", "most"),
    [({}, 2.5), ({"level": "file"}, 2.5), ({"window": 40, "window_blocks": 4}, 2.5)],
    ids=["in order", "files", "blocks"],
)
def test_a_cache_of_half_the_blocks_saves_half_of_the_requests_of_later_epochs(tmp_path, monkeypatch, order, most):
    """One that keeps what was used last saves next to nothing, because each epoch needs each block once."""
    for number in range(4):
        table = pa.table({"x": range(250 * number, 250 * number + 250)})
        put(f"/halves/{number}.parquet", parquet_bytes(table, 10))
    fetched, fetch = [], BlockFetcher._fetched

    def watched(self, missing):
        fetched.extend(missing)
        return fetch(self, missing)

    monkeypatch.setattr(BlockFetcher, "_fetched", watched)

    def three_epochs(name, limit):
        options = {"cache_dir": tmp_path / name, "cache_bytes": limit, "read_ahead": 0, "index_dir": tmp_path / "index"}
        dataset = me.read("memory://halves", **options)
        dataset = dataset.shuffle(1, **order) if order else dataset
        fetched.clear()
        assert [sorted(row["x"] for row in dataset) for _ in range(3)] == [list(range(1000))] * 3
        return len(fetched) / 100

    assert three_epochs("whole", "1GiB") == 1
    half = sum(path.stat().st_size for path in (tmp_path / "whole").glob("*.block")) // 2
    assert three_epochs("planned", half) < most
    monkeypatch.setattr(CachedBlocks, "_next_use", lambda self, key: None)
    assert three_epochs("last used", half) > most
