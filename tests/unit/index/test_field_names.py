"""Ids of fields, from files and from the names of a table."""

import pyarrow as pa

from midepoch.index.field_names import FIELD_ID, NamedField, fields_inside, have_ids, id_of, with_ids


def numbered(name, kind, number):
    return pa.field(name, kind, metadata={FIELD_ID: str(number)})


def ids(fields):
    """The ids of fields and of those inside of them."""
    return [(id_of(field), ids(fields_inside(field.type))) for field in fields]


def test_a_field_without_an_id_inside_counts_as_none():
    inner = pa.struct([numbered("x", pa.int64(), 2), pa.field("y", pa.int64())])
    assert have_ids([numbered("s", pa.struct([numbered("x", pa.int64(), 2)]), 1)])
    assert not have_ids([numbered("s", inner, 1)])
    assert have_ids([])


def test_names_give_ids_to_all_that_is_inside():
    point = pa.struct([("x", pa.int64()), ("other", pa.int64())])
    kinds = {
        "s": point,
        "l": pa.list_(point),
        "f": pa.list_(point, 2),
        "g": pa.large_list(point),
        "m": pa.map_(pa.string(), point),
        "unknown": point,
    }
    inside = {"x": NamedField(2, {})}
    element = {"element": NamedField(3, inside)}
    names = {
        "s": NamedField(1, inside),
        **dict.fromkeys("lfg", NamedField(1, element)),
        "m": NamedField(1, {"key": NamedField(4, {}), "value": NamedField(5, inside)}),
    }
    fields = with_ids([pa.field(name, kind) for name, kind in kinds.items()], names)
    pair, none = [(2, []), (None, [])], [(None, []), (None, [])]
    of_list = [(3, pair)]
    expected = [pair, of_list, of_list, of_list, [(4, []), (5, pair)], none]
    assert ids(fields) == [(None if n == 5 else 1, inner) for n, inner in enumerate(expected)]
    assert [field.type for field in fields] == list(kinds.values())
