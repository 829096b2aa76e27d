from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from files import write_numbers
from midepoch.pipeline import units
from midepoch.pipeline.units import RowPass, Unit, checked_version, cut_units, data_identity, unit_bytes


@given(blocks=st.lists(st.tuples(st.integers(0, 5), st.floats(0, 3)), max_size=40))
def test_units_are_whole_blocks_that_cover_all_rows_once(blocks):
    rows = np.array([count for count, _ in blocks], np.int64)
    weights = np.array([weight for _, weight in blocks])
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    made = cut_units(starts, weights)
    assert [unit.number for unit in made] == list(range(len(made)))
    assert (made[0].begin, made[-1].end) == (0, starts[-1])
    assert all(one.end == other.begin for one, other in pairwise(made))
    assert {unit.begin for unit in made} <= set(starts.tolist())
    assert all(unit.begin < unit.end for unit in made) or made == [Unit(0, 0, 0)]
    for unit in made:
        inside = (starts[:-1] >= unit.begin) & (starts[1:] <= unit.end)
        blocks_with_rows = weights[inside & (rows > 0)]
        assert blocks_with_rows[:-1].sum() <= 1 + 1e-9  # the last one may be heavy


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, units.SMALLEST_UNIT), (512 << 23, 8 << 20), (1 << 50, units.LARGEST_UNIT)],
)
def test_small_data_has_small_units_and_large_data_units_of_64_mb(size, expected):
    assert unit_bytes(size) == expected


def test_the_rows_of_a_unit_have_their_numbers_as_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(units, "SMALLEST_UNIT", 1)
    for number in range(2):
        write_numbers(tmp_path / f"{number}.arrow", 10 * number, 10 * number + 10)
    rows = RowPass(pipeline=me.read(tmp_path).filter(lambda row: row["x"] % 3).plan.pipeline)
    opened = rows.source.open(1)
    keys = [[key for _, _, key in rows.flow(opened, unit).as_single_items()] for unit in rows.units()]
    assert len(keys) == 6
    assert [key for some in keys for key in some] == [row for row in range(20) if row % 3]


def test_the_identity_of_data_changes_with_a_file(tmp_path):
    path = write_numbers(tmp_path / "a.arrow", 0, 10)
    before = data_identity(me.read(path).file_rows("").index.view)
    assert before == data_identity(me.read(path).shuffle().file_rows("").index.view)
    write_numbers(tmp_path / "a.arrow", 1, 11)
    assert before != data_identity(me.read(path).file_rows("").index.view)


def test_a_version_is_none_text_or_an_integer():
    assert [checked_version(version) for version in (None, "a", 3)] == [None, "a", 3]
    with pytest.raises(TypeError, match=r"version is 1.5; it can be a string, an integer, or left out"):
        checked_version(1.5)
