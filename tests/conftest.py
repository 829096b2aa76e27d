"""Every test keeps its index in a folder of its own."""

import pytest


@pytest.fixture(autouse=True)
def _own_index_folder(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MIDEPOCH_INDEX_DIR", str(tmp_path_factory.mktemp("index")))
