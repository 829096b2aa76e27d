"""Options, and splits and the shuffle that permutes them, on orders in memory."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from midepoch.integrations.structured import ShuffleSplits, Splitting, TableOptions
from midepoch.order.orders import Sequential
from midepoch.order.selection import Deletes
from worlds import write_files


def index_of(files):
    """Blocks of these numbers of rows, in files; a row has 10 bytes."""
    blocks = np.array([rows for file in files for rows in file], np.int64)
    starts = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    first_blocks = np.concatenate([[0], np.cumsum([len(file) for file in files])]).astype(np.int64)
    return SimpleNamespace(file_starts=starts[first_blocks], block_starts=starts, block_lengths=blocks * 10)


def base_of(index):
    return Sequential(index.file_starts, index.block_starts)


FILES = st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=5)


@given(FILES, st.integers(1, 30))
def test_a_split_is_several_whole_blocks_of_one_file(files, most):
    index = index_of(files)
    by_rows = Splitting(index=index, most_rows=most).cut(base_of(index)).piece_starts("file")
    by_bytes = Splitting(index=index, most_bytes=10 * most).cut(base_of(index)).piece_starts("file")
    assert by_rows.tolist() == by_bytes.tolist()
    assert set(by_rows.tolist()) <= set(index.block_starts.tolist())
    assert set(index.file_starts.tolist()) <= set(by_rows.tolist())
    assert (np.diff(by_rows) > 0).all()
    assert np.diff(by_rows).max(initial=0) < most + max((rows for file in files for rows in file), default=0)
    if most == 30:
        assert len(by_rows) < 2 + sum(1 + sum(file) // 30 for file in files)


@given(FILES, st.integers(1, 30), st.integers(1, 40), st.integers(0, 3), st.sets(st.integers(0, 100)))
def test_a_group_has_the_rows_of_its_splits_and_no_others(files, most, window, epoch, gone):
    index = index_of(files)
    splitting = Splitting(index=index, most_rows=most)
    step = ShuffleSplits(seed=3, window=window, splitting=splitting)
    base = base_of(index)
    gone = np.array(sorted(row for row in gone if row < base.size), np.int64)
    base = Deletes(rows=gone).apply(base)
    order, splits = step.apply(base, epoch, 0), step.permuted(base, epoch, 0)
    assert sorted(order.rows(np.arange(order.size)).tolist()) == sorted(
        set(range(int(index.file_starts[-1]))) - set(gone)
    )
    groups = step.groups(splits).tolist()
    assert set(groups) <= set(splits.piece_starts("file").tolist())
    for begin, end in pairwise(groups):
        positions = np.arange(begin, end)
        assert sorted(order.rows(positions).tolist()) == sorted(splits.rows(positions).tolist())


@pytest.mark.parametrize("call", [me.StructuredDataset, me.StructuredDataset.create_dataloader])
def test_an_unknown_option_is_refused(tmp_path, call):
    write_files(tmp_path, [3])
    with pytest.raises(TypeError, match="unexpected keyword argument 'colums'"):
        call(tmp_path, colums=["id"])


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("output_format", "pandas", "output_format is 'pandas'; it can be 'torch', 'numpy', 'arrow' or 'dict'"),
        ("partitioning", "directory", "partitioning is 'directory'; it can be 'hive' or None"),
        ("trust_shared", "no", "trust_shared must be True or False, got 'no'"),
        ("split_bytes", "many", "split_bytes is 'many'"),
        ("split_bytes", 0, "split_bytes is 0; it must be at least 1"),
        ("split_rows", 0, "split_rows is 0; it must be at least 1"),
        ("shuffle_seed", 1.5, "shuffle_seed must be an integer"),
        ("shuffle_buffer_size", -1, "shuffle_buffer_size is -1; it must be at least 0"),
    ],
)
def test_a_wrong_option_raises_before_anything_is_opened(option, value, error):
    with pytest.raises((ValueError, TypeError), match=error):
        me.StructuredDataset("nowhere", **{option: value})


def test_a_secret_is_not_in_the_repr():
    assert "hush" not in repr(TableOptions(storage_options={"secret": "hush"}))
