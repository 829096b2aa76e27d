"""Local files: a changed file is noticed."""

import pytest

import midepoch as me
from files import write_numbers
from midepoch.storage.local import FileStamp, check_unchanged
from objects import find


def test_check_unchanged_says_what_changed(tmp_path):
    path = write_numbers(tmp_path / "a.arrow", 0, 3)
    found = find(path).stamps[0]
    check_unchanged(str(path), found)
    with pytest.raises(me.DataChangedError, match=r"a\.arrow was changed while it was in use \(9 bytes then, "):
        check_unchanged(str(path), FileStamp(9, found.mtime_ns))
    with pytest.raises(me.DataChangedError, match=r"\(same size\)"):
        check_unchanged(str(path), FileStamp(found.size, found.mtime_ns - 1))
    path.unlink()
    with pytest.raises(me.DataChangedError, match=r"a\.arrow cannot be read.*restore it"):
        check_unchanged(str(path), found)
