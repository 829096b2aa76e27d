"""Fixtures of the text formats."""

import pytest

from texts import small_blocks


@pytest.fixture
def _small_blocks():
    with small_blocks():
        yield
