"""The rows of a lane, for every order, start, stop and stride, against a plain list of rows."""

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from files import numbers, values, write
from midepoch.index.build import open_index
from midepoch.order.orders import Sequential, Shuffle, Slice, build_order
from midepoch.sources import lane
from midepoch.sources.fetcher import BlockFetcher
from midepoch.sources.lane import LaneRows, ReadSizes
from worlds import SUFFIXES

BLOCKS = [[7, 0, 3], [1, 1, 1, 20], [], [64, 64], [5]]
"""The sizes of the blocks of each file."""
ROWS = sum(map(sum, BLOCKS))
KINDS = {"mapped": ["stream", "file"], "decoded": ["parquet"], "mixed": ["parquet", "stream"]}


def in_file_order(index):
    return Sequential(index.view.file_starts, index.view.block_starts, index.view.blocks)


class Listed:
    """An order that is a list of row numbers, of which some may repeat."""

    def __init__(self, rows):
        self._rows, self.size = np.array(rows, np.int64), len(rows)

    def rows(self, positions):
        return self._rows[positions]

    def piece_starts(self, level):
        return np.array([0, self.size])


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
            write(folder / f"{number}{SUFFIXES[own]}", batches or [numbers(0, 0)], own)
        return open_index(folder, index_dir=tmp_path_factory.mktemp("index"))

    return written


steps = st.lists(
    st.one_of(
        st.builds(
            Shuffle,
            seed=st.integers(0, 9),
            level=st.sampled_from(["file", "block", "row"]),
            window=st.integers(1, 90),
            window_blocks=st.none() | st.integers(1, 9),
            window_bytes=st.integers(1, 4000),
        ),
        st.builds(Slice, start=st.integers(0, 60), stop=st.one_of(st.none(), st.integers(60, 200))),
    ),
    max_size=2,
).filter(lambda chosen: not any(isinstance(step, Shuffle) and step.level == "file" for step in chosen[1:]))
listed = st.lists(st.integers(0, ROWS - 1), max_size=300)
sizes = st.builds(
    lambda run, factor, views: ReadSizes(run * factor, run, views),
    st.sampled_from([1, 3, 16, 100]),
    st.sampled_from([1, 2, 9]),
    st.sampled_from([1, 4, 100]),
)


def read(fetcher, order, sizes, start, stop, window_bytes=0):
    """The positions, keys and values of all runs, after checks of each run."""
    positions, keys, found = [], [], []
    for run in LaneRows(fetcher, order, sizes, window_bytes).runs(start, stop):
        assert 0 < len(run) <= sizes.run
        positions += (run.cursors[:, 0] - 1).tolist()
        keys += run.keys.tolist()
        found += [row["x"] for row in run.rows.items()]
    return positions, keys, found


@pytest.mark.parametrize("kind", KINDS)
@given(
    order_steps=st.one_of(steps, listed),
    sizes=sizes,
    ends=st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)),
    window_bytes=st.sampled_from([0, 1, 500, 4000]),
)
def test_runs_hold_the_rows_of_the_order_between_start_and_stop(index_of, kind, order_steps, sizes, ends, window_bytes):
    index = index_of(kind)
    plain_list = bool(order_steps) and isinstance(order_steps[0], int)
    order = Listed(order_steps) if plain_list else build_order(in_file_order(index), order_steps, 1)
    start, stop = (min(end, order.size) for end in sorted(ends))
    due = list(range(start, stop))
    whole = order.rows(np.arange(order.size)).tolist()
    fetcher = BlockFetcher(index, index.schema(None))
    got = read(fetcher, order, sizes, start, stop, window_bytes)
    fetcher.close()
    expected = [whole[position] for position in due]
    assert got == (due, expected, expected)


@pytest.mark.parametrize("kind", ["mapped", "decoded"])
@given(order_steps=steps, sizes=sizes, data=st.data(), window_bytes=st.sampled_from([0, 1, 4000]))
def test_wanted_positions_in_arrays_of_any_size_give_their_rows(index_of, kind, order_steps, sizes, data, window_bytes):
    """Empty arrays among them end a step. The others may be read later, together with those that follow."""
    index = index_of(kind)
    order = build_order(in_file_order(index), order_steps, 1)
    wanted = sorted(data.draw(st.sets(st.integers(0, order.size - 1)))) if order.size else []
    if data.draw(st.booleans()):
        wanted = list(range(order.size))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wanted)), max_size=8)))
    arrays = np.split(np.array(wanted, np.int64), cuts)
    fetcher = BlockFetcher(index, index.schema(None))
    runs = LaneRows(fetcher, order, sizes, window_bytes).runs_at(iter(arrays), order.size)
    got = [
        (int(cursor) - 1, row["x"])
        for run in runs
        for cursor, row in zip(run.cursors[:, 0], run.rows.items(), strict=True)
    ]
    fetcher.close()
    assert got == list(zip(wanted, order.rows(np.array(wanted, np.int64)).tolist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_every_start_and_block_boundary_in_file_order(index_of, kind):
    index = index_of(kind)
    fetcher = BlockFetcher(index, index.schema(None))
    for start in range(ROWS + 1):
        assert read(fetcher, in_file_order(index), ReadSizes(16, 8, 4), start, ROWS)[2] == list(range(start, ROWS))
    fetcher.close()


@pytest.mark.parametrize("kind", KINDS)
def test_adjacent_rows_may_have_blocks_without_rows_between_them(index_of, kind):
    index = index_of(kind)
    fetcher, rows = BlockFetcher(index, index.schema(None)), [*range(33, 161), 6, 7]
    assert read(fetcher, Listed(rows), ReadSizes(1000, 1000, 4), 0, len(rows))[2] == rows
    fetcher.close()


def test_adjacent_rows_of_mapped_files_are_slices_and_scattered_rows_share_a_pool(index_of):
    index = index_of("mapped")
    fetcher, big = BlockFetcher(index, index.schema(None)), ReadSizes(64, 16, 100)
    sliced = LaneRows(fetcher, in_file_order(index), big).runs(0, ROWS)
    assert all(isinstance(run.rows.data, pa.RecordBatch) for run in sliced)
    shuffled = build_order(in_file_order(index), [Shuffle(seed=1, level="row", window=1)], 0)
    pools = {id(run.rows.data.pool) for run in list(LaneRows(fetcher, shuffled, big).runs(0, 64))}
    assert len(pools) == 1


@pytest.mark.parametrize("level", ["block", "row"])
def test_the_first_row_of_mapped_files_waits_for_a_few_rows_only(index_of, monkeypatch, level):
    index = index_of("mapped")
    fetcher, big = BlockFetcher(index, index.schema(None)), ReadSizes(1000, 1000, 100)
    shuffle = Shuffle(seed=1, level=level, window=1000, window_blocks=99, window_bytes=10**9)
    order = build_order(in_file_order(index), [shuffle], 0)
    whole = read(fetcher, order, big, 0, ROWS, 10**9)
    monkeypatch.setattr(lane, "FIRST_ROWS", 5)
    runs = list(LaneRows(fetcher, order, big, 10**9).runs(0, ROWS))
    assert [len(run) for run in runs] == [5, ROWS - 5]
    assert read(fetcher, order, big, 0, ROWS, 10**9) == whole
    fetcher.close()


def test_blocks_of_which_few_rows_are_wanted_are_not_held_together(index_of, monkeypatch):
    index = index_of("decoded")
    loaded, load = [], lane.HeldBlocks.load
    monkeypatch.setattr(
        lane.HeldBlocks,
        "load",
        lambda self, blocks, *more: (loaded.append(list(blocks)), load(self, blocks, *more))[1],
    )
    fetcher, every_row = BlockFetcher(index, index.schema(None)), ReadSizes(1000, 1000, 4)
    assert read(fetcher, Listed([163, 120, 40]), every_row, 0, 3)[2] == [163, 120, 40]
    assert [len(blocks) for blocks in loaded] == [1, 1, 1]
    loaded.clear()
    assert read(fetcher, Listed([*range(150, 37, -1)]), every_row, 0, 113)[2] == [*range(150, 37, -1)]
    assert [len(blocks) for blocks in loaded] == [2]
    fetcher.close()


def test_narrow_rows_come_in_longer_runs_within_the_same_limits():
    assert ReadSizes.of(64, 1).run == 8192
    assert ReadSizes.of(256, 1).run == 2048
    assert ReadSizes.of(2000, 1).run == 1024
    assert ReadSizes.of(1 << 20, 1).run == 8
    assert ReadSizes.of(64, 64).run == 128
    assert [ReadSizes.of(size, 1, is_decoded=True).run for size in (64, 400, 2000, 1 << 20)] == [8192, 2048, 2048, 8]
    assert ReadSizes.of(2000, 1, is_decoded=True, has_dictionaries=True).run == 1024
    assert ReadSizes.of(2000, 4, is_decoded=True).run == 512
    assert ReadSizes.of(64, 1, has_dictionaries=True).run == 1024
    assert ReadSizes.of(56, 1, scattered_bytes=8 << 20).step == 32768
    assert ReadSizes.of(512, 1, scattered_bytes=8 << 20).step == 16384
    assert ReadSizes.of(56, 8, scattered_bytes=8 << 20).step == 4096
    assert ReadSizes.of(2000, 1, scattered_bytes=64 << 20).step == 32768
    assert ReadSizes.of(2000, 1, scattered_bytes=64 << 20, has_dictionaries=True).step == 8192
    assert ReadSizes.of(2000, 1, scattered_bytes=64 << 20).run == 1024
    for row_bytes in (1, 10, 64, 500, 5000, 1 << 24):
        for lanes in (1, 3, 256, 10_000):
            chosen = ReadSizes.of(row_bytes, lanes)
            assert 1 <= chosen.run <= chosen.step <= 8192


@pytest.mark.parametrize(("encoded", "longest"), [(False, 8192), (True, 1024)])
def test_rows_of_a_dictionary_column_do_not_count_as_narrow(tmp_path, monkeypatch, encoded, longest):
    lengths, runs = [], LaneRows.runs_at

    def watched(self, *arguments, **options):
        for run in runs(self, *arguments, **options):
            lengths.append(len(run))
            yield run

    monkeypatch.setattr(LaneRows, "runs_at", watched)
    column = pa.array(range(10_000), pa.int32())
    batch = pa.record_batch({"x": column.dictionary_encode() if encoded else column})
    path = write(tmp_path / "a.arrow", batch, "file")
    assert values(me.read(path)) == list(range(10_000))
    assert max(lengths) == longest
