"""Values that user functions return, in the form that with_format asks for."""

import numpy as np
import pyarrow as pa
import pytest
import torch

import midepoch as me
from files import numbers, write
from midepoch.testing import same
from midepoch.values.convert import convert, convert_each, convert_values


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_with_format_before_and_after_map_yield_the_same_values(tmp_path, form):
    path = write(tmp_path / "a.arrow", [numbers(0, 3), numbers(3, 5)])

    def double(row):
        return {"y": row["x"] * 2}

    after = list(me.read(path).map(double).with_format(form).batch(2))
    before = list(me.read(path).with_format(form).map(double).batch(2))
    array = np.ndarray if form == "numpy" else torch.Tensor
    for one, other in zip(after, before, strict=True):
        assert isinstance(one["y"], array)
        assert same(one, other)
    assert [value for one in after for value in one["y"].tolist()] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("form", ["numpy", "torch", "arrow"])
def test_batched_map_gets_columns_in_its_form_and_with_format_python_restores_them(tmp_path, form):
    columns = {"x": pa.array([1, 2, 3]), "l": pa.array([[1, 2], [3], []]), "m": pa.array([[1, 2]] * 3)}
    batch = pa.record_batch(columns)
    path = write(tmp_path / "a.arrow", batch)
    seen = []

    def look(part):
        seen.append(type(part["x"]))
        return part

    back = me.read(path).with_format(form).map(look, batched=True, batch_size=3).with_format("python")
    assert repr(list(back)) == repr(batch.to_pylist())
    assert seen == [{"numpy": np.ndarray, "torch": torch.Tensor, "arrow": pa.Int64Array}[form]]


def test_items_that_are_not_dicts_can_be_batched_but_not_converted_to_arrow(tmp_path):
    path = write(tmp_path / "a.arrow", numbers(0, 3))
    assert list(me.read(path).map(lambda row: row["x"]).batch(2)) == [[0, 1], [2]]
    with pytest.raises(TypeError, match="needs items that are dicts"):
        list(me.read(path).map(lambda row: row["x"]).with_format("arrow"))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([1, 2], np.array([1, 2])),
        ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
        ([np.ones(2), np.ones(3)], [np.ones(2), np.ones(3)]),
        (["a", 1], np.array(["a", 1], object)),
        ([[1], []], np.fromiter([[1], []], object, 2)),
        ([None, 1], np.array([None, 1], object)),
    ],
    ids=str,
)
def test_columns_of_user_functions_as_numpy(column, expected):
    assert same(convert(column, "numpy"), expected)


def test_what_torch_cannot_hold_stays_a_list():
    assert convert(["a", 1], "torch") == ["a", 1]
    assert same(convert([[1, 2], [3]], "torch"), [torch.tensor([1, 2]), torch.tensor([3])])
    assert same(convert(np.array([1.5]), "torch"), torch.tensor([1.5], dtype=torch.float64))


def test_each_value_converts_as_if_it_were_alone():
    together, alone = [1, None, 2.5, [1, 2]], [1, 2]
    assert [type(value) for value in convert_each(together, "numpy")] == [np.int64, type(None), np.float64, np.ndarray]
    assert same(convert_each(alone, "numpy"), np.array([1, 2]))
    assert convert_values({"a": np.array([1]), "b": "x"}, "python") == {"a": [1], "b": "x"}
