"""The order of an epoch to which files were appended, against a model of a few lines."""

from dataclasses import dataclass
from itertools import islice, pairwise
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch.errors import CheckpointMismatchError
from midepoch.order.orders import Sequential, Shuffle, build_order
from midepoch.order.windows import Blocks, virtual_counts, virtual_starts
from midepoch.sources.lane import generations, lane_of_generations, ranges_of, rows_of_files


@pytest.fixture(autouse=True, scope="module")
def small_virtual_blocks():
    with patch("midepoch.order.windows.VIRTUAL_ROWS", 2):
        yield


@dataclass(frozen=True)
class Files:
    """Files given by the sizes of their blocks. Rows are numbered through all files."""

    blocks: list[list[int]]
    virtual: bool = False

    def rows(self, files):
        """The row numbers of some files, one file after the other."""
        starts = bounds([sum(sizes) for sizes in self.blocks])
        return [row for file in files for row in range(starts[file], starts[file + 1])]

    def subset(self, files):
        return rows_of_files(
            np.array(files, np.int64),
            SimpleNamespace(
                file_starts=bounds([sum(sizes) for sizes in self.blocks]),
                first_blocks=bounds([len(sizes) for sizes in self.blocks]),
            ),
            self.described(range(len(self.blocks))),
            virtual=self.virtual,
        )

    def described(self, files):
        """The blocks of some files. Those of odd files can be divided; a row has 1,000 bytes."""
        sizes = [size for file in files for size in self.blocks[file]]
        divisible = [file % 2 == 1 for file in files for _ in self.blocks[file]]
        return Blocks(bounds(sizes), 1000 * np.array(sizes, np.int64), np.array(divisible, bool))

    def alone(self, files):
        """The order of a dataset that has only these files. Its rows are numbered from 0."""
        own = self.described(files)
        starts = virtual_starts(own, virtual_counts(own)) if self.virtual else own.starts
        return Sequential(bounds([sum(self.blocks[file]) for file in files]), starts, own)


def bounds(counts):
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def rows_of(order):
    return order.rows(np.arange(order.size)).tolist()


def model_lanes(files, generations, steps, epoch, lanes):
    """The rows of each lane: every generation in the order of its files alone fills all lanes to their new lengths."""
    filled = [[] for _ in range(lanes)]
    for generation in generations:
        own_rows = files.rows(generation)
        new_rows = iter([own_rows[row] for row in rows_of(build_order(files.alone(generation), steps, epoch))])
        total = sum(map(len, filled)) + len(own_rows)
        for number, lane in enumerate(filled):
            length = total // lanes + (number < total % lanes)
            lane.extend(islice(new_rows, length - len(lane)))
    return filled


def real_lanes(files, generations, steps, epoch, lanes):
    orders = [build_order(files.subset(generation), steps, epoch) for generation in generations]
    return [lane_of_generations(orders, lanes, lane) for lane in range(lanes)]


@st.composite
def histories(draw):
    """Files, and the numbers of the files of each generation."""
    blocks = draw(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=7))
    generation_of = draw(st.lists(st.integers(0, 3), min_size=len(blocks), max_size=len(blocks)))
    split = [[file for file, own in enumerate(generation_of) if own == number] for number in range(4)]
    return Files(blocks, draw(st.booleans())), [files for files in split if files]


order_steps = st.lists(
    st.builds(
        Shuffle,
        seed=st.integers(0, 9),
        level=st.sampled_from(["file", "block", "row"]),
        window=st.integers(1, 20),
        window_blocks=st.integers(1, 5),
        window_bytes=st.integers(1, 40_000),
    ),
    max_size=1,
)


@given(histories(), order_steps, st.integers(0, 3), st.integers(1, 6))
def test_every_lane_has_the_rows_of_the_model(history, steps, epoch, lanes):
    files, split = history
    orders = real_lanes(files, split, steps, epoch, lanes)
    assert [rows_of(order) for order in orders] == model_lanes(files, split, steps, epoch, lanes)
    assert [order.size for order in orders] == [len(rows_of(order)) for order in orders]


@given(histories(), order_steps, st.integers(0, 3), st.integers(1, 6))
def test_an_append_only_extends_lanes_and_every_row_comes_once(history, steps, epoch, lanes):
    files, split = history
    before = [[] for _ in range(lanes)]
    for count in range(1, len(split) + 1):
        after = [rows_of(order) for order in real_lanes(files, split[:count], steps, epoch, lanes)]
        assert [new[: len(old)] for old, new in zip(before, after, strict=True)] == before
        assert sorted(row for lane in after for row in lane) == sorted(
            row for generation in split[:count] for row in files.rows(generation)
        )
        before = after


@given(histories(), order_steps, st.integers(1, 4))
def test_pieces_cut_a_lane_from_its_start_to_its_end(history, steps, lanes):
    files, split = history
    for order in real_lanes(files, split, steps, 0, lanes):
        pieces = order.piece_starts("block")
        assert (pieces[0], pieces[-1]) == (0, order.size)
        assert (np.diff(pieces) > 0).all()


@given(histories())
def test_a_subset_of_files_has_the_pieces_of_a_dataset_of_these_files_alone(history):
    files, split = history
    for generation in split:
        subset, alone = files.subset(generation), files.alone(generation)
        assert subset.size == alone.size
        for level in ("file", "block"):
            assert subset.piece_starts(level).tolist() == alone.piece_starts(level).tolist()


@given(histories())
def test_generations_are_restored_from_the_ranges_in_a_state(history):
    files, split = history
    in_state = tuple(ranges_of(np.array(generation, np.int64)) for generation in split[:-1])
    assert [numbers.tolist() for numbers in generations(in_state, len(files.blocks))] == split


@given(st.sets(st.integers(0, 40)))
def test_ranges_are_as_few_as_possible_and_hold_the_numbers(numbers):
    ranges = ranges_of(np.array(sorted(numbers), np.int64))
    assert [number for begin, end in ranges for number in range(begin, end)] == sorted(numbers)
    assert all(end < begin for (_, end), (begin, _) in pairwise(ranges))


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ((((0, 4),),), "names more files than there are, of 3 files"),
        ((((0, 2),), ((1, 3),)), "names a file twice"),
    ],
)
def test_a_damaged_state_raises_and_names_the_file(ranges, message):
    with pytest.raises(CheckpointMismatchError, match=message):
        generations(ranges, 3)
