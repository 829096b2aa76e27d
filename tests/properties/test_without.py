"""Rows that are left out of a run under way: they do not come any more, and everything else comes exactly once."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from counted import is_kept, named, numbers_in
from legs import check_edits
from midepoch.sources.lane import CountedFileRows
from midepoch.testing import assert_resumes
from worlds import ids

LAYOUTS = st.tuples(st.integers(1, 4), st.integers(1, 2))
GONE = st.sets(st.integers(0, 59), max_size=12)


def ids_of(item):
    return ids([item])


def build(files, level, batch, filtered):
    dataset = me.read(files)
    dataset = dataset if level is None else dataset.shuffle(5, level=level, window=8)
    dataset = dataset.filter(is_kept) if filtered else dataset
    return dataset.batch(batch) if batch else dataset


@given(
    level=st.sampled_from([None, "row", "block", "file"]),
    batch=st.sampled_from([None, 3]),
    filtered=st.booleans(),
    lanes=st.integers(1, 4),
    layouts=st.tuples(LAYOUTS, LAYOUTS, LAYOUTS),
    steps=st.tuples(st.integers(0, 4), st.integers(0, 3)),
    gone=st.tuples(GONE, GONE),
)
def test_everything_else_comes_exactly_once(files, level, batch, filtered, lanes, layouts, steps, gone):
    dataset, plain = build(files, level, batch, filtered).lanes(lanes), build(files, level, None, filtered)
    edits = [(named(gone[0]), gone[0]), (named(gone[1] - gone[0]), gone[1])]
    check_edits(dataset, plain, layouts, steps, edits, ids_of)


def test_the_order_of_the_others_stays(files):
    dataset = me.read(files).shuffle(5, level="row").lanes(2)
    whole = [row["id"] for row in dataset]
    dataset.set_epoch(0)
    items = iter(dataset)
    first = [next(items)["id"] for _ in range(9)]
    edited = dataset.without(named({whole[3], whole[12], whole[13], whole[40]}))
    edited.load_state_dict(dataset.state_dict())
    rest = [row["id"] for row in edited]
    expected = [number for number in whole[9:] if number not in (whole[12], whole[13], whole[40])]
    assert first == whole[:9]
    # Each lane keeps its order; lanes take turns, and one that lost more rows ends earlier.
    assert sorted(rest) == sorted(expected)
    assert [number for number in rest if number in whole[9::2]] == [n for n in expected if n in whole[9::2]]
    assert [number for number in rest if number in whole[10::2]] == [n for n in expected if n in whole[10::2]]


@pytest.mark.parametrize("batch", [1, 2])
def test_lanes_of_whole_files_keep_their_order_through_resumes(files, batch):
    dataset = me.read(files).lanes(3).shard(1, 0, mode="file").batch(batch)
    next(iter(dataset))
    edited = dataset.without(named({1, 2, 3, 4, 20, 50}))
    edited.load_state_dict(dataset.state_dict())
    whole = [ids_of(item) for item in edited]
    edited.load_state_dict(dataset.state_dict())
    cut = []
    while len(cut) < len(whole):
        cut.append(ids_of(next(iter(edited))))
        edited.load_state_dict(edited.state_dict())
    assert cut == whole


def test_steps_that_a_loader_names_are_left_out_and_the_run_goes_on(files, caplog):
    dataset = me.read(files).shuffle(3)
    loader = me.Loader(dataset, batch_size=4)
    batches = iter(loader)
    first = [number for _ in range(3) for number in ids_of(next(batches))]
    poisoned = [number for step in (4, 5) for number in numbers_in(loader.trace(step))]
    edited = dataset.without(steps=range(4, 6), of=loader)
    again = me.Loader(edited, batch_size=4, num_workers=1)
    again.load_state_dict(loader.state_dict())
    assert "it goes on without 8 rows. All others come exactly once" in caplog.text
    assert again.progress().step == 0
    rest = ids(again)
    assert len(poisoned) == 8
    assert sorted(first + rest + poisoned) == list(range(60))
    assert not set(rest) & set(poisoned)
    assert_resumes(edited, every=20)


def test_a_state_of_an_edited_run_does_not_load_without_the_edit(files):
    dataset = me.read(files)
    edited = dataset.without(named({3}))
    next(iter(edited))
    with pytest.raises(me.CheckpointMismatchError, match="without"):
        dataset.load_state_dict(edited.state_dict())
    other = dataset.without(named({4}))
    with pytest.raises(me.CheckpointMismatchError, match="without"):
        other.load_state_dict(edited.state_dict())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("9.arrow", 1)], "which the dataset does not have"),
        ([("0.arrow", 17)], "which has 17 rows"),
        ("0.arrow", "pairs of a file and a row"),
        (None, r"Pass rows=\.\.\."),
    ],
)
def test_what_cannot_be_left_out_is_said(files, rows, message):
    with pytest.raises((ValueError, TypeError), match=message):
        me.read(files).without(rows)


def test_a_selection_after_a_shuffle_is_refused(files):
    with pytest.raises(ValueError, match="Select rows before shuffle"):
        me.read(files).shuffle(1).take(20).without(named({1}))


def test_rows_that_are_not_passed_over_would_be_seen(files):
    def run():
        dataset = me.read(files).lanes(1)
        items = iter(dataset)
        first = [next(items)["id"] for _ in range(10)]
        edited = dataset.without(named({2, 3, 30}))
        edited.load_state_dict(dataset.state_dict())
        return sorted(first + [row["id"] for row in edited])

    expected = [number for number in range(60) if number != 30]
    assert run() == expected
    with patch.object(CountedFileRows, "_positions", lambda self, numbers: numbers + self._start):
        assert run() != expected
