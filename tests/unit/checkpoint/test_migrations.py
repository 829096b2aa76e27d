"""States of older versions load for ever: they are upgraded step by step, everywhere a state is read.

Most of these tests make up two versions after the present one, 2: version 2 called a state's turn "next_turn" and had
no "mode", version 3 renamed the turn, and version 4 added the mode.
"""

import copy
import json
from itertools import zip_longest
from pathlib import Path

import pytest

import midepoch as me
from golden.write import PIPELINES
from midepoch.checkpoint import migrations
from midepoch.checkpoint.migrations import MIGRATIONS, VERSION, upgrade
from midepoch.integrations.structured.dataset import StructuredDataset
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
    monkeypatch.setattr(migrations, "VERSION", 4)
    monkeypatch.setattr(migrations, "MIGRATIONS", {**MIGRATIONS, 2: rename_the_turn, 3: add_the_mode})


def as_version_2(state):
    """A state as version 2 of the made-up history would have saved it."""
    old = copy.deepcopy(state)
    if old["version"] == 1:
        old = MIGRATIONS[1](old)
    old["version"] = 2
    old["next_turn"] = old.pop("turn")
    old["fingerprint"]["stages"] = old["fingerprint"].pop("pipeline")
    del old["mode"]
    old.pop("checksum", None)  # that of the present keys
    return old


def golden(path, tmp_path):
    values = json.loads(path.read_text())
    folder = write_files(tmp_path / "data", [20, 0, 7, 33], kinds=["stream"])
    return PIPELINES[values["pipeline"]](me.read(folder)), as_version_2(values["state"]), values["rest"]


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
    assert dataset.state_dict()["version"] == 4
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

    states = [as_version_2(state_after(build(rank, 2), 4)) for rank in range(2)]
    alone = build(0, 1)
    alone.load_state_dict(me.merge_states(states))
    assert ids(alone) == ids(build(0, 1))[8:]


def test_old_and_present_states_of_one_step_are_merged(tmp_path, later_release):
    folder = write_files(tmp_path / "data", [20])
    states = [state_after(me.read(folder).lanes(2).shard(2, rank), 3) for rank in range(2)]
    assert me.merge_states([as_version_2(states[0]), states[1]]) == states[1]


@pytest.mark.parametrize("since", [0, 3])
def test_old_checkpoints_of_several_workers_are_read(tmp_path, later_release, since):
    """Two workers of a uniform pipeline, which delivered 4 and 3 items, and since then maybe 3 in turn."""
    folder = write_files(tmp_path / "data", [40])
    whole = ids(me.read(folder).lanes(2))
    begun = state_after(me.read(folder).lanes(2), 0)
    start = {**begun, "lanes": 2, "cursors": [[2, 0]]}
    parts = [{"readers": 2, "workers": 2, "items": items} for items in (4, 3)]
    snapshots = {
        f"worker_{number}": {"dataset_state": as_version_2({**start, "part": part})}
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
    state = as_version_2(state_after(StructuredDataset(folder, shuffle=False), 5))
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
        (5, "version 5; this midepoch reads versions 1 to 4. A newer release wrote it: install that release"),
        (0, "version 0; this midepoch reads versions 1 to 4. There is no such version.* load an earlier checkpoint"),
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
    with pytest.raises(me.CheckpointMismatchError, match=r"version 2 is damaged \(KeyError: 'next_turn'\)"):
        upgrade({"version": 2, "fingerprint": {}})


OLD = sorted((Path(__file__).parents[2] / "golden").glob("0.1.0-*.json"))
DOORS = Path(__file__).parents[2] / "golden" / "front_doors"


def read_golden(path, tmp_path):
    """The dataset of a golden state, the state, and the rows that come next."""
    values = json.loads(path.read_text())
    folder = write_files(tmp_path / "data", [20, 0, 7, 33], kinds=["stream"])
    return lambda: PIPELINES[values["pipeline"]](me.read(folder)), values["state"], values["rest"]


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_an_epoch_of_version_1_ends_in_its_order_and_the_next_has_windows_of_blocks(tmp_path, path):
    build, state, rest = read_golden(path, tmp_path)
    resumed, fresh = build(), build()
    resumed.load_state_dict(state)
    assert resumed.state_dict()["windows"] == "rows"
    assert ids(resumed) == rest
    fresh.set_epoch(1)
    assert ids(resumed) == ids(fresh)


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_states_that_are_saved_in_an_epoch_of_version_1_keep_its_order(tmp_path, path):
    build, state, rest = read_golden(path, tmp_path)
    delivered = []
    while len(delivered) < len(rest):  # resumed again after every item
        resumed = build()
        resumed.load_state_dict(state)
        delivered += ids([next(iter(resumed))])
        state = json.loads(json.dumps(resumed.state_dict()))
        assert state["version"] == VERSION
        if len(delivered) < len(rest):
            assert state["windows"] == "rows"
    assert delivered == rest


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_an_epoch_of_version_1_ends_in_its_order_on_other_readers(tmp_path, ranks):
    build, state, rest = read_golden(GOLDEN[0].with_name("0.1.0-uniform.json"), tmp_path)
    batches = []
    for rank in range(ranks):
        resumed = build().shard(ranks, rank)
        resumed.load_state_dict(state)
        batches.append([ids([batch]) for batch in resumed])
    in_turn = [batch for turn in zip_longest(*batches, fillvalue=[]) for batch in turn]
    assert [row for batch in in_turn for row in batch] == rest


def test_an_epoch_of_version_1_that_has_not_begun_has_windows_of_blocks(tmp_path):
    build, state, _ = read_golden(GOLDEN[0].with_name("0.1.0-uniform.json"), tmp_path)
    begun = build()
    not_begun = {**state, "epoch": 1, "lanes": None, "turn": 0, "cursors": []}
    begun.load_state_dict(not_begun)
    assert "windows" not in begun.state_dict()
    fresh = build()
    fresh.set_epoch(1)
    assert ids(begun) == ids(fresh)


def test_a_structured_dataset_ends_an_epoch_of_version_1_in_its_order(tmp_path):
    values = json.loads((DOORS / "0.1.0-structured.json").read_text())
    folder = write_files(tmp_path / "data", [20, 0, 7, 33], kinds=["stream"])
    options = {"shuffle": True, "shuffle_seed": 1, "shuffle_buffer_size": 12, "split_rows": 10}
    resumed = StructuredDataset(folder, **options)
    resumed.load_state_dict(values["state"])
    assert resumed.state_dict()["splits_under_way"] == values["state"]["splits_under_way"]
    assert ids(resumed) == values["rest"]


def test_a_hugging_face_dataset_ends_an_epoch_of_version_1_in_its_order(tmp_path):
    values = json.loads((DOORS / "0.1.0-huggingface.json").read_text())
    folder = write_files(tmp_path / "data", [20, 0, 7, 33], kinds=["stream"])
    resumed = me.SimpleArrowIterableDataset(sorted(map(str, folder.glob("*.arrow")))).shuffle(
        1, level="block", window=12
    )
    resumed.load_state_dict(values["state"])
    assert resumed.state_dict()["current_example_index"] == values["state"]["current_example_index"]
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
