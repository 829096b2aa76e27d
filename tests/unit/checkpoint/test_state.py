"""States: plain, small, refused with a reason where they do not fit, and readable for ever."""

import copy
import json

import pytest

import midepoch as me
from midepoch.checkpoint.lanes import LanePosition
from midepoch.checkpoint.state import LanePositions, ReaderProgress, State
from worlds import ids, is_kept, is_late, plus_one, write_files


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", [20, 0, 7, 33])


def after(dataset, items):
    iterator = iter(dataset)
    for _ in range(items):
        next(iterator)
    return json.loads(json.dumps(dataset.state_dict()))


def unsigned(state):
    """A state that can be changed, without its checksum."""
    return {key: copy.deepcopy(value) for key, value in state.items() if key != "checksum"}


def test_a_state_does_not_grow(tmp_path):
    few = me.read(write_files(tmp_path / "few", [20] * 3)).shuffle(1).map(plus_one).batch(2)
    many = me.read(write_files(tmp_path / "many", [2] * 300)).shuffle(1).map(plus_one).batch(2).lanes(64)
    for dataset in (few, many):
        sizes = [len(json.dumps(after(copy.copy(dataset), items))) for items in (0, 1, 20, 27)]
        assert max(sizes) < 1024
        assert max(sizes) - min(sizes) < 60


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        (lambda ds: ds.shuffle(1), lambda ds: ds.shuffle(2), "seed of stage 1, shuffle, was 1 then and is 2 now"),
        (lambda ds: ds.shuffle(1), lambda ds: ds.shuffle(1, level="row"), "level of stage 1, shuffle, was 'block'"),
        (lambda ds: ds.shuffle(1), lambda ds: ds, "stage 1, shuffle.*was removed"),
        (lambda ds: ds, lambda ds: ds.take(9), "stage 1, take.*was added"),
        (lambda ds: ds.map(plus_one), lambda ds: ds.filter(is_kept), "stage 1 was map.* then and is filter"),
        (lambda ds: ds.filter(is_late), lambda ds: ds.filter(is_kept), "fn of stage 1, filter, was 'is_late'"),
        (lambda ds: ds.take(3), lambda ds: ds.take(4), "n of stage 1, take, was 3 then and is 4 now"),
        (lambda ds: ds.select_columns("id"), lambda ds: ds.select_columns("text"), r"columns of stage 1.*\['id'\]"),
    ],
)
def test_another_pipeline_is_refused_with_the_difference(folder, then, now, message):
    dataset = now(me.read(folder))
    before = dataset.state_dict()
    with pytest.raises(me.CheckpointMismatchError, match=message):
        dataset.load_state_dict(after(then(me.read(folder)), 2))
    assert dataset.state_dict() == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda state: None, "not a midepoch state"),
        (lambda state: {**state, "version": 3}, "version 3; this midepoch reads version 1"),
        (lambda state: {**state, "epoch": -1}, "damaged.*got -1"),
        (lambda state: {**state, "cursors": [[2, 3]]}, "damaged.*2 cursors for 3 lanes"),
        (lambda state: {**state, "cursors": [[3, [3, 4]]]}, "cursors do not have 1 number"),
        (lambda state: {**state, "mode": "rows"}, "damaged.*'rows'"),
        (lambda state: {**state, "fingerprint": None}, "no fingerprint"),
        (lambda state: {key: value for key, value in state.items() if key != "turn"}, "damaged.*turn"),
    ],
)
def test_damaged_and_newer_states_are_refused(folder, damage, message):
    dataset = me.read(folder).lanes(3)
    state = after(dataset, 4)
    fresh = me.read(folder).lanes(3)
    with pytest.raises(me.CheckpointMismatchError, match=message):
        fresh.load_state_dict(damage(unsigned(state)))
    assert fresh.epoch == 0
    assert len(ids(fresh)) == 60


def test_a_batch_before_a_batched_function_keeps_its_size(folder):
    def keep(columns):
        return columns

    state = after(me.read(folder).batch(4).map(keep, batched=True), 3)
    with pytest.raises(me.CheckpointMismatchError, match="n of stage 1, batch, was 4 then and is 3 now"):
        me.read(folder).batch(3).map(keep, batched=True).load_state_dict(state)
    resumed = me.read(folder).batch(4).map(keep, batched=True).batch(2)
    resumed.load_state_dict(state)


def test_a_state_that_is_changed_changes_no_other(folder):
    dataset = me.read(folder)
    dataset.state_dict()["fingerprint"]["data"]["rows"] = 5
    assert dataset.state_dict()["fingerprint"]["data"]["rows"] == 60


def of_epoch(epoch, reader=None, **changes):
    """A state of one lane, complete or of one of two readers."""
    part = None if reader is None else ReaderProgress(readers=2, reader=reader, turns_taken=1)
    positions = LanePositions(((1, LanePosition((3,))),))
    return State(**{"epoch": epoch, "lanes": 1, "turn": 3, "positions": positions, "reader_progress": part} | changes)


FINGERPRINT = {"data": {"rows": 9}, "pipeline": []}


@pytest.mark.parametrize(
    "state",
    [
        of_epoch(4, 1, earlier=(of_epoch(2, 1), of_epoch(3, 1))),
        of_epoch(4, 1, earlier=(of_epoch(3, 1),), later=(of_epoch(5),)),
        of_epoch(4, earlier=(of_epoch(3, 0),)),
        of_epoch(4, later=(of_epoch(5), of_epoch(6))),
        State(epoch=4, earlier=(of_epoch(3, 0),), later=(of_epoch(5),)),
    ],
)
def test_E4_other_epochs_survive_json(state):
    values = json.loads(json.dumps(state.to_dict(FINGERPRINT)))
    assert State.from_dict(values) == state
    assert State.from_dict(values).to_dict(FINGERPRINT) == values


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (of_epoch(4, 1, earlier=(of_epoch(2, 1),)), r"its epochs are \[2, 4\]"),
        (of_epoch(4, later=(of_epoch(5), of_epoch(7))), r"its epochs are \[4, 5, 7\]"),
        (of_epoch(4, 1, earlier=(of_epoch(3, 0),)), "does not say for one reader"),
        (of_epoch(4, earlier=(of_epoch(3),)), "does not say for one reader"),
        (of_epoch(4, later=(of_epoch(5, 1),)), "does not say for all readers"),
        (of_epoch(9, 1, earlier=tuple(of_epoch(epoch, 1) for epoch in range(4, 9))), "at most 4 epochs"),
        (of_epoch(4, later=(of_epoch(5, lanes=2),)), "1 cursor for 2 lanes"),
    ],
)
def test_E4_epochs_that_contradict_each_other_are_refused(state, message):
    with pytest.raises(me.CheckpointMismatchError, match=message):
        State.from_dict(state.to_dict(FINGERPRINT))


def test_E4_another_epoch_starts_where_ranks_were_already():
    state = of_epoch(4, later=(of_epoch(5), of_epoch(6)))
    assert state.following() == of_epoch(5, later=(of_epoch(6),))
    assert state.start_of(6) == of_epoch(6)
    assert state.start_of(7) == State(epoch=7)
    assert state.start_of(4) == State(epoch=4)
