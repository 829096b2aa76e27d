"""Items, batches and columns put together."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch

import midepoch as me
from files import numbers, write
from midepoch.testing import same
from midepoch.values.arrow import standalone
from midepoch.values.convert import join_columns, join_others


def test_arrow_batches_promote_types_that_were_inferred_row_by_row(tmp_path):
    path = write(tmp_path / "a.arrow", numbers(0, 2))
    dataset = me.read(path).map(lambda row: {"y": None if row["x"] == 0 else 1.5}).with_format("arrow").batch(2)
    (out,) = dataset
    assert out.to_pylist() == [{"x": 0, "y": None}, {"x": 1, "y": 1.5}]


def test_a_batch_of_rows_with_different_keys_raises_and_names_both(tmp_path):
    path = write(tmp_path / "a.arrow", numbers(0, 2))
    dataset = me.read(path).map(lambda row: {"odd": 1} if row["x"] % 2 else {}).batch(2)
    with pytest.raises(ValueError, match=r"same columns, but one has \['x'\] and another \['x', 'odd'\]"):
        list(dataset)


@pytest.mark.parametrize("values", [[float("nan"), None, 1.0], [[float("nan")], [1.0], None]], ids=["null", "lists"])
def test_batches_whose_dictionaries_arrow_cannot_join_are_still_sent(values):
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0], pa.int32()), pa.array(values))
    batch = pa.record_batch({"x": coded}).slice(1, 2)
    assert same(standalone(batch).to_pylist(), batch.to_pylist())
    assert same(pickle.loads(pickle.dumps(standalone(batch))).to_pylist(), batch.to_pylist())


def test_parts_of_a_column_join_to_an_array_a_tensor_or_a_list():
    assert same(join_columns([np.array([1]), np.array([2, 3])], "numpy"), np.array([1, 2, 3]))
    assert same(join_columns([torch.tensor([1]), torch.tensor([2])], "torch"), torch.tensor([1, 2]))
    assert join_columns([["a"], ["b", "c"]], "python") == ["a", "b", "c"]
    ragged = join_columns([np.ones((1, 2)), np.ones((1, 3))], "numpy")
    assert [row.shape for row in ragged] == [(2,), (3,)]


def test_other_columns_of_samples_join_end_to_end_without_those_that_are_none():
    first, second = np.ones((1, 2)), np.zeros((2, 2))
    assert join_others("x", [None, None], "numpy") is None
    assert same(join_others("x", [first, None, second], "numpy"), np.concatenate([first, second]))
    assert same(join_others("x", [first, torch.zeros(2, 2)], "torch").shape, torch.Size([3, 2]))
    assert join_others("x", ["a", None], "numpy") == ["a", None]
    with pytest.raises(ValueError, match=r"'x' has arrays of the shapes \('n', 2\) and \('n', 3\) in samples"):
        join_others("x", [np.ones((1, 3)), first], "numpy")
