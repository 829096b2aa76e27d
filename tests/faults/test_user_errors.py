"""A user's function that raises: the row is told, nothing behind it is lost, and the run goes on after the fix."""

import json
from itertools import islice

import pytest

import midepoch as me
from files import KINDS, write_numbers

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


@pytest.mark.parametrize("at", [0, 1, 19, 20, 37, 59])
def test_the_error_tells_file_and_row_and_the_run_goes_on_exactly(folder, at):
    def pipeline():
        return me.read(folder).map(Fault(at))

    whole = uninterrupted(pipeline)
    got, error, state = run_into(pipeline())
    assert got == whole[:at]
    assert error.__notes__ == [f"midepoch: in map(Fault), at row {at % 20} of {at // 20}.arrow"]
    assert got + resumed(pipeline, state) == whole


@pytest.mark.parametrize("level", ["file", "block", "row"])
@pytest.mark.parametrize("at", [0, 33, 59])
def test_of_a_shuffled_run_the_row_is_told_where_it_lies(folder, level, at):
    def pipeline():
        return me.read(folder).shuffle(seed=3, level=level).map(Fault(at))

    whole = uninterrupted(pipeline)
    before = [row["x"] for row in whole].index(at)
    got, error, state = run_into(pipeline())
    assert got == whole[:before]
    assert f"at row {at % 20} of {at // 20}.arrow" in error.__notes__[0]
    assert got + resumed(pipeline, state) == whole


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_with_a_bad_row_is_not_delivered_and_comes_whole_after_the_fix(folder, drop_last):
    def pipeline():
        return me.read(folder).map(Fault(25)).batch(8, drop_last_batch=drop_last)

    whole = uninterrupted(pipeline)
    got, error, state = run_into(pipeline())
    assert got == whole[:3]
    assert "at row 5 of 1.arrow" in error.__notes__[0]
    assert got + resumed(pipeline, state) == whole


def test_behind_a_filter(folder):
    def pipeline():
        return me.read(folder).filter(lambda row: row["x"] % 7 in (1, 2)).map(Fault(22))

    whole = uninterrupted(pipeline)
    got, error, state = run_into(pipeline())
    assert [row["x"] for row in got] == [1, 2, 8, 9, 15, 16]
    assert "at row 2 of 1.arrow" in error.__notes__[0]
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


def test_the_same_dataset_continues_from_its_own_state_in_a_second_loop(folder):
    dataset = me.read(folder).map(Fault(25))
    got, _, state = run_into(dataset)
    dataset.load_state_dict(state)
    again, _, state = run_into(dataset)
    assert again == []
    Fault.broken = False
    dataset.load_state_dict(state)
    assert [row["x"] for row in [*got, *dataset]] == list(range(ROWS))


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
    if strategy == "concat":  # every pack that was full before the row
        assert len(got) == sum(1 + number % 7 for number in range(at)) // 9
    assert got + resumed(pipeline, state) == whole


def test_arrow_needs_values_of_one_type_and_names_the_column(tmp_path):
    path = write_numbers(tmp_path / "a.arrow", 0, 8, rows=8)
    mixed = me.read(path).map(_mixed).with_format("arrow")
    with pytest.raises(me.SchemaMismatchError, match="one type in each column, but 'mixed' has values of several"):
        list(mixed)
    batched = me.read(path).map(_mixed_columns, batched=True).with_format("arrow").batch(4)
    with pytest.raises(me.SchemaMismatchError, match="'mixed' has values of several"):
        list(batched)
    single = me.read(path).with_format("arrow").map(lambda row: _mixed(row)).batch(4)
    with pytest.raises(me.SchemaMismatchError, match="'mixed' has values of several"):
        list(single)


def _mixed(row):
    return {"mixed": [1, {"a": 2}]}


def _mixed_columns(columns):
    return {"mixed": [1 if row % 2 else {"a": 2} for row in columns["x"]]}


def test_select_columns_of_what_is_no_dict_or_has_no_such_column_is_told(tmp_path):
    dataset = me.read(write_numbers(tmp_path / "a.arrow", 0, 8, rows=8))
    with pytest.raises(TypeError, match="select_columns needs items that are dicts, got a int"):
        list(dataset.map(lambda row: 1).select_columns("x"))
    with pytest.raises(me.SchemaMismatchError, match=r"there is no column 'nope'\. There are: x"):
        list(dataset.map(lambda row: {}).with_format("arrow").select_columns("nope"))


def test_a_batched_function_of_what_is_no_dict_is_told_in_every_form(tmp_path):
    dataset = me.read(write_numbers(tmp_path / "a.arrow", 0, 8, rows=8)).map(lambda row: "text")
    for form in ("python", "numpy", "torch"):
        with pytest.raises(TypeError, match="needs dict items to make columns of, but got str"):
            list(dataset.with_format(form).filter(lambda columns: [True], batched=True))
