import numpy as np
import pyarrow as pa
import pytest
import torch

from midepoch.values.to_arrow import common_type, is_known, to_arrow

LISTS = pa.list_(pa.int32())


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ([[1, 2], [], [3]], LISTS),
        ([[], [1]], LISTS),
        ([[1, 2**40]], pa.list_(pa.int64())),
        ([[1], None], pa.list_(pa.int64())),
        ([[1, 2.5]], pa.list_(pa.float64())),
        ([[True, False]], pa.list_(pa.bool_())),
        ([1, 2], pa.int64()),
        (["a", None], pa.string()),
        ([b"a"], pa.binary()),
        ([{"a": [1]}], pa.struct([("a", pa.list_(pa.int64()))])),
        ([np.arange(3, dtype=np.uint16), np.arange(2, dtype=np.uint16)], pa.list_(pa.uint16())),
        ([np.arange(3), None], pa.list_(pa.int64())),
        ([np.zeros((2, 2), np.float32)], pa.list_(pa.list_(pa.float64()))),
        ([torch.arange(3, dtype=torch.int32), torch.arange(1, dtype=torch.int32)], LISTS),
        (np.zeros((2, 3), np.int8), pa.list_(pa.int8())),
        (np.zeros((2, 3, 4), np.float32), pa.list_(pa.list_(pa.float32()))),
        (torch.zeros((2, 3)), pa.list_(pa.float32())),
        (np.arange(3, dtype=np.int16), pa.int16()),
        (pa.array([1, 2], pa.int8()), pa.int8()),
        (pa.chunked_array([[1], [2]]), pa.int64()),
    ],
)
def test_the_type_that_fits_the_values(column, kind):
    made = to_arrow(column)
    assert made.type == kind
    plain = [value.tolist() if hasattr(value, "tolist") else value for value in column]
    expected = column.to_pylist() if isinstance(column, pa.Array | pa.ChunkedArray) else plain
    assert made.to_pylist() == expected


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ([[1], [2]], pa.list_(pa.int64())),
        ([[], []], LISTS),
        ([None, None], LISTS),
        ([1, 2], pa.float64()),
        ([np.arange(2, dtype=np.int16)], LISTS),
        (["a"], pa.large_string()),
        (pa.array([1], pa.int8()), pa.int64()),
        (pa.array(["a", "a"]).dictionary_encode(), pa.string()),
    ],
)
def test_values_that_can_be_widened_to_a_type(column, kind):
    assert to_arrow(column, kind).type == kind


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ([1.5, 2], pa.int64()),
        ([[1.0]], LISTS),
        ([[2**31]], LISTS),
        ([[True]], LISTS),
        (["1"], pa.int64()),
        ([1], pa.string()),
        ([1], pa.null()),
        ([1, "a"], None),
        (np.array([1.0]), pa.int64()),
        (np.array([2**40]), pa.int32()),
    ],
)
def test_values_that_would_change_are_refused(column, kind):
    with pytest.raises((pa.ArrowException, TypeError, ValueError)):
        to_arrow(column, kind)


def test_a_type_of_nulls_is_replaced_by_one_that_is_known():
    unknown = pa.struct([("a", pa.list_(pa.null())), ("b", pa.int8())])
    known = pa.struct([("a", LISTS), ("b", pa.int8())])
    assert not is_known(unknown)
    assert is_known(known)
    assert common_type(unknown, known) == known
    assert common_type(pa.null(), pa.string()) == pa.string()
    assert common_type(pa.int32(), pa.int64()) == pa.int32()
