import pytest
from fsspec.implementations.memory import MemoryFileSystem


@pytest.fixture(autouse=True)
def _empty_memory():
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
