"""Small virtual blocks, so that the few rows of these tests have some."""

from unittest.mock import patch

import pytest


@pytest.fixture(autouse=True, scope="session")
def _small_virtual_blocks():
    with patch("midepoch.order.windows.VIRTUAL_ROWS", 3):
        yield
