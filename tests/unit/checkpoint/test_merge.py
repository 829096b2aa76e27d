"""Merging: the states of all ranks become one, or it is refused with a reason."""

import copy
import json

import pytest

import midepoch as me
from worlds import ids, is_kept, write_files

FINGERPRINT = {"data": {"digest": "00"}, "pipeline": []}


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", [20, 0, 7, 33])


def after(dataset, items):
    iterator = iter(dataset)
    for _ in range(items):
        next(iterator)
    return json.loads(json.dumps(dataset.state_dict()))


def state(part=None, **changes):
    """A state of two lanes, maybe that of one reader."""
    values = {"version": 1, "epoch": 0, "lanes": 2, "mode": "example", "turn": 0, "item_rows": 1}
    return values | {"cursors": [[2, 0]], "part": part, "fingerprint": FINGERPRINT} | changes


def reader(number, readers=2, turns=0, shares=()):
    return {"readers": readers, "reader": number, "turns": turns, "shares": list(shares)}


NOT_BEGUN = state(lanes=None, cursors=[])


def test_any_ranks_state_of_a_uniform_pipeline_restores_all(folder):
    whole = ids(me.read(folder).shuffle(1).lanes(4))
    states = []
    for rank in range(4):
        states.append(after(me.read(folder).shuffle(1).lanes(4).shard(4, rank), 5))
    assert all(state == states[0] for state in states)
    assert me.merge_states(states) == states[0]
    resumed = me.read(folder).shuffle(1).lanes(4)
    resumed.load_state_dict(states[2])
    assert ids(resumed) == whole[20:]


def test_a_filtering_ranks_state_is_its_own_until_it_is_merged(folder):
    def build(rank, ranks):
        return me.read(folder).filter(is_kept).lanes(4).shard(ranks, rank)

    states = [after(build(rank, 2), 5) for rank in range(2)]
    with pytest.raises(me.CheckpointMismatchError, match="state of reader 0 of 2 was loaded by reader 1"):
        build(1, 2).load_state_dict(states[0])
    with pytest.raises(me.CheckpointMismatchError, match=r"one of 2 readers delivered; now there are 1.*merge_states"):
        build(0, 1).load_state_dict(states[0])
    with pytest.raises(me.CheckpointMismatchError, match="state of reader 1 of 2 is missing"):
        me.merge_states(states[:1])
    alone = build(0, 1)
    alone.load_state_dict(me.merge_states(states[::-1]))
    whole = ids(me.read(folder).filter(is_kept).lanes(4))
    assert ids(alone) == whole[10:]


def test_states_of_different_moments_or_data_are_not_merged(folder):
    one, other = (after(me.read(folder).lanes(2).shard(2, 0), items) for items in (3, 4))
    with pytest.raises(me.CheckpointMismatchError, match=r"turn is 6 in one and 8 in state 1 \(from 0\)"):
        me.merge_states([one, other])
    with pytest.raises(me.CheckpointMismatchError, match="different data or pipelines"):
        me.merge_states([one, after(me.read(folder).take(9).lanes(2), 3)])
    with pytest.raises(ValueError, match="no states"):
        me.merge_states([])


def test_two_states_of_one_reader_are_not_merged(folder):
    def rank(number, items):
        return after(me.read(folder).filter(is_kept).lanes(2).shard(2, number), items)

    with pytest.raises(me.CheckpointMismatchError, match="two different states of reader 0"):
        me.merge_states([rank(0, 1), rank(0, 3), rank(1, 3)])


def test_readers_that_share_lanes_are_merged_to_what_all_have_delivered():
    """Two lanes and four readers: two share each lane. Reader 0 is far ahead of reader 2, which delivered nothing."""
    parts = [
        reader(0, 4, 3, [[0, 5, 7]]),  # the ordinals 0, 2 and 4 of lane 0; its cursor after the last is 7
        reader(1, 4, 1, [[1, 1, 2]]),
        reader(2, 4, 0),
        reader(3, 4, 1, [[1, 2, 4]]),
    ]
    merged = me.merge_states([state(part) for part in parts])
    assert merged["part"] is None
    assert merged["turn"] == 2
    assert merged["cursors"] == [[1, {"at": 0, "done": [0, 2, 4]}], [1, 4]]


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([state(reader(0)), state(reader(1, 3))], "runs with different numbers of readers.*one run"),
        ([state(reader(1, 3))], r"state of reader 0 of 3 is missing \(2 missing in all\)"),
        (
            [state(reader(0)), state(reader(1), epoch=1)],
            r"State 0 \(from 0\) is in epoch 0 and state 1 in epoch 1, and the latter does not hold .*in_step",
        ),
        ([state(reader(0)), state(reader(1), cursors=[[1, 0], [1, 1]])], "positions is"),
        ([state(reader(0)), state(reader(1), fingerprint={"data": {}, "pipeline": []})], "different data or pipelines"),
        (
            [state({"readers": 2, "workers": 2, "items": items}) for items in (1, 2)],
            "after different numbers of items.*same step.*from_stateful_dataloader",
        ),
        (
            [NOT_BEGUN, state(reader(1), turn=3, cursors=[[2, 1]])],
            r"State 0 \(from 0\) had not begun epoch 0.*did not load the state.*Load the same state on all ranks",
        ),
        (
            [NOT_BEGUN, state()],
            r"State 0 \(from 0\) had not begun epoch 0.*asked for the first item.*Save all ranks at the same step",
        ),
        ([state(reader(0)), state(turn=3, cursors=[[2, 1]])], "turn is 0 in one and 3 in state 1"),
        ([state(reader(0)), state(reader(1)), NOT_BEGUN], "1 state of a rank that had delivered nothing.*each of the 2"),
        ([state(reader(0, 3)), NOT_BEGUN], r"state of reader 1 of 3 is missing \(1 missing in all\)"),
        ([state(), state(fingerprint=None)], "damaged.*no fingerprint"),
        ([state(), None], "not a midepoch state"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_states_that_do_not_belong_together_are_refused(states, message):
    with pytest.raises(me.CheckpointMismatchError, match=message):
        me.merge_states(states)


def test_merging_changes_none_of_its_states():
    states = [state(reader(number, turns=1, shares=[[number, 1, 1]])) for number in range(2)]
    before = copy.deepcopy(states)
    me.merge_states(states)["cursors"].append(3)
    assert states == before
