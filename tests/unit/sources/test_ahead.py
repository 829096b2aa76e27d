"""Reading ahead: the rows of the order, each block decoded once, within memory, and errors in their turn."""

import gc
import json
import os
import threading
from collections import Counter
from concurrent.futures import Future
from functools import lru_cache
from unittest.mock import patch

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from files import numbers, values, write, write_numbers
from midepoch.dataset import file_rows
from midepoch.errors import DataChangedError, DataFormatError, StaleIteratorError
from midepoch.index.build import open_index
from midepoch.order.orders import Shuffle, Slice
from midepoch.sources import ahead, blocks
from midepoch.sources.ahead import LaneRows, OpenFiles, StepSizes
from midepoch.sources.blocks import FileBlocks
from midepoch.sources.files import FileRows
from midepoch.storage import local
from midepoch.storage.block_cache import BlockCache
from midepoch.values.arrow import gather
from objects import find
from worlds import SUFFIXES

BLOCKS = [[7, 0, 3], [1, 1, 1, 20], [], [64, 64], [5]]
"""The sizes of the blocks of each file."""
ROWS = sum(map(sum, BLOCKS))
KINDS = {
    "mapped": ["stream", "file"],
    "decoded": ["parquet"],
    "mixed": ["parquet", "stream", "jsonl"],
    "compressed": ["file"],
    "lines": ["jsonl"],
}


def write_blocks(path, kind, batches, **options):
    if kind != "jsonl":
        return write(path, batches or [numbers(0, 0)], kind, **options)
    path.write_text("".join(json.dumps(row) + "\n" for batch in batches for row in batch.to_pylist()))
    return path


@pytest.fixture(scope="module")
def index_of(tmp_path_factory):
    """The index of files whose column ``x`` is the row's number in the dataset."""

    @lru_cache
    def written(kind):
        folder, start = tmp_path_factory.mktemp(kind), 0
        for number, sizes in enumerate(BLOCKS):
            batches = []
            for size in sizes:
                batches.append(numbers(start, start + size))
                start += size
            own = KINDS[kind][number % len(KINDS[kind])]
            options = {"compression": "lz4"} if kind == "compressed" else {}
            write_blocks(folder / f"{number}{SUFFIXES[own]}", own, batches, **options)
        with patch.multiple("midepoch.formats.text.records", BLOCK_RECORDS=9, PACKED_BYTES=200):
            return open_index(folder, index_dir=tmp_path_factory.mktemp("index"))

    return written


def opened_of(index, *steps, lanes=1, sizes=None):
    """What a reader holds open, the order, and how often each block is read."""
    rows = FileRows(index=index, steps=steps)
    opened, counted = rows.open(lanes), Counter()
    read = opened.blocks.read
    opened.blocks.read = lambda numbers: (counted.update(numbers), read(numbers))[1]
    opened.sizes = sizes or opened.sizes
    return opened, rows.order(1), counted


def found_in(runs):
    """The positions, keys and values of runs."""
    positions, keys, found = [], [], []
    for run in runs:
        assert len(run)
        positions += (run.cursors[:, 0] - 1).tolist()
        keys += run.keys.tolist()
        found += [row["x"] for row in run.rows.items()]
    return positions, keys, found


shuffles = st.builds(
    Shuffle,
    seed=st.integers(0, 9),
    level=st.sampled_from(["file", "block", "row"]),
    window=st.integers(1, 90),
    window_blocks=st.integers(1, 9),
    window_bytes=st.sampled_from([1, 500, 4000, 1 << 29]),
)
order_steps = st.lists(
    shuffles | st.builds(Slice, start=st.integers(0, 60), stop=st.none() | st.integers(60, 200)), max_size=2
).filter(lambda chosen: not any(isinstance(step, Shuffle) and step.level == "file" for step in chosen[1:]))
step_sizes = st.builds(
    lambda run, factor, made: StepSizes(run * factor, run, made),
    st.sampled_from([1, 3, 16, 100]),
    st.sampled_from([1, 2, 9]),
    st.sampled_from([1, 2, 12]),
)
limits = st.fixed_dictionaries(
    {
        "FIRST_ROWS": st.sampled_from([1, 5, 256]),
        "MAX_ARRAYS": st.sampled_from([1, 2, 64]),
        "BYTES_OF_A_THREAD": st.sampled_from([0, 300, 8 << 20]),
        "LEAST_HELD_BYTES": st.sampled_from([1, 64 << 20]),
        "usable_cores": st.sampled_from([lambda: 1, lambda: 3]),
    }
)


@pytest.mark.parametrize("kind", KINDS)
@given(steps=order_steps, sizes=step_sizes, limited=limits, most=st.none() | st.integers(1, 40), data=st.data())
def test_runs_hold_the_rows_of_the_order_at_the_wanted_positions(index_of, kind, steps, sizes, limited, most, data):
    """Arrays may be empty, several times in a row, at the beginning and at the end. Nothing is held afterwards."""
    with patch.multiple(ahead, **limited):
        opened, order, counted = opened_of(index_of(kind), *steps, sizes=sizes)
        wanted = list(range(order.size))
        if data.draw(st.booleans()) and wanted:
            wanted = sorted(data.draw(st.sets(st.sampled_from(wanted))))
        cuts = sorted(data.draw(st.lists(st.sampled_from([0, len(wanted)]) | st.integers(0, len(wanted)), max_size=9)))
        arrays = np.split(np.array(wanted, np.int64), cuts) if wanted or cuts else []
        lengths, runs = [], LaneRows(opened, order).runs(iter(arrays), most)
        got = found_in(run for run in runs if lengths.append(len(run)) is None)
        opened.close()
    expected = order.rows(np.array(wanted, np.int64)).tolist()
    assert got == (wanted, expected, expected)
    assert max(lengths, default=1) <= (most or sizes.run)
    assert opened._held == {}
    shuffled = [step for step in steps if isinstance(step, Shuffle) and step.level != "file"]
    if len(shuffled) <= 1 and not any(step.level == "row" for step in shuffled) and limited["LEAST_HELD_BYTES"] > 1:
        assert max(counted.values(), default=1) == 1


WINDOWS = {"window": 50, "window_blocks": 8}


@pytest.fixture
def row_groups(tmp_path):
    """A dataset of 40 row groups of 100 rows in 4 files."""
    for file in range(4):
        write_numbers(tmp_path / f"{file}.parquet", 1000 * file, 1000 * file + 1000, "parquet", rows=100)
    return me.read(tmp_path)


@pytest.fixture(params=[16, 300])
def small_steps(request, monkeypatch):
    for name in ("STEP_ROWS", "SCATTERED_ROWS", "RUN_ROWS"):
        monkeypatch.setattr(ahead, name, request.param)


@pytest.fixture
def decoded(monkeypatch):
    """How often each row group is decoded."""
    counted, read = Counter(), blocks.FileBlocks.read
    monkeypatch.setattr(
        blocks.FileBlocks, "read", lambda self, numbers: (counted.update(numbers), read(self, numbers))[1]
    )
    return counted


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("taken", [0, 801, 2345])
@pytest.mark.parametrize("order", [None, WINDOWS, {**WINDOWS, "window_bytes": 1}, {"level": "file"}])
def test_after_a_resume_every_row_group_that_is_left_is_decoded_once(row_groups, decoded, taken, order):
    build = (lambda: row_groups.take(4000)) if order is None else lambda: row_groups.shuffle(1, **order)
    whole, dataset = values(build()), build()
    iterator = iter(dataset)
    assert sorted(whole) == list(range(4000))
    for _ in range(taken):
        next(iterator)
    state = iterator.state_dict()
    del iterator  # its threads decode nothing more
    dataset.load_state_dict(state)
    decoded.clear()
    assert values(dataset) == whole[taken:]
    assert set(decoded.values()) == {1}


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    ("build", "groups"),
    [
        (lambda ds: ds.shuffle(1, window=50, window_blocks=40).lanes(8), 40),
        (lambda ds: ds.shuffle(1, **WINDOWS).skip(777), 33),
        (lambda ds: ds.shuffle(1, **WINDOWS).shard(1, 0, mode="file"), 40),
        (lambda ds: ds.shuffle(1, **WINDOWS).lanes(1).batch(7).shard(3, 1), 40),
    ],
    ids=["lanes of one window", "skip", "by file", "a shared lane"],
)
def test_row_groups_are_decoded_once_whoever_reads(row_groups, decoded, build, groups):
    list(build(row_groups))
    assert set(decoded.values()) == {1}
    assert groups <= len(decoded) <= 40


def test_blocks_that_are_not_held_are_dropped_one_by_one(tmp_path, monkeypatch):
    """A step of rows from everywhere must not have all the blocks in memory that it picks from: 40 of 1 MB here."""
    monkeypatch.setattr(ahead, "LEAST_HELD_BYTES", 1)
    groups = [pa.record_batch({"x": range(n, n + 100), "text": ["abcd" * 2500] * 100}) for n in range(0, 4000, 100)]
    index = open_index(write(tmp_path / "a.parquet", groups, "parquet"))
    opened, order, _ = opened_of(index, Shuffle(seed=1, level="row", window=1))
    allocated, read, before = [], opened.blocks.read, pa.total_allocated_bytes()
    opened.blocks.read = lambda numbers: (read(numbers), allocated.append(pa.total_allocated_bytes() - before))[0]
    (rows,) = ahead.make_rows(opened, order.rows(np.arange(300)))
    opened.close()
    assert sorted(rows["x"].to_pylist()) == sorted(order.rows(np.arange(300)).tolist())
    assert len(allocated) == 40
    assert max(allocated) < 12 << 20


def test_no_task_waits_for_another_that_may_come_after_it(row_groups, monkeypatch):
    """With one thread, a step that finds a block requested and not read would wait for ever."""
    opened, _, counted = opened_of(file_rows(row_groups, "test").index)
    opened.threads, begin = 1, threading.Event()
    opened.submit(begin.wait)
    made = opened.submit(ahead.make_rows, opened, np.arange(100))
    held = opened.hold(0)
    opened.request([held])
    begin.set()
    assert made.result(30)[0].num_rows == 100
    opened.close()
    assert counted[0] >= 1


@pytest.fixture
def plain_groups(tmp_path, monkeypatch):
    """The index of 40 row groups that have as many bytes in memory as in their file, about, and two cores."""
    monkeypatch.setattr(ahead, "usable_cores", lambda: 2)
    groups = [numbers(first, first + 1000) for first in range(0, 40_000, 1000)]
    write(tmp_path / "a.parquet", groups, "parquet", compression="none", use_dictionary=False)
    return open_index(tmp_path)


def watch(opened, runs):
    """How many bytes are held after each step, once all that was requested is there."""
    held = []
    for _ in runs:
        requested = [block for block in opened._held.values() if block.request is not None]
        ahead.wait({block.request for block in requested})
        held.append((len(requested), sum(block.nbytes for block in requested)))
        del requested
    assert opened._held == {}
    return held


@pytest.mark.parametrize(("blocks_ahead", "least", "most"), [(0, 2, 2), (1, 2, 2), (3, 4, 4), (9, 9, 10)])
def test_blocks_are_read_ahead_within_their_bytes_but_one_always_is(
    plain_groups, monkeypatch, blocks_ahead, least, most
):
    length = int(plain_groups.view.block_lengths.max())
    monkeypatch.setattr(ahead, "BYTES_OF_A_THREAD", (blocks_ahead * length + 1) // 2 + 1)
    opened, order, counted = opened_of(plain_groups, sizes=StepSizes(1000, 1000, 1))
    held = [count for count, _ in watch(opened, LaneRows(opened, order).runs(iter([np.arange(40_000)]), 1000))]
    opened.close()
    assert least <= max(held) <= most + 1  # a first step of 256 rows makes later ones lie in two blocks
    assert min(held[5:-12]) >= 2
    assert set(counted.values()) == {1}


def test_blocks_that_grow_in_memory_count_by_their_bytes_there(tmp_path, monkeypatch):
    """All of them fit, by what the footer says: each is 10 kB there and 1 MB in memory."""
    monkeypatch.setattr(ahead, "usable_cores", lambda: 2)
    groups = [pa.record_batch({"x": range(n, n + 100), "text": ["abcd" * 2500] * 100}) for n in range(0, 16_000, 100)]
    index = open_index(write(tmp_path / "a.parquet", groups, "parquet"))
    grown = 100 * 10_000
    assert index.view.block_lengths.sum() * 4 < 2 * ahead.BYTES_OF_A_THREAD < 60 * grown
    opened, order, _ = opened_of(index, sizes=StepSizes(100, 100, 1))
    held = [nbytes for _, nbytes in watch(opened, LaneRows(opened, order).runs(iter([np.arange(16_000)])))]
    opened.close()
    assert 6 * grown < max(held) <= 2 * ahead.BYTES_OF_A_THREAD + 16 * grown


def breaking(opened, broken, error=DataFormatError, file=0, times=1 << 30):
    """Let a reader fail, so many times, at a block of a file."""
    reader = opened.blocks._reader(file)
    read, left = reader.read, [times]

    def failing(block):
        if block.number == broken and left[0]:
            left[0] -= 1
            raise error(f"{opened.view.path(file)} is damaged")
        return read(block)

    reader.read = failing


def test_row_groups_before_a_damaged_one_are_delivered_and_the_error_names_the_file(row_groups):
    index = file_rows(row_groups, "test").index
    opened, order, counted = opened_of(index, sizes=StepSizes(300, 100, 9))
    breaking(opened, 6)
    got = []
    with pytest.raises(DataFormatError, match=r"0\.parquet is damaged"):
        got.extend(key for run in LaneRows(opened, order).runs(iter([np.arange(4000)])) for key in run.keys.tolist())
    opened.close()
    assert got == list(range(356)), "those of the steps before: 100 rows of the first row group, and 256"
    gc.collect()  # an error that a thread raised refers to itself
    assert opened._held == {}
    assert max(counted.values()) <= 3, "in a group, and by each of two steps that are made side by side"


def test_a_group_that_failed_once_is_read_block_by_block(row_groups):
    opened, order, counted = opened_of(file_rows(row_groups, "test").index, sizes=StepSizes(300, 30, 9))
    breaking(opened, 6, times=1)
    assert found_in(LaneRows(opened, order).runs(iter([np.arange(4000)])))[2] == list(range(4000))
    opened.close()
    assert max(counted.values()) <= 3, "once in the group, and once by each of two threads at the same moment"


@pytest.mark.parametrize("kind", ["stream", "parquet"])
@pytest.mark.parametrize("level", ["file", "row"])
def test_nothing_is_delivered_of_a_file_that_changed_while_it_was_read_or_copied(tmp_path, monkeypatch, kind, level):
    path = write_numbers(tmp_path / f"a{SUFFIXES[kind]}", 0, 400, kind, rows=40)
    opened, order, _ = opened_of(open_index(path), Shuffle(seed=1, level=level, window=1))
    if kind == "parquet":  # it looks broken to who reads it
        breaking(opened, 3, lambda message: os.utime(path, ns=(0, 0)) or DataFormatError(message))
        with pytest.raises(DataChangedError):
            opened.blocks.read([3])
    else:
        copy = ahead._gathered
        monkeypatch.setattr(ahead, "_gathered", lambda *of: (os.utime(path, ns=(0, 0)), copy(*of))[1])
    with pytest.raises(DataChangedError, match="was changed while it was in use"):
        next(LaneRows(opened, order).runs(iter([np.arange(400)])))
    opened.close()


def remote_index(name, groups=4):
    fsspec.filesystem("memory").pipe_file(f"/{name}/a.parquet", parquet_of(groups))
    return open_index(find(f"memory://{name}"))


def parquet_of(groups):
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.table({"x": range(100 * groups)}), sink, row_group_size=100, compression="none")
    return sink.getvalue().to_pybytes()


def test_closing_does_not_wait_for_a_store_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(ahead, "CLOSE_SECONDS", 0.0)
    index, asked, may_answer = remote_index("stalled"), threading.Event(), threading.Event()
    monkeypatch.setattr(index, "open", lambda *_: (asked.set(), may_answer.wait())[1])
    opened = OpenFiles(index, index.schema(None), 1)
    held = opened.hold(0)
    opened.request([held])
    asked.wait()
    opened.close()
    request = held.request
    assert not request.done()
    may_answer.set()
    assert isinstance(request.exception(30), AttributeError)  # the stalled one returns no reader


def test_a_block_that_is_fetched_at_once_is_known_by_its_bytes_in_memory(monkeypatch):
    index = remote_index("at-once")
    opened = OpenFiles(index, index.schema(None), 1)

    def submit(make, *arguments, fetches):
        done = Future()
        done.set_result(make(*arguments))
        return done

    monkeypatch.setattr(opened, "submit", submit)
    monkeypatch.setattr(opened, "expected_bytes", lambda _: 1)
    held = opened.hold(0)
    opened.request([held])
    assert held.is_done
    assert held.nbytes == held.data.get_total_buffer_size() > 1
    opened.close()


@pytest.mark.parametrize("forged", [{"x": range(7)}, {"x": range(3), "y": range(3)}, {"y": range(3)}])
def test_a_cached_block_that_does_not_fit_the_index_is_fetched(tmp_path, forged):
    index, cache = remote_index("forged"), BlockCache(tmp_path, 1 << 30)
    first, again = (FileBlocks(index, index.schema(None), cache) for _ in range(2))
    expected = first.read([0])[0]
    cache.put(first._key(*index.view.block(0)), pa.table(forged))
    assert again.read([0])[0].equals(expected)
    assert (again.counts.cache_hits, again.counts.cache_misses) == (0, 1)


@pytest.mark.parametrize("kind", ["stream", "parquet"])
def test_a_block_with_other_rows_than_the_index_says_is_an_error(tmp_path, monkeypatch, kind):
    index = open_index(write(tmp_path / "a", numbers(0, 10), kind), index_dir=tmp_path / "index")
    monkeypatch.setattr(index.view, "block_rows", np.array([1 << 40]))
    opened = OpenFiles(index, index.schema(None), 1)
    with pytest.raises(DataChangedError, match=r"block 0 has 10 rows, and the index says 1,099.* Delete the index, "):
        opened.data(0)


def test_what_was_closed_raises_and_does_not_wait(row_groups):
    opened, _, _ = opened_of(file_rows(row_groups, "test").index)
    opened.threads, go_on = 1, threading.Event()
    opened.submit(go_on.wait)
    held = opened.hold(0)
    opened.request([held])
    threading.Timer(0.05, go_on.set).start()
    opened.close()
    with pytest.raises(StaleIteratorError, match="was closed"):
        opened.data(0)


OVERFLOWS = [
    pa.ArrowInvalid("offset overflow while concatenating arrays, consider casting"),
    pa.ArrowInvalid("Take operation overflowed binary array capacity"),
]


@pytest.mark.parametrize("error", OVERFLOWS, ids=["joined", "picked"])
@pytest.mark.parametrize("level", ["file", "row"])
def test_more_texts_than_a_column_can_hold_come_in_several_runs(index_of, monkeypatch, error, level):
    def limited(function, count):
        def raising(parts, *more):
            if count(parts, *more) > 7:
                raise error
            return function(parts, *more)

        return raising

    monkeypatch.setattr(ahead, "concat_batches", limited(ahead.concat_batches, lambda parts: sum(map(len, parts))))
    monkeypatch.setattr(ahead, "gather", limited(gather, lambda _, places: len(places)))
    opened, order, _ = opened_of(index_of("decoded"), Shuffle(seed=1, level=level, window=1))
    lengths = []
    runs = LaneRows(opened, order).runs(iter([np.arange(ROWS)]))
    got = found_in(run for run in runs if lengths.append(len(run)) is None)
    opened.close()
    expected = order.rows(np.arange(ROWS)).tolist()
    assert got == (list(range(ROWS)), expected, expected)
    assert max(lengths) <= 64
    assert len(lengths) > 4


def test_lists_with_more_numbers_than_a_column_can_hold_are_not_picked_wrongly():
    """Arrow's own take would return lists with wrong bounds."""
    lists = pa.record_batch({"x": pa.array([[1] * (1 << 20)], pa.list_(pa.int8()))})
    with pytest.raises(pa.ArrowCapacityError, match=r"offset overflow: 2,202,009,600 numbers are too many"):
        gather([(lists, np.zeros(2100, np.int64))], np.arange(2100))


COLUMNS = {
    "words": pa.array([f"v{n % 7}" for n in range(500)]).dictionary_encode(),
    "lists": pa.DictionaryArray.from_arrays(pa.array([n % 2 for n in range(500)]), pa.array([[1], [2, 3]])),
    "texts": pa.array(map(str, range(500))),
    "structs": pa.array([{"a": str(n)} for n in range(500)]),
    "vectors": pa.array([[n] * 200 for n in range(500)]),
}


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("level", ["file", "row"])
@pytest.mark.parametrize("name", COLUMNS)
def test_rows_that_leave_are_no_views_of_a_mapped_file(tmp_path, kind, level, name):
    batch = pa.record_batch({"x": COLUMNS[name]})
    path = write(tmp_path / "a.arrow", [batch, batch.slice(0, 0), batch.slice(9)], kind)
    opened, order, _ = opened_of(open_index(path), Shuffle(seed=1, level=level, window=1))
    runs = list(LaneRows(opened, order).runs(iter([np.arange(order.size)])))
    mapped = local.mapped(str(path))
    for column in (run.rows.data.column(0) for run in runs):
        parts = [column, column.dictionary] if pa.types.is_dictionary(column.type) else [column]
        for buffer in filter(None, (buffer for part in parts for buffer in part.buffers())):
            assert not buffer.size or not mapped.address <= buffer.address < mapped.address + mapped.size
    expected = [*COLUMNS[name].to_pylist(), *COLUMNS[name].to_pylist()[9:]]
    got = [row["x"] for run in runs for row in run.rows.items()]
    opened.close()
    assert got == [expected[row] for row in order.rows(np.arange(order.size)).tolist()]


@pytest.mark.parametrize("shuffled", [False, True])
def test_of_files_of_one_row_only_a_few_are_opened_ahead(tmp_path, monkeypatch, shuffled):
    files, most = 500, 16
    for number in range(files):
        (tmp_path / f"{number:05}.jsonl").write_text(json.dumps({"id": number}))
    monkeypatch.setattr(ahead, "STEP_BLOCKS", most)
    opened = []
    request = OpenFiles.request
    monkeypatch.setattr(
        OpenFiles,
        "request",
        lambda self, held: opened.extend(block for block in held if block.request is None) or request(self, held),
    )
    dataset = me.read(tmp_path)
    ids, most_ahead = [], 0
    for row in dataset.shuffle(seed=1) if shuffled else dataset:
        ids.append(row["id"])
        most_ahead = max(most_ahead, len(opened) - len(ids))
    assert (sorted(ids) if shuffled else ids) == list(range(files))
    assert most_ahead <= 3 * most
