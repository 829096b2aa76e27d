"""Arguments are checked where they are passed, and the message names them."""

import numpy as np
import pytest

from midepoch._common.checks import check_integer, checked_version, parse_size


@pytest.mark.parametrize("value", [0, 7, np.int32(7), np.uint64(1)])
def test_integers_pass_as_int(value):
    checked = check_integer("n", value)
    assert checked == value
    assert type(checked) is int


@pytest.mark.parametrize("value", [1.0, "1", None, True, np.float32(2)])
def test_what_is_no_integer_is_a_type_error(value):
    with pytest.raises(TypeError, match=r"n must be an integer, got "):
        check_integer("n", value)


def test_integers_below_the_least_are_refused():
    with pytest.raises(ValueError, match="n is 0; it must be at least 1"):
        check_integer("n", 0, least=1)
    with pytest.raises(ValueError, match="n is -1; it must be at least 0"):
        check_integer("n", -1)
    assert check_integer("n", -5, least=None) == -5


@pytest.mark.parametrize(
    ("given", "size"),
    [(7, 7), ("7", 7), ("256MiB", 256 << 20), ("1GB", 10**9), ("1.5 kb", 1500), ("2g", 2 << 30), (0, 0)],
)
def test_sizes_are_numbers_of_bytes_or_strings_with_a_unit(given, size):
    assert parse_size("read_ahead", given) == size


def test_a_version_is_none_text_or_an_integer():
    assert [checked_version(version) for version in (None, "a", 3)] == [None, "a", 3]
    with pytest.raises(TypeError, match=r"version is 1.5; it can be a string, an integer, or left out"):
        checked_version(1.5)
