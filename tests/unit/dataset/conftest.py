import pytest

from worlds import write_files


@pytest.fixture
def folder(tmp_path):
    """Four files, one of them empty."""
    return write_files(tmp_path / "data", [20, 0, 7, 33])
