"""Files read by the ids of their columns."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import midepoch as me
from files import write
from midepoch.dataset import Dataset, from_source
from midepoch.dataset.read import ReadOptions
from midepoch.errors import DataFormatError
from midepoch.formats import Block
from midepoch.index.build import open_index
from midepoch.index.filters import Where
from midepoch.integrations.iceberg import (
    FIELD_ID,
    FieldIdIndex,
    TableBlocks,
    TableColumns,
    fields_inside,
    id_of,
)


def field(name, kind, number):
    return pa.field(name, kind, metadata={FIELD_ID: str(number)})


def batch(fields, *columns):
    arrays = [pa.array(column, one.type) for column, one in zip(columns, fields, strict=True)]
    return pa.record_batch(arrays, schema=pa.schema(fields))


OLD = [field("a", pa.int32(), 1), field("b", pa.int32(), 2)]
NEW = [field("b", pa.int64(), 1), field("c", pa.string(), 7), field("a", pa.int64(), 2)]


@pytest.fixture
def index(tmp_path):
    """Columns that were called a and b: they exchanged their names, became wider and got one between them."""
    write(tmp_path / "0.parquet", [batch(OLD, [1, 2], [10, 20]), batch(OLD, [3, 4], [30, 40])], "parquet")
    write(tmp_path / "1.parquet", batch(NEW, [5], ["x"], [50]), "parquet")
    return FieldIdIndex(open_index(tmp_path), TableColumns(schema=pa.schema(NEW)))


def rows(index, columns=None, filters=None):
    return list(from_source(ReadOptions(columns=columns, filters=filters).rows(index), Dataset))


def test_statistics_are_those_of_the_column_and_not_of_its_name(index):
    assert [index.stored_name(0, name) for name in "abc"] == ["b", "a", None]
    assert rows(index, ["b"], pc.field("b") <= 2) == [{"b": 1}, {"b": 2}]
    assert Where.of(index, pc.field("b") <= 2).blocks.tolist() == [True, False, False]
    assert Where.of(index, pc.field("a") >= 30).blocks.tolist() == [False, True, True]
    assert rows(index, ["b"], pc.field("c") == "x") == [{"b": 5}]


def test_a_type_that_does_not_fit_is_named(tmp_path):
    write(tmp_path / "0.parquet", batch([field("a", pa.string(), 1)], ["x"]), "parquet")
    with pytest.raises(DataFormatError, match=r"0\.parquet: 'a' is string, which does not become int64"):
        rows(FieldIdIndex(open_index(tmp_path), TableColumns(schema=pa.schema([field("a", pa.int64(), 1)]))))
    assert len(me.read(tmp_path)) == 1


def ids(fields):
    """The ids of fields and of those inside of them."""
    return [(id_of(field), ids(fields_inside(field.type))) for field in fields]


def test_slices_of_maps_keep_their_rows_and_nulls():
    def of(kind):
        key = pa.field("key", pa.string(), nullable=False, metadata={FIELD_ID: "2"})
        return field("m", pa.map_(key, field("value", kind, 3)), 1)

    class Sliced:
        def read(self, block):
            return batch([of(pa.int32())], [[("a", n)] if n % 3 else None for n in range(9)]).slice(2, 5)

    wanted = pa.schema([of(pa.int64())])
    read = TableBlocks(Sliced(), [of(pa.int32())], wanted, "file", TableColumns(schema=wanted)).read(Block(0, 0, 0, 5))
    assert read["m"].to_pylist() == [[("a", n)] if n % 3 else None for n in range(2, 7)]
