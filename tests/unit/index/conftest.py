"""Fixtures for tests of indexes: a small folder, and a folder for its index."""

from pathlib import Path

import pytest

from files import KINDS, write_numbers
from midepoch.formats import scan_file
from midepoch.index import build


@pytest.fixture
def scanned(monkeypatch):
    """The names of the scanned files."""
    names = []

    def note(path, *options):
        names.append(Path(path).name)
        return scan_file(path, *options)

    monkeypatch.setattr(build, "scan_file", note)
    return names


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "data"
    for number, kind in enumerate(KINDS):
        write_numbers(root / f"{number}.arrow", 10 * number, 10 * number + 10, kind)
    return root


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "kept"
