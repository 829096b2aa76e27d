"""The public checks: they pass for correct pipelines, and their errors name the first item that differs."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import midepoch as me
from midepoch import testing
from midepoch.testing import assert_elastic, assert_resumes, same
from worlds import is_kept, plus_one, write_files


@pytest.fixture
def dataset(tmp_path):
    return me.read(write_files(tmp_path / "data", [9, 8], ["stream"], block=4)).select_columns(["id", "tokens"])


NAN = float("nan")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": 1, "y": [1, None]}, {"x": 1, "y": [1, None]}),
        (NAN, NAN),
        (np.array([1.0, NAN]), np.array([1.0, NAN])),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
        (pa.record_batch({"x": [1.0, NAN]}), pa.record_batch({"x": [1.0, NAN]})),
    ],
    ids=repr,
)
def test_equal_items_are_the_same(one, other):
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ({"x": 1, "y": 2}, {"y": 2, "x": 1}),
        ([1], (1,)),
        (np.array([1]), np.array([1.0])),
        (np.zeros((0, 2)), np.zeros((0, 3))),
        (np.array([1]), torch.tensor([1])),
        (pa.record_batch({"x": pa.array([1], pa.int8())}), pa.record_batch({"x": pa.array([1], pa.int16())})),
        (NAN, 1.0),
    ],
    ids=repr,
)
def test_items_that_differ_in_value_type_or_shape_are_not_the_same(one, other):
    assert not same(one, other)
    assert not same(other, one)


def test_correct_pipelines_pass_and_the_dataset_stays_where_it_is(dataset):
    staged = dataset.shuffle(seed=1, window=6).map(plus_one).filter(is_kept).batch(2)
    staged.set_epoch(3)
    before = staged.state_dict()
    assert_resumes(staged)
    assert_resumes(staged, every=3)
    assert_elastic(staged.lanes(4), [(2, 2), (3, 1), (1, 3)])
    assert_elastic(dataset.shuffle(seed=1), [(2, 1), (1, 2)], steps=3)
    assert staged.state_dict() == before


class Unsteady:
    """A function whose result depends on how often it was called."""

    def __init__(self, after):
        self.calls, self.after = 0, after

    def __call__(self, row):
        self.calls += 1
        return {"late": self.calls > self.after}


def test_an_item_that_differs_is_named_with_its_columns_and_values(dataset):
    with pytest.raises(AssertionError) as caught:
        assert_resumes(dataset.take(6).map(Unsteady(after=6)))
    message = str(caught.value)
    assert message.startswith(
        "Item 0 of a run that stopped after 0 items and again after 1 differs from the uninterrupted run in 'late':\n"
    )
    assert "expected {'id': 0, 'tokens': [], 'late': False}" in message
    assert "got      {'id': 0, 'tokens': [], 'late': True}" in message


def test_a_missing_and_an_additional_item_are_named(dataset, monkeypatch):
    rest_of, calls = testing._rest_of, []

    def first_call_only(change):
        def changed(*arguments):
            calls.append(1)
            items = list(rest_of(*arguments))
            return change(items) if len(calls) == 1 else items

        return changed

    monkeypatch.setattr(testing, "_rest_of", first_call_only(lambda items: [*items, {"id": 99}]))
    with pytest.raises(
        AssertionError, match=r"(?s)Item 4 is missing from .* 4 items instead of 5:.*expected {'id': 99}"
    ):
        assert_resumes(dataset.take(4))
    calls.clear()
    monkeypatch.setattr(testing, "_rest_of", first_call_only(lambda items: items[:-1]))
    with pytest.raises(AssertionError, match=r"(?s)Item 3 is one too many in .* 4 items instead of 3:.*got +{'id': 3,"):
        assert_resumes(dataset.take(4))


def test_an_error_of_a_change_of_readers_names_the_layouts(dataset):
    with pytest.raises(AssertionError, match="of a run on 2 ranks of 1 worker, then 1 rank of 2 workers differs"):
        assert_elastic(dataset.map(Unsteady(after=17)).lanes(2), [(2, 1), (1, 2)])


def test_a_state_that_changes_when_it_is_loaded_is_shown(dataset, monkeypatch):
    monkeypatch.setattr(me.Dataset, "load_state_dict", lambda self, state: None)
    with pytest.raises(AssertionError, match=r"(?s)The state after 1 item changed when it was loaded.*loaded .*saved "):
        assert_resumes(dataset)


def test_items_that_come_out_of_order_are_compared_whole(tmp_path):
    # The first of three lanes runs out at once. Two ranks then get out of step, and their items come in another order.
    rows = [np.r_[np.zeros(2000), number, np.zeros(2000)].tolist() for number in range(20)]
    pq.write_table(pa.table({"x": rows}), tmp_path / "a.parquet")
    dataset = me.read(tmp_path).with_format("numpy").filter(lambda row: row["x"][2000] >= 6)
    assert_elastic(dataset.lanes(3), [(2, 1), (1, 1)], steps=4)


def test_wrong_arguments_raise(dataset):
    with pytest.raises(ValueError, match="every is 0; it must be at least 1"):
        assert_resumes(dataset, every=0)
    with pytest.raises(ValueError, match="needs at least one layout"):
        assert_elastic(dataset, [])
