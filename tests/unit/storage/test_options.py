"""The options of remote files are checked when they are passed."""

import pytest

import midepoch as me
from midepoch.storage.options import Fetch


@pytest.mark.parametrize("size", ["much", "-1", "1 parsec", -1])
def test_a_wrong_size_is_refused(size):
    with pytest.raises(ValueError, match="read_ahead is"):
        me.read("memory://x", read_ahead=size)
    with pytest.raises(TypeError, match="cache_bytes is a float"):
        Fetch.of(None, None, 1.5)
