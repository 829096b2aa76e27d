"""Whole files, from paths and URLs."""

import pytest

from midepoch.errors import NoDataError
from midepoch.storage.location import SmallFiles
from objects import put


def test_whole_files_of_paths_and_urls(tmp_path):
    (tmp_path / "x").write_bytes(b"here")
    put("/a/x", b"there")
    put("/a/empty", b"")
    files = SmallFiles()
    assert files.read(tmp_path / "x") == files.read(f"file://{tmp_path}/x") == b"here"
    assert files.read("memory://a/x") == b"there"
    assert files.read("memory://a/empty") == b""
    with pytest.raises(NoDataError, match="memory://a/y does not exist in the store"):
        files.read("memory://a/y")
    with pytest.raises(NoDataError, match="cannot be read"):
        files.read(tmp_path / "y")
