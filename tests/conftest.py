"""Every test keeps its index in a folder of its own, and `datasets` is offline with a cache of the session's own."""

import os
import shutil
import tempfile

import pytest


def pytest_configure(config):
    """Set up `datasets` before any test module imports it."""
    config.hf_home = tempfile.mkdtemp(prefix="midepoch-hf-")
    os.environ |= {
        "HF_HOME": config.hf_home,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }


def pytest_unconfigure(config):
    shutil.rmtree(config.hf_home, ignore_errors=True)


@pytest.fixture(autouse=True)
def _own_index_folder(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MIDEPOCH_INDEX_DIR", str(tmp_path_factory.mktemp("index")))
