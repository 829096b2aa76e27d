"""Rows picked from slices of batches and tables, for every nesting of types that Arrow gets wrong."""

import numpy as np
import pyarrow as pa
import pytest

from midepoch.values.arrow import LONG_BYTES, gather, take

PAIR = pa.list_(pa.list_(pa.int16(), 2), 2)


def pair(number):
    return [[4 * number, 4 * number + 1], [4 * number + 2, 4 * number + 3]]


class Matrix(pa.ExtensionType):
    def __init__(self):
        super().__init__(PAIR, "unit.matrix")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        return cls()


NESTED = {
    "as an extension": (Matrix(), pair),
    "fixed": (pa.list_(pa.int16(), 2), lambda n: [n, n + 1]),
    "fixed of fixed": (PAIR, pair),
    "three deep": (pa.list_(PAIR, 2), lambda n: [pair(n), pair(n + 1)]),
    "with nulls": (PAIR, lambda n: pair(n) if n % 3 else None),
    "in a struct": (pa.struct({"a": PAIR, "b": pa.int8()}), lambda n: {"a": pair(n), "b": n}),
    "in a list": (pa.list_(PAIR), lambda n: [pair(n)] * (n % 3)),
    "in a map": (pa.map_(pa.string(), PAIR), lambda n: [("k", pair(n))]),
    "of strings": (pa.list_(pa.list_(pa.string(), 1), 2), lambda n: [[f"a{n}"], [f"b{n}"]]),
    "of lists": (pa.list_(pa.list_(pa.int16()), 2), lambda n: [[n], [n, n]]),
}


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("start", [0, 7])
def test_take_picks_the_rows_of_the_slice(name, start):
    kind, make = NESTED[name]
    values = [make(number) for number in range(20)]
    whole = pa.record_batch({"id": range(20), "v": pa.array(values, kind)}).slice(start)
    rows = whole.to_pylist()
    indices = np.array([5, 0, 3, 3, 9])
    for data in (whole, pa.Table.from_batches([whole.slice(0, 4), whole.slice(4)])):
        assert take(data, indices).to_pylist() == [rows[index] for index in indices]
        assert take(data, indices).schema == whole.schema


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("bytes_of_a_list", [LONG_BYTES // 4, LONG_BYTES * 4])
@pytest.mark.parametrize("value", ["int8", "uint16", "int32", "int64", "uint64", "halffloat", "double"])
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list], ids=["list", "large list"])
def test_long_lists_are_picked_as_arrow_picks_them(kind, value, bytes_of_a_list, start):
    rng, dtype = np.random.default_rng(1), pa.type_for_alias(value)
    items = bytes_of_a_list * 8 // dtype.bit_width
    lengths = rng.integers(items // 2, items * 2, 40) * (rng.random(40) > 0.2)
    values = [rng.integers(0, 100, length).astype(dtype.to_pandas_dtype()) for length in lengths]
    column = pa.array(values, kind(pa.field("token", dtype, nullable=False)))
    schema = pa.schema([pa.field("v", column.type, nullable=False, metadata={"a": "b"}), ("id", pa.int8())], {"c": "d"})
    batch = pa.RecordBatch.from_arrays([column, pa.array(range(40), pa.int8())], schema=schema).slice(start)
    for indices in (rng.permutation(len(batch)), np.array([2, 2, 0]), np.array([5]), np.empty(0, np.int64)):
        taken = take(batch, indices)
        taken.validate(full=True)
        assert taken.equals(batch.take(pa.array(indices)), check_metadata=True)


@pytest.mark.parametrize("hole", ["list", "value"])
def test_long_lists_with_nulls_are_picked_as_arrow_picks_them(hole):
    values = [list(range(LONG_BYTES)) for _ in range(5)]
    if hole == "list":
        values[2] = None
    else:
        values[2][7] = None
    batch = pa.record_batch({"v": pa.array(values, pa.list_(pa.int32()))})
    indices = np.array([4, 2, 0])
    assert take(batch, indices).equals(batch.take(pa.array(indices)))


@pytest.mark.parametrize("length", [3, LONG_BYTES])
def test_rows_of_several_batches_are_gathered_in_any_order(length):
    rng = np.random.default_rng(length)
    rows = [{"v": rng.integers(0, 99, rng.integers(0, 2 * length)).tolist(), "id": number} for number in range(60)]
    kind = pa.schema([("v", pa.list_(pa.int16())), ("id", pa.int64())])
    batches = [pa.RecordBatch.from_pylist(rows[start : start + 23], kind).slice(1) for start in (0, 20, 37)]
    for _ in range(20):
        parts = [(batch, rng.permutation(len(batch))[: rng.integers(1, 22)]) for batch in batches]
        chosen = [batch.slice(int(row), 1).to_pylist()[0] for batch, own in parts for row in own]
        places = rng.permutation(len(chosen))[: rng.integers(0, len(chosen))]
        gathered = gather(parts, places)
        gathered.validate(full=True)
        assert gathered.schema == kind
        assert gathered.to_pylist() == [chosen[place] for place in places]
