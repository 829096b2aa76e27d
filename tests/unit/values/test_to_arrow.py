import numpy as np
import pyarrow as pa
import pytest
import torch

from midepoch.values.convert import to_arrow, widened

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
        (pa.array(["a", "b"]).dictionary_encode(), pa.string()),
    ],
)
def test_the_type_that_fits_the_values(column, kind):
    made = to_arrow(column)
    assert made.type == kind
    plain = [value.tolist() if hasattr(value, "tolist") else value for value in column]
    expected = column.to_pylist() if isinstance(column, pa.Array | pa.ChunkedArray) else plain
    assert made.to_pylist() == expected


@pytest.mark.parametrize("column", [[1, "a"], [[1], "a"], [{"a": 1}, 2]])
def test_values_without_a_common_type_are_refused(column):
    with pytest.raises((pa.ArrowException, TypeError, ValueError)):
        to_arrow(column)


@pytest.mark.parametrize(
    ("one", "other", "wide"),
    [
        (pa.null(), pa.string(), pa.string()),
        (pa.list_(pa.null()), LISTS, LISTS),
        (LISTS, pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.struct([("a", pa.null())]), pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8())])),
    ],
)
def test_the_type_that_holds_both(one, other, wide):
    for first, second in ((one, other), (other, one)):
        assert widened(pa.schema([("x", first)]), pa.schema([("x", second)])) == pa.schema([("x", wide)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.string(), pa.int64()),
        (pa.bool_(), pa.int64()),
        (pa.string(), pa.binary()),
        (pa.list_(pa.string()), pa.list_(pa.large_binary())),
        (LISTS, pa.int32()),
    ],
)
def test_types_that_nothing_holds_are_refused(one, other):
    for first, second in ((one, other), (other, one)):
        with pytest.raises(pa.ArrowTypeError, match="incompatible types"):
            widened(pa.schema([("x", first)]), pa.schema([("x", second)]))


def test_other_columns_are_refused():
    with pytest.raises(ValueError, match=r"columns are \['x'\] and \['y'\]"):
        widened(pa.schema([("x", LISTS)]), pa.schema([("y", LISTS)]))
