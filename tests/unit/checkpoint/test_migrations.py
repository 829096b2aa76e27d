"""States of older versions load for ever: they are upgraded step by step, everywhere a state is read.

Most of these tests make up two versions after the present one, 1: version 1 called a state's turn "next_turn" and had
no "mode", version 2 renamed the turn, and version 3 added the mode.
"""

import copy
import json
from pathlib import Path

import pytest

import midepoch as me
from golden.write import DOORS, PIPELINES, golden_files
from midepoch.checkpoint import versions as migrations
from midepoch.checkpoint.versions import MIGRATIONS, VERSION, upgrade
from midepoch.integrations.structured import StructuredDataset
from midepoch.integrations.torchdata import from_stateful_dataloader
from worlds import ids, is_kept, write_files

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*.json"))


def rename_the_turn(values):
    values["turn"] = values.pop("next_turn")  # in place: an upgrade must not change what it was given
    values["fingerprint"]["pipeline"] = values["fingerprint"].pop("stages")
    return values


def add_the_mode(values):
    return {**values, "mode": "example"}


@pytest.fixture
def later_release(monkeypatch):
    monkeypatch.setattr(migrations, "VERSION", 3)
    monkeypatch.setattr(migrations, "MIGRATIONS", {**MIGRATIONS, 1: rename_the_turn, 2: add_the_mode})


def as_version_1(state):
    """A state as version 1 of the made-up history would have saved it."""
    old = copy.deepcopy(state)
    old["version"] = 1
    old["next_turn"] = old.pop("turn")
    old["fingerprint"]["stages"] = old["fingerprint"].pop("pipeline")
    del old["mode"]
    old.pop("checksum", None)  # that of the present keys
    return old


def golden(path, tmp_path):
    values = json.loads(path.read_text())
    folder = golden_files(tmp_path / "data")
    return PIPELINES[values["pipeline"]](me.read(folder)), as_version_1(values["state"]), values["rest"]


def state_after(dataset, items):
    iterator = iter(dataset)
    for _ in range(items):
        next(iterator)
    return json.loads(json.dumps(dataset.state_dict()))


def test_every_older_version_has_a_migration():
    assert sorted(MIGRATIONS) == list(range(1, VERSION))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_old_states_load(tmp_path, later_release, path):
    dataset, state, rest = golden(path, tmp_path)
    dataset.load_state_dict(state)
    assert dataset.state_dict()["version"] == 3
    assert ids(dataset) == rest


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_old_states_are_merged(tmp_path, later_release, path):
    dataset, state, rest = golden(path, tmp_path)
    dataset.load_state_dict(me.merge_states([state, state]))
    assert ids(dataset) == rest


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_old_checkpoints_of_a_stateful_dataloader_are_read(tmp_path, later_release, path):
    dataset, state, rest = golden(path, tmp_path)
    dataset.load_state_dict(from_stateful_dataloader({"dataset_state": state}))
    assert ids(dataset) == rest


def test_old_states_of_several_ranks_are_merged(tmp_path, later_release):
    folder = write_files(tmp_path / "data", [20, 13])

    def build(rank, ranks):
        return me.read(folder).filter(is_kept).lanes(4).shard(ranks, rank)

    states = [as_version_1(state_after(build(rank, 2), 4)) for rank in range(2)]
    alone = build(0, 1)
    alone.load_state_dict(me.merge_states(states))
    assert ids(alone) == ids(build(0, 1))[8:]


def test_old_and_present_states_of_one_step_are_merged(tmp_path, later_release):
    folder = write_files(tmp_path / "data", [20])
    states = [state_after(me.read(folder).lanes(2).shard(2, rank), 3) for rank in range(2)]
    assert me.merge_states([as_version_1(states[0]), states[1]]) == states[1]


@pytest.mark.parametrize("since", [0, 3])
def test_old_checkpoints_of_several_workers_are_read(tmp_path, later_release, since):
    """Two workers of a uniform pipeline, which delivered 4 and 3 items, and since then maybe 3 in turn."""
    folder = write_files(tmp_path / "data", [40])
    whole = ids(me.read(folder).lanes(2))
    begun = state_after(me.read(folder).lanes(2), 0)
    start = {**begun, "lanes": 2, "cursors": [[2, 0]]}
    parts = [{"readers": 2, "workers": 2, "items": items} for items in (4, 3)]
    snapshots = {
        f"worker_{number}": {"dataset_state": as_version_1({**start, "part": part})}
        for number, part in enumerate(parts)
    }
    checkpoint = {
        "_snapshot": {"_worker_snapshots": snapshots, "_last_yielded_worker_id": 0},
        "_steps_since_snapshot": since,
    }
    resumed = me.read(folder).lanes(2)
    resumed.load_state_dict(from_stateful_dataloader(checkpoint, batch_size=1))
    assert ids(resumed) == whole[7 + since :]


def test_old_states_load_when_files_were_appended(tmp_path, later_release):
    folder = write_files(tmp_path / "data", [20])
    state = as_version_1(state_after(StructuredDataset(folder, shuffle=False), 5))
    write_files(tmp_path / "data", [20, 4])
    resumed = StructuredDataset(folder, shuffle=False)
    resumed.load_state_dict(state, new_files="append")
    assert ids(resumed) == list(range(5, 24))


def test_an_upgrade_does_not_change_its_argument(tmp_path, later_release):
    _, state, _ = golden(GOLDEN[0], tmp_path)
    before = copy.deepcopy(state)
    upgraded = upgrade(state)
    assert state == before
    assert "next_turn" not in upgraded
    upgraded["epoch"] = 7
    assert state == before


def test_an_upgrade_of_a_present_state_keeps_all_its_keys():
    state = {"version": VERSION, "epoch": 1, "extra": [1, 2]}
    assert upgrade(state) == state


@pytest.mark.parametrize(("version", "steps"), [(1, [1, 2]), (2, [2]), (3, [])])
def test_only_the_steps_from_a_states_version_are_taken(monkeypatch, version, steps):
    def migration(old):
        return lambda values: {**values, "steps": [*values["steps"], old]}

    monkeypatch.setattr(migrations, "VERSION", 3)
    monkeypatch.setattr(migrations, "MIGRATIONS", {old: migration(old) for old in (1, 2)})
    assert upgrade({"version": version, "steps": []}) == {"version": 3, "steps": steps}


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (5, "version 5; this midepoch reads versions 1 to 3. A newer release wrote it: install that release"),
        (0, "version 0; this midepoch reads versions 1 to 3. There is no such version.* load an earlier checkpoint"),
        (-1, "version -1;.*no such version"),
        ("1", "version '1';.*no such version"),
        (1.0, "version 1.0;.*no such version"),
        (True, "version True;.*no such version"),
        (None, "version None;.*no such version"),
        ([1], r"version \[1\];.*no such version"),
    ],
)
@pytest.mark.parametrize("read", [upgrade, lambda values: me.merge_states([values])], ids=["upgrade", "merge_states"])
def test_other_versions_are_refused_with_a_remedy(later_release, version, message, read):
    with pytest.raises(me.CheckpointMismatchError, match=message):
        read({"version": version})


@pytest.mark.parametrize("values", [None, 3, [], {}, {"epoch": 1}])
def test_other_values_are_no_states(values):
    with pytest.raises(me.CheckpointMismatchError, match=r"not a midepoch state.*Pass what state_dict"):
        upgrade(values)


def test_an_old_state_that_cannot_be_upgraded_is_damaged(later_release):
    with pytest.raises(me.CheckpointMismatchError, match=r"version 1 is damaged \(KeyError: 'next_turn'\)"):
        upgrade({"version": 1, "fingerprint": {}})


@pytest.mark.parametrize("name", DOORS)
def test_states_of_front_doors_load(tmp_path, name):
    values = json.loads((GOLDEN[0].parent / "front_doors" / f"v1-{name}.json").read_text())
    resumed = DOORS[name](golden_files(tmp_path / "data"))
    resumed.load_state_dict(values["state"])
    assert json.loads(json.dumps(resumed.state_dict())) == values["state"]
    assert ids(resumed) == values["rest"]


def test_window_sizes_of_another_pipeline_are_refused_and_named(tmp_path):
    folder = write_files(tmp_path / "data", [20])
    state = state_after(me.read(folder).shuffle(1, window_blocks=4), 3)
    with pytest.raises(me.CheckpointMismatchError, match="window_blocks of stage 1, shuffle, was 4 then and is 16 now"):
        me.read(folder).shuffle(1).load_state_dict(state)
    with pytest.raises(me.CheckpointMismatchError, match="window_bytes of stage 1, shuffle, was 536870912 then"):
        me.read(folder).shuffle(1, window_blocks=4, window_bytes="1GiB").load_state_dict(
            state_after(me.read(folder).shuffle(1, window_blocks=4), 3)
        )
