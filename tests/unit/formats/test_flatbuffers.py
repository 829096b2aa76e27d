"""Reading flatbuffer tables, of which writers leave out the last fields if these have their defaults."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch.formats.flatbuffers import field_at, four_fields_at


@given(st.lists(st.integers(0, 40), max_size=7), st.booleans(), st.binary(max_size=12))
def test_four_fields_are_those_that_are_looked_up_one_by_one(distances, vtable_is_last, rest):
    """The layout of a table may lie before or after it, with other bytes or nothing behind."""
    vtable = struct.pack(f"<HH{len(distances)}H", 4 + 2 * len(distances), 4, *distances)
    if vtable_is_last:
        data, table = struct.pack("<i", -4) + vtable + rest, 0
    else:
        data, table = vtable + struct.pack("<i", len(vtable)) + rest, len(vtable)
    assert list(four_fields_at(data, table)) == [field_at(data, table, number) for number in range(4)]


def test_a_layout_outside_of_the_data_raises():
    with pytest.raises(struct.error):
        four_fields_at(struct.pack("<i", -100), 0)
