"""Checksums: the same for the same state in any container, and another after any change that matters."""

import copy
import io
import json

import numpy as np
import pytest

import midepoch as me
from midepoch.checkpoint.lanes import LanePosition
from midepoch.checkpoint.state import LanePositions, State, check_checksum, signed
from midepoch.integrations.structured import StructuredDataset
from midepoch.integrations.torchdata import from_stateful_dataloader
from worlds import is_kept, write_files

FINGERPRINT = {
    "data": {"files": 1, "rows": 9, "digest": "00", "sums": [1 << 63, 2, 3, 4], "list": [["ü.arrow", 7, 9]]},
    "pipeline": [{"op": "mix", "weights": [2.0, 0.5], "seed": 3, "names": ["a", "b"], "stop": None, "map": True}],
}
POSITIONS = LanePositions(((1, LanePosition((4,), (1, 3))), (2, LanePosition((3,)))))
STATE = State(epoch=2, lanes=3, turn=7, positions=POSITIONS, appended=(((0, 1),),)).to_dict(FINGERPRINT)


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", [20, 0, 7, 33])


def after(dataset, items):
    iterator = iter(dataset)
    for _ in range(items):
        next(iterator)
    return dataset.state_dict()


def as_tuples(value):
    if isinstance(value, dict):
        return {key: as_tuples(one) for key, one in value.items()}
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def in_another_order(value):
    if isinstance(value, dict):
        return {key: in_another_order(value[key]) for key in reversed(value)}
    return [in_another_order(one) for one in value] if isinstance(value, list) else value


def as_arrays(value):
    """Numbers as NumPy's, and lists of integers as arrays."""
    if isinstance(value, dict):
        return {key: as_arrays(one) for key, one in value.items()}
    if isinstance(value, list):
        return np.array(value) if all(type(one) is int for one in value) else [as_arrays(one) for one in value]
    return np.int64(value) if type(value) is int else np.float64(value) if isinstance(value, float) else value


def with_short_numbers(value):
    """As JSON writers of other languages write it: 2 for 2.0."""
    if isinstance(value, dict):
        return {key: with_short_numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [with_short_numbers(one) for one in value]
    return int(value) if isinstance(value, float) and value == int(value) else value


def through_torch(value):
    import torch

    file = io.BytesIO()
    torch.save(value, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


@pytest.mark.parametrize(
    "change",
    [
        copy.deepcopy,
        lambda state: json.loads(json.dumps(state)),
        lambda state: json.loads(json.dumps(state, indent=2, sort_keys=True, ensure_ascii=False)),
        as_tuples,
        in_another_order,
        as_arrays,
        with_short_numbers,
        through_torch,
        lambda state: {**state, "current_file_index": 3, "note": object()},
    ],
    ids=["copy", "json", "sorted json", "tuples", "order", "arrays", "short", "torch", "other keys"],
)
def test_a_checksum_fits_the_same_state_in_any_container(change):
    check_checksum(change(STATE))


def test_a_state_without_a_checksum_passes():
    check_checksum({key: value for key, value in STATE.items() if key != "checksum"})


@pytest.mark.parametrize("key", [key for key in STATE if key != "checksum"])
def test_no_covered_key_can_be_dropped_or_replaced(key):
    message = r"changed or damaged after it was saved.*as state_dict\(\) returned it, or an earlier checkpoint"
    for damaged in ({k: v for k, v in STATE.items() if k != key}, {**STATE, key: 1 if STATE[key] != 1 else 2}):
        with pytest.raises(me.CheckpointMismatchError, match=message):
            check_checksum(damaged)


@pytest.mark.parametrize("checksum", [None, 7, "", "00", STATE["checksum"].upper(), STATE["checksum"] + "0"])
def test_another_checksum_is_refused(checksum):
    with pytest.raises(me.CheckpointMismatchError, match="changed or damaged"):
        check_checksum({**STATE, "checksum": checksum})


def test_the_checksum_of_a_saved_state_never_changes():
    assert STATE["checksum"] == "df0a2ae8841d395b"
    assert signed(STATE) == STATE


@pytest.mark.parametrize(
    "value", [{1: 2}, {"a": object()}, {"a": b"bytes"}, {"a": {1, 2}}], ids=["key", "object", "bytes", "set"]
)
def test_values_that_no_state_has_are_refused(value):
    with pytest.raises(me.CheckpointMismatchError, match="damaged: it has a"):
        check_checksum({**STATE, "fingerprint": value})


def test_states_that_are_made_of_others_have_their_checksum(folder, tmp_path):
    def build(rank, ranks):
        return me.read(folder).filter(is_kept).lanes(2).shard(ranks, rank)

    states = [after(build(rank, 2), 4) for rank in range(2)]
    old = {key: value for key, value in after(me.read(folder), 4).items() if key != "checksum"}
    small = write_files(tmp_path / "small", [20])
    structured = after(StructuredDataset(small, shuffle=False), 5)
    write_files(tmp_path / "small", [20, 4])
    dataset = StructuredDataset(small, shuffle=False)
    dataset.load_state_dict(structured, new_files="append")
    made = [me.merge_states(states), me.merge_states([old, old]), dataset.state_dict()]
    made.append(from_stateful_dataloader({"dataset_state": after(me.read(folder), 4)}))
    for state in made:
        assert state == signed(state)
        check_checksum(state)
