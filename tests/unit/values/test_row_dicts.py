"""Columns as one dict a row."""

from midepoch.values.rows import row_dicts


def test_rows_have_the_columns_in_their_order():
    assert row_dicts({"b": [1, 2], "a'\n": ["x", None]}, 2) == [{"b": 1, "a'\n": "x"}, {"b": 2, "a'\n": None}]
    assert list(row_dicts({"b": [1], "a": [2]}, 1)[0]) == ["b", "a"]


def test_one_column_and_no_column():
    assert row_dicts({"a": [[1, 2], [3, 4]]}, 2) == [{"a": [1, 2]}, {"a": [3, 4]}]
    rows = row_dicts({}, 2)
    assert rows == [{}, {}]
    assert rows[0] is not rows[1]
