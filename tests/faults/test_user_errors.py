"""A user's function that raises: the row is told, nothing behind it is lost, and the run goes on after the fix."""

import json
from itertools import islice

import pytest

import midepoch as me
from files import KINDS, write_numbers
from midepoch.stages.pack.stream import DOCUMENTS_AT_ONCE

ROWS = 60


class Fault:
    """A function that fails at one value until it is fixed."""

    broken = True

    def __init__(self, at):
        self.at = at

    def __call__(self, row):
        if self.broken and row["x"] == self.at:
            raise KeyError("missing in this row")
        return {"y": row["x"] * 10}


@pytest.fixture
def folder(tmp_path):
    for number, kind in enumerate(KINDS):
        write_numbers(tmp_path / "data" / f"{number}.arrow", 20 * number, 20 * number + 20, kind, rows=6)
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def _broken_again():
    yield
    Fault.broken = True


def run_into(dataset):
    """What the loop received before the error, the error, and the state at that moment."""
    got = []
    with pytest.raises(KeyError) as caught:
        got.extend(dataset)
    return got, caught.value, json.loads(json.dumps(dataset.state_dict()))


def resumed(pipeline, state):
    Fault.broken = False
    dataset = pipeline()
    dataset.load_state_dict(state)
    return list(dataset)


def uninterrupted(pipeline):
    Fault.broken = False
    whole = list(pipeline())
    Fault.broken = True
    return whole


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("level", [None, "file", "block", "row"])
@pytest.mark.parametrize("at", [0, 33, 59])
def test_the_error_tells_file_and_row_and_the_run_goes_on_exactly(folder, level, at, batch):
    """A batch with the row is not delivered, and comes whole after the fix."""

    def pipeline():
        rows = me.read(folder) if level is None else me.read(folder).shuffle(seed=3, level=level)
        return rows.map(Fault(at)).batch(batch)

    whole = uninterrupted(pipeline)
    got, error, state = run_into(pipeline())
    assert got == whole[: [at in columns["x"] for columns in whole].index(True)]
    assert error.__notes__ == [f"midepoch: in map(Fault), at row {at % 20} of {at // 20}.arrow"]
    assert got + resumed(pipeline, state) == whole


def test_in_a_filter(folder):
    class Check(Fault):
        def __call__(self, row):
            return super().__call__(row)["y"] % 20 == 0

    def pipeline():
        return me.read(folder).filter(Check(41))

    whole = uninterrupted(pipeline)
    got, error, state = run_into(pipeline())
    assert [row["x"] for row in got] == list(range(0, 41, 2))
    assert "in filter(" in error.__notes__[0]
    assert "at row 1 of 2.arrow" in error.__notes__[0]
    assert got + resumed(pipeline, state) == whole


def double_all(part):
    if Fault.broken and 33 in part["x"]:
        raise KeyError("missing in this batch")
    return {"x": [value for value in part["x"] for _ in range(2)]}


def test_in_a_batched_function_the_rows_before_its_group_are_delivered(folder):
    def pipeline():
        return me.read(folder).map(double_all, batched=True, batch_size=9)

    whole = uninterrupted(pipeline)
    got, error, state = run_into(pipeline())
    assert got == whole[: 2 * 27]
    assert "in map(double_all)" in error.__notes__[0]
    assert got + resumed(pipeline, state) == whole


def not_four(row):
    return row["x"] != 4


def test_two_ranks_of_which_one_fails_go_on_as_one_from_their_merged_states(folder):
    def pipeline():
        return me.read(folder).filter(not_four).map(Fault(36))

    ranks = [pipeline().shard(2, rank) for rank in range(2)]
    got = [[row["x"] for row in islice(iter(rank), 3)] for rank in ranks]
    ranks[1].load_state_dict(ranks[1].state_dict())
    rest, _, _ = run_into(ranks[1])
    got[1] += [row["x"] for row in rest]
    assert got == [[0, 1, 2], [30, 31, 32, 33, 34, 35]]
    merged = me.merge_states(json.loads(json.dumps(rank.state_dict())) for rank in ranks)
    after = [row["x"] for row in resumed(pipeline, merged)]
    assert sorted([*got[0], *got[1], *after]) == [value for value in range(ROWS) if value != 4]


@pytest.mark.parametrize("strategy", ["best_fit", "first_fit", "balanced", "concat"])
@pytest.mark.parametrize("at", [0, 19, 37, 59])
def test_a_tokeniser_that_fails_inside_a_window_of_packs(folder, strategy, at):
    def tokens(row):
        return {"input_ids": [row["y"]] * (1 + row["x"] % 7)}

    def pipeline():
        rows = me.read(folder).map(Fault(at)).map(tokens)
        return rows.pack(9, strategy=strategy, window=8).with_format("python")

    whole = uninterrupted(pipeline)
    got, error, state = run_into(pipeline())
    assert got == whole[: len(got)]
    assert f"at row {at % 20} of {at // 20}.arrow" in error.__notes__[0]
    if strategy == "concat":  # every pack that was full before the row, and the few that are read with it
        assert len(got) == sum(1 + number % 7 for number in range(at - at % DOCUMENTS_AT_ONCE)) // 9
    assert got + resumed(pipeline, state) == whole
