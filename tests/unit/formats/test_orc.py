"""ORC: every stripe is a block."""

import pyarrow as pa
import pytest
from pyarrow import orc

import midepoch as me
from files import values
from midepoch.formats import scan_file
from midepoch.testing import assert_resumes
from worlds import table


def write_stripes(path, rows, stripe):
    orc.write_table(rows, path, stripe_size=1, batch_size=stripe)
    return path


@pytest.mark.parametrize("name", ["a.orc", "a.data"])
def test_all_rows_of_many_stripes(tmp_path, name):
    rows = table(0, 100)
    path = write_stripes(tmp_path / name, rows, 7)
    scan = scan_file(str(path))
    assert scan.format == "orc"
    assert [count for _, _, count in scan.blocks] == [7] * 14 + [2]
    assert list(me.read(path)) == rows.to_pylist()
    assert next(iter(me.read(path).skip(57))) == rows.to_pylist()[57]
    assert sorted(values(me.read(path).shuffle(1), "id")) == list(range(100))
    assert_resumes(me.read(path).shuffle(1, window=10).lanes(2), every=17)


def test_rows_are_counted_where_no_column_is_narrow(tmp_path):
    rows = pa.table({"l": [[1, 2], None, []], "s": ["a", None, "c"]})
    assert list(me.read(write_stripes(tmp_path / "a.orc", rows, 1))) == rows.to_pylist()


def test_a_truncated_file_is_an_error_that_names_it(tmp_path):
    whole = write_stripes(tmp_path / "whole", table(0, 50), 10).read_bytes()
    path = tmp_path / "cut.orc"
    for size in (3, 4, 10, 100, len(whole) // 2, len(whole) - 20, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(me.DataFormatError, match=r"cut\.orc is damaged or no ORC file"):
            me.read(path)


def test_a_stripe_that_cannot_be_decoded_names_the_file(tmp_path):
    path = write_stripes(tmp_path / "a.orc", pa.table({"x": range(4000), "s": ["word"] * 4000}), 1000)
    damaged = bytearray(path.read_bytes())
    middle = slice(len(damaged) // 4, len(damaged) // 2)
    damaged[middle] = b"\xff" * len(damaged[middle])
    path.write_bytes(damaged)
    with pytest.raises(me.DataFormatError, match=r"a\.orc"):
        list(me.read(path))
