"""Rows of parts of mixtures, as users name them."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from midepoch.dataset import plan_of
from midepoch.pipeline.adopt import without


@pytest.fixture
def nested(tmp_path):
    """A mixture whose second part is a mixture. Two parts have a file of the same name."""
    parts = {}
    for number, (part, file) in enumerate([("a", "x"), ("b", "x"), ("c", "y")]):
        folder = tmp_path / part
        folder.mkdir()
        pq.write_table(pa.table({"id": range(number * 10, number * 10 + 3)}), folder / f"{file}.parquet")
        parts[part] = me.read(folder)
    inner = me.mix({"b": parts["b"], "c": parts["c"]}, weights=[1, 1], stop="all")
    return me.mix({"a": parts["a"], "inner": inner}, weights=[1, 1], stop="all")


def ids(dataset):
    return sorted(row["id"] for row in dataset)


def test_rows_are_named_by_file_or_by_the_path_of_their_part(nested):
    everything = {0, 1, 2, 10, 11, 12, 20, 21, 22}
    assert ids(nested.without([("y.parquet", 1)])) == sorted(everything - {21})
    rows = [("a", "x.parquet", 0), ("inner/b", "x.parquet", 2), ("inner", "y.parquet", 0)]
    assert ids(nested.without(rows)) == sorted(everything - {0, 12, 20})
    first = nested.head(1)[0]["id"]
    assert ids(nested.without(me.Loader(nested).trace(0))) == sorted(everything - {first})
    assert ids(nested.without([])) == sorted(everything)


def test_parts_that_lose_nothing_stay_as_they_are(nested):
    source = plan_of(nested).pipeline.source
    edited = without(plan_of(nested).pipeline, [("a", "x.parquet", 0)]).source
    assert edited.parts[0] is not source.parts[0]
    assert edited.parts[1] is source.parts[1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("x.parquet", 0)], "several parts of the mixture have: a, inner"),
        ([("inner/z", "x.parquet", 0)], "the part 'z', which the mixture does not have: b, c"),
        ([("a", "y.parquet", 0)], "which the dataset does not have"),
        ([("a", "x.parquet", 3)], "which has 3 rows"),
        ([("z.parquet", 0)], "which no part of the mixture has"),
    ],
)
def test_rows_that_no_part_has_are_refused(nested, rows, message):
    with pytest.raises(ValueError, match=message):
        nested.without(rows)
