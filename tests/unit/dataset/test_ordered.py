"""Shuffles, cuts and splits act on the order of rows, and resume anywhere."""

import logging

import pytest

import midepoch as me
from midepoch._common.checks import log_once
from worlds import ids, is_kept, jitter, plus_one, spread, write_files


@pytest.mark.parametrize("name", ["shuffle", "take", "skip", "train_test_split"])
@pytest.mark.parametrize("stage", ["filter", "batch", "map"])
def test_they_are_refused_after_stages_that_change_the_number_of_items(folder, name, stage):
    dataset = me.read(folder)
    staged = {
        "filter": dataset.filter(is_kept),
        "batch": dataset.batch(2),
        "map": dataset.map(spread, batched=True),
    }[stage]
    with pytest.raises(ValueError, match=f"{name} after {stage} is not possible.*Put {name} first"):
        getattr(staged, name)(*([] if name == "shuffle" else [3]))


def test_a_split_has_the_same_rows_in_every_epoch_on_any_rank_after_any_shuffle(folder):
    train, test = me.read(folder).train_test_split(0.25, seed=1)
    fixed = ids(test)
    assert len(fixed) == len(test) == 15
    assert fixed == sorted(fixed)
    assert ids(train) == [number for number in range(60) if number not in fixed]
    for level in ("file", "block", "row"):
        shuffled = [half.shuffle(3, level=level, window=10) for half in (train, test)]
        for _ in range(4):
            assert sorted(ids(shuffled[1])) == fixed
            assert sorted(ids(shuffled[0]) + fixed) == list(range(60))
        for mode in ("example", "file"):
            shards = [shuffled[1].shard(3, rank, mode) for rank in range(3)]
            assert sorted(number for shard in shards for number in ids(shard)) == fixed


@pytest.mark.parametrize("half", ["train", "test"])
@pytest.mark.parametrize("level", [None, "file", "block", "row"])
def test_both_halves_of_a_split_resume_anywhere_on_any_readers(folder, half, level):
    dataset = getattr(me.read(folder).train_test_split(0.3, seed=4), half)
    if level is not None:
        dataset = dataset.shuffle(2, level=level, window=8)
    me.testing.assert_resumes(dataset.map(jitter, with_rng=True).batch(2), every=3)
    me.testing.assert_resumes(dataset.filter(is_kept), every=5)
    me.testing.assert_elastic(dataset.lanes(4), [(2, 2), (3, 1), (1, 3)])


def test_a_state_of_one_half_is_refused_by_the_other_and_by_another_split(folder):
    train, test = me.read(folder).train_test_split(20)
    next(iter(train))
    state = train.state_dict()
    for other in (test, me.read(folder).train_test_split(21).train, me.read(folder).train_test_split(20, seed=1).train):
        with pytest.raises(me.CheckpointMismatchError, match="train_test_split"):
            other.load_state_dict(state)


def test_a_split_is_refused_after_a_shuffle_and_the_error_shows_the_right_order(folder):
    for shuffled in (me.read(folder).shuffle(1), me.read(folder).shuffle(1).take(30).map(plus_one)):
        with pytest.raises(ValueError, match=r"Split first, then shuffle: train, test = dataset.train_test_split"):
            shuffled.train_test_split(0.1)


def test_a_split_is_refused_where_rows_cannot_be_counted(folder):
    with pytest.raises(ValueError, match=r"train_test_split after read\(filters=...\) is not possible"):
        me.read(folder, filters=[("id", ">", 5)]).train_test_split(0.1)
    with pytest.raises(TypeError, match="train_test_split is not possible on a mixture"):
        me.mix([me.read(folder), me.read(folder)]).train_test_split(0.1)


def test_take_and_skip_after_a_shuffle_warn_once_that_their_rows_change(folder, caplog):
    log_once.cache_clear()
    me.read(folder).take(3).skip(1).shuffle(1)
    assert not caplog.records
    me.read(folder).shuffle(1).take(3)
    me.read(folder).shuffle(1).map(plus_one).skip(3)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "other rows in every epoch" in record.message
    assert "train_test_split" in record.message


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ({"window_blocks": 0}, ValueError, "window_blocks is 0; it must be at least 1"),
        ({"window_blocks": 2.5}, TypeError, "window_blocks must be an integer"),
        ({"window_bytes": 0}, ValueError, "window_bytes is 0; it must be at least 1"),
        ({"window_bytes": "much"}, ValueError, "window_bytes is 'much'; pass a number of bytes"),
        ({"window_bytes": -1}, ValueError, "window_bytes is -1; it cannot be negative"),
    ],
)
def test_sizes_of_windows_are_checked(tmp_path, sizes, error, message):
    dataset = me.read(write_files(tmp_path / "data", [20]))
    with pytest.raises(error, match=message):
        dataset.shuffle(1, **sizes)
