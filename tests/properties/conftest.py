"""Files that several property tests read, and small windows, so that the few rows of these tests have some."""

from unittest.mock import patch

import pytest

import midepoch as me
from counted import write_files


@pytest.fixture(autouse=True, scope="module")
def _small_windows():
    with (
        patch("midepoch.order.windows.VIRTUAL_ROWS", 3),
        patch("midepoch.order.windows.VIRTUAL_PER_BLOCK", 1),
        patch("midepoch.order.orders.VIRTUAL_PER_BLOCK", 1),
        patch.dict(me.Dataset.shuffle.__kwdefaults__, window_blocks=4),
    ):
        yield


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A folder of Arrow streams: rows with the columns "id" and "input_ids"."""
    folder = tmp_path_factory.mktemp("counted")
    write_files(folder)
    return folder
