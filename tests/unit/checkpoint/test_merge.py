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


def test_states_of_different_moments_or_data_are_not_merged(folder):
    one, other = (after(me.read(folder).lanes(2).shard(2, 0), items) for items in (3, 4))
    with pytest.raises(me.CheckpointMismatchError, match=r"turn is 6 in one and 8 in state 1 \(from 0\)"):
        me.merge_states([one, other])
    with pytest.raises(me.CheckpointMismatchError, match="different data or pipelines"):
        me.merge_states([one, after(me.read(folder).take(9).lanes(2), 3)])
    with pytest.raises(ValueError, match="no states"):
        me.merge_states([])


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([state(reader(0)), state(reader(1, 3))], "runs with different numbers of readers"),
        ([state(reader(0)), state(reader(0, turns=1)), state(reader(1))], "two different states of reader 0"),
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
        (
            [state(reader(0)), state(reader(1)), NOT_BEGUN],
            "each of the 2 readers has a state, and 1 state more",
        ),
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


def shards(folder, ranks=2, lanes=2):
    return [
        me.read(folder).shuffle(1, window=9).filter(is_kept).lanes(lanes).shard(ranks, rank) for rank in range(ranks)
    ]


def epochs_of(folder, count, lanes=2):
    """The ids of each epoch, as one process delivers them."""
    dataset = shards(folder, 1, lanes)[0]
    return [ids(dataset) for _ in range(count)]


def rest(folder, merged, epochs, ranks=3, lanes=2):
    """What other ranks deliver of each epoch from a merged state on."""
    got = [[] for _ in range(epochs)]
    for dataset in shards(folder, ranks, lanes):
        dataset.load_state_dict(json.loads(json.dumps(merged)))
        while (epoch := dataset.epoch) < epochs:
            got[epoch] += ids(dataset)
    return got


def test_E4_ranks_several_epochs_apart_merge_until_a_state_has_forgotten(folder):
    for epochs in range(1, 6):
        ahead, behind = shards(folder)
        for _ in range(epochs):
            list(ahead)
        states = [after(behind, 3), after(ahead, 4)]
        if epochs <= 4:
            merged = me.merge_states(states)
            assert [one["epoch"] for one in merged["later"]] == list(range(1, epochs + 1))
            left = list(map(len, rest(folder, merged, epochs + 1)))
            whole = list(map(len, epochs_of(folder, epochs + 1)))
            of_ahead = len(ids(shards(folder)[0]))
            assert (left[0], left[-1]) == (whole[0] - of_ahead - 3, whole[-1] - 4)
        else:
            with pytest.raises(
                me.CheckpointMismatchError,
                match=r"State 0 \(from 0\) is in epoch 0 and state 1 in epoch 5.*keeps the last 4 epochs.*in_step",
            ):
                me.merge_states(states)
