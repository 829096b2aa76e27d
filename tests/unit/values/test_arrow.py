"""Arrow columns in every form: Python values equal to_pylist, arrays are views, tensors are copies."""

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from columns import DAYS, SCALARS, STAMPS, TYPES, table_of, with_nulls
from files import KINDS, numbers, write
from midepoch.formats.base import as_read
from midepoch.testing import same
from midepoch.values.columns import arrow_batches, arrow_columns, to_python


@pytest.mark.parametrize("nulls", [False, True], ids=["full", "nulls"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TYPES)
def test_python_values_are_those_of_to_pylist(tmp_path, name, kind, nulls):
    arrow_type, plain = TYPES[name]
    batches = table_of(arrow_type, with_nulls(plain) if nulls else plain)
    path = write(tmp_path / "a.data", batches, kind)
    expected = [row for batch in batches for row in batch.to_pylist()]
    assert repr(list(me.read(path))) == repr(expected)
    shuffled = sorted(me.read(path).shuffle(seed=1, level="row"), key=lambda row: row["id"])
    assert repr(shuffled) == repr(expected)
    for size in (1, 2, 5):
        columns = list(me.read(path).batch(size))
        rows = [dict(zip(one, row, strict=True)) for one in columns for row in zip(*one.values(), strict=True)]
        assert repr(rows) == repr(expected)


@pytest.mark.parametrize("form", ["numpy", "torch", "arrow"])
@pytest.mark.parametrize("name", TYPES)
def test_a_row_looks_the_same_whatever_rows_are_beside_it(tmp_path, name, form):
    arrow_type, plain = TYPES[name]
    path = write(tmp_path / "a.arrow", table_of(arrow_type, with_nulls(plain)))
    dataset = me.read(path).with_format(form)
    together = list(dataset)
    alone = [row for number in range(5) for row in me.read(path).skip(number).take(1).with_format(form)]
    assert len(together) == 5
    for one, other in zip(together, alone, strict=True):
        assert same(one, other)


@pytest.mark.parametrize("nulls", [False, True], ids=["full", "nulls"])
@pytest.mark.parametrize("form", ["numpy", "torch", "arrow"])
@pytest.mark.parametrize("name", TYPES)
def test_batches_sliced_from_many_rows_equal_batches_converted_alone(name, form, nulls):
    arrow_type, plain = TYPES[name]
    column = [None, *(with_nulls(plain) if nulls else plain)] + plain * 2
    kind = as_read(pa.schema({"v": arrow_type})).field("v").type
    whole = pa.record_batch({"id": range(16), "v": pa.array(column, kind)}).slice(1)
    for size in (1, 2, 4, 7, 20):
        cut = list(arrow_batches(whole, size, form))
        alone = [arrow_columns(whole.slice(at, size), form) for at in range(0, 15, size)]
        assert len(cut) == len(alone)
        assert all(map(same, cut, alone))


ODD = [float("nan"), -0.0, float("inf"), -float("inf"), 5e-324, 0.1, 16_777_217.0]


LISTS = {
    **{name: TYPES[name] for name in SCALARS},
    "float16": (pa.float16(), np.array([1, 0.5, np.nan, -0.0, np.inf], np.float16).tolist()),
    "float32_odd": (pa.float32(), ODD),
    "float64_odd": (pa.float64(), ODD),
    "mixed_text": (pa.string(), ["ascii", "größer", "", "\U0001f600", "a\0b"]),
}


@pytest.mark.parametrize("name", LISTS)
def test_to_python_equals_to_pylist_in_values_and_types(name):
    arrow_type, plain = LISTS[name]
    for column in (pa.array(plain, arrow_type), pa.array(with_nulls(plain), arrow_type)):
        for start, stop in ((0, len(plain)), (1, 4), (1, 2), (3, 5), (2, 2)):
            part = column.slice(start, stop - start)
            made = to_python(part)
            assert type(made) is list
            assert repr(made) == repr(part.to_pylist())
            assert list(map(type, made)) == list(map(type, part.to_pylist()))


def dictionary_batches(*dictionaries):
    """One batch for each dictionary. Its column holds the values of the dictionary in reverse order."""
    return [
        pa.record_batch(
            {"v": pa.DictionaryArray.from_arrays(pa.array(range(len(words) - 1, -1, -1), pa.int32()), pa.array(words))}
        )
        for words in dictionaries
    ]


@pytest.mark.parametrize(
    ("kind", "options", "dictionaries"),
    [
        ("stream", {}, [["a", "b"], ["c", "d", "e"], ["f"]]),
        ("stream", {"emit_dictionary_deltas": True}, [["a"], ["a", "b"], ["a", "b", "c"]]),
        ("stream", {"emit_dictionary_deltas": True}, [["a", "b"], ["x"], ["x", "y"]]),
        ("file", {"emit_dictionary_deltas": True}, [["a"], ["a", "b"], ["a", "b", "c"]]),
        ("file", {}, [["a", "b"], ["a", "b"], ["a", "b"]]),
        ("parquet", {}, [["a", "b"], ["c", "d", "e"], ["f"]]),
    ],
    ids=["replaced", "deltas", "deltas-then-replaced", "file-deltas", "file-same", "parquet"],
)
def test_dictionaries_that_differ_between_batches(tmp_path, kind, options, dictionaries):
    batches = dictionary_batches(*dictionaries)
    path = write(tmp_path / "a.arrow", batches, kind, **options)
    expected = [word for words in dictionaries for word in reversed(words)]
    assert [row["v"] for row in me.read(path)] == expected
    assert [word for one in me.read(path).batch(2) for word in one["v"]] == expected
    assert [word for one in me.read(path).with_format("numpy").batch(4) for word in one["v"]] == expected
    last = me.read(path).skip(len(expected) - 1)
    assert [row["v"] for row in last] == expected[-1:]


@pytest.mark.parametrize("kind", [name for name in SCALARS if name.startswith(("int", "uint", "bool"))])
@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_integers_with_nulls_never_become_floats(tmp_path, kind, form):
    arrow_type, plain = TYPES[kind]
    full = [*plain[:2], None, *plain[3:]]
    path = write(tmp_path / "a.arrow", pa.record_batch({"v": pa.array(full, arrow_type)}))
    (batch,) = me.read(path).with_format(form).batch(5)
    assert list(batch["v"]) == full
    assert {type(value) for value in batch["v"]} == {type(plain[0]), type(None)}
    rows = [row["v"] for row in me.read(path).with_format(form)]
    assert rows[2] is None
    assert [row.item() for row in rows if row is not None] == [value for value in full if value is not None]
    assert {str(row.dtype).removeprefix("torch.") for row in rows if row is not None} == {kind}


def test_null_floats_are_nan_and_null_times_nat(tmp_path):
    columns = {
        "f": pa.array([1.5, None], pa.float32()),
        "t": pa.array([STAMPS[0], None], pa.timestamp("us")),
        "d": pa.array([DAYS[0], None], pa.date32()),
    }
    path = write(tmp_path / "a.arrow", pa.record_batch(columns))
    (batch,) = me.read(path).with_format("numpy").batch(2)
    assert batch["f"].dtype == np.float32
    assert np.isnan(batch["f"][1])
    assert batch["t"].dtype == "datetime64[us]"
    assert np.isnat(batch["t"][1])
    assert batch["d"].dtype == "datetime64[D]"
    assert np.isnat(batch["d"][1])
    assert batch["d"][0] == np.datetime64("2020-02-27")


@pytest.mark.parametrize("name", [name for name in SCALARS if name.startswith(("int", "uint", "float", "bool"))])
def test_numbers_become_tensors_of_their_type(tmp_path, name):
    arrow_type, plain = TYPES[name]
    dataset = me.read(write(tmp_path / "a.data", table_of(arrow_type, plain))).with_format("torch")
    (batch,) = dataset.batch(5)
    assert (str(batch["v"].dtype), batch["v"].tolist()) == (f"torch.{name}", plain)
    assert [(row["v"].shape, row["v"].item()) for row in dataset] == [((), value) for value in plain]


def test_tensors_are_writable_and_independent_of_the_file(tmp_path):
    path = write(tmp_path / "a.arrow", pa.record_batch({"v": pa.array(range(8)), "m": pa.array([[1.0, 2.0]] * 8)}))
    before = path.read_bytes()
    (batch,) = me.read(path).with_format("torch").batch(8)
    batch["v"][:] = 99
    batch["m"] += 1
    row = next(iter(me.read(path).with_format("torch")))
    row["m"].zero_()
    (again,) = me.read(path).with_format("torch").batch(8)
    assert again["v"].tolist() == list(range(8))
    assert again["m"].tolist() == [[1.0, 2.0]] * 8
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", KINDS)
def test_the_form_arrow_yields_record_batches_of_one_row_or_of_a_batch(tmp_path, kind):
    batches = [numbers(0, 3), numbers(3, 5)]
    path = write(tmp_path / "a.data", batches, kind)
    rows = list(me.read(path).with_format("arrow"))
    assert all(isinstance(row, pa.RecordBatch) and row.num_rows == 1 for row in rows)
    assert [row["x"][0].as_py() for row in rows] == [0, 1, 2, 3, 4]
    assert rows[0].schema == batches[0].schema
    out = list(me.read(path).with_format("arrow").batch(2))
    assert [one["x"].to_pylist() for one in out] == [[0, 1], [2, 3], [4]]
    assert all(isinstance(one, pa.RecordBatch) for one in out)


def test_extension_types_read_as_arrow_reads_them(tmp_path):
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 2])
    storage = pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.float32(), 4))
    batch = pa.record_batch({"v": pa.ExtensionArray.from_storage(kind, storage)})
    path = write(tmp_path / "a.arrow", batch)
    assert list(me.read(path)) == batch.to_pylist()
    (out,) = me.read(path).with_format("numpy").batch(2)
    assert out["v"].tolist() == storage.to_pylist()


@pytest.mark.parametrize("kind", ["stream", "parquet"])
def test_reading_no_columns_yields_empty_rows(tmp_path, kind):
    path = write(tmp_path / "a.data", [numbers(0, 2), numbers(2, 3)], kind)
    rows = list(me.read(path, columns=[]))
    assert rows == [{}, {}, {}]
    assert rows[0] is not rows[1]


def test_column_names_can_be_anything(tmp_path):
    names = ["a'b", 'q"', "new\nline", "{x}", "", "class", "v0", "c0", "größe"]
    batch = pa.record_batch([pa.array([number]) for number in range(len(names))], names=names)
    path = write(tmp_path / "a.arrow", batch)
    assert list(me.read(path)) == batch.to_pylist()
