"""Golden states of version 1 load for ever, and what is no state of that version is refused with a remedy."""

import json
from pathlib import Path

import pytest

import midepoch as me
from golden.write import DOORS, PIPELINES, golden_files
from midepoch.checkpoint.state import VERSION, checked_state
from midepoch.integrations.torchdata import from_stateful_dataloader
from worlds import ids

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*.json"))
WAYS = {
    "loaded": lambda state: state,
    "merged": lambda state: me.merge_states([state, state]),
    "of a StatefulDataLoader": lambda state: from_stateful_dataloader({"dataset_state": state}),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_states_load(tmp_path, path, way):
    values = json.loads(path.read_text())
    dataset = PIPELINES[values["pipeline"]](me.read(golden_files(tmp_path / "data")))
    dataset.load_state_dict(way(values["state"]))
    assert dataset.state_dict()["version"] == VERSION == 1
    assert ids(dataset) == values["rest"]


@pytest.mark.parametrize("name", DOORS)
def test_golden_states_of_front_doors_load(tmp_path, name):
    values = json.loads((GOLDEN[0].parent / "front_doors" / f"v1-{name}.json").read_text())
    resumed = DOORS[name](golden_files(tmp_path / "data"))
    resumed.load_state_dict(values["state"])
    assert json.loads(json.dumps(resumed.state_dict())) == values["state"]
    assert ids(resumed) == values["rest"]


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (2, "version 2; this midepoch reads version 1. A newer release wrote it: install that release"),
        (0, "version 0; this midepoch reads version 1. There is no such version.* load an earlier checkpoint"),
        ("1", "version '1';.*no such version"),
        (True, "version True;.*no such version"),
    ],
)
@pytest.mark.parametrize("read", [checked_state, lambda values: me.merge_states([values])], ids=["one", "merged"])
def test_other_versions_are_refused_with_a_remedy(version, message, read):
    with pytest.raises(me.CheckpointMismatchError, match=message):
        read({"version": version})
