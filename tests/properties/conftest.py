"""Files that several property tests read, and small virtual blocks, so that the few rows of these tests have some."""

from unittest.mock import patch

import pytest

from counted import write_files


@pytest.fixture(autouse=True, scope="module")
def _small_virtual_blocks():
    with patch("midepoch.order.windows.VIRTUAL_ROWS", 3):
        yield


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A folder of Arrow streams: rows with the columns "id" and "input_ids"."""
    folder = tmp_path_factory.mktemp("counted")
    write_files(folder)
    return folder
