"""Workers on systems that lack what Linux has: no files in memory, no /proc, no sched_getaffinity, no allocation."""

import builtins
import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

import midepoch as me
from files import write_numbers
from midepoch.workers import ring

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture
def like_macos(monkeypatch, tmp_path):
    """What forked workers have too. Whatever is opened below /proc or /dev/shm is not there."""
    for name in ("memfd_create", "posix_fallocate", "sched_getaffinity"):
        monkeypatch.delattr(os, name, raising=False)
    for module, name in ((os, "open"), (builtins, "open"), (os, "listdir"), (os, "readlink"), (os, "stat")):
        monkeypatch.setattr(module, name, missing(getattr(module, name)))
    monkeypatch.setattr("multiprocessing.heap.Arena._dir_candidates", [])
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def missing(function):
    def opened(path=".", *arguments, **options):
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(("/proc", "/dev/shm")):
            raise FileNotFoundError(path)
        return function(path, *arguments, **options)

    return opened


def widen(row):
    return {"x": row["x"], "wide": np.full(1 << 20, row["x"] % 100, np.uint8)}


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("build", [lambda ds: ds.shuffle(1).batch(7), lambda ds: ds.take(40).map(widen).batch(9)])
def test_a_loader_with_workers_delivers_and_resumes_without_what_only_linux_has(tmp_path, like_macos, method, build):
    write_numbers(tmp_path / "data" / "a.parquet", 0, 400, "parquet", rows=30)
    dataset = build(me.read(tmp_path / "data").lanes(2))
    whole = [batch["x"].tolist() for batch in me.Loader(dataset)]
    loader = me.Loader(dataset, num_workers=2, multiprocessing_context=method)
    got = []
    for batch in loader:
        got.append(batch["x"].tolist())
        assert "wide" not in batch or (batch["wide"] == batch["x"][:, None] % 100).all()
        assert not any(path.is_file() for path in like_macos.iterdir()), "the memory has no name"
        if len(got) == 3:
            break
    rest = me.Loader(dataset, num_workers=2, multiprocessing_context=method)
    rest.load_state_dict(loader.state_dict())
    assert [*got, *(batch["x"].tolist() for batch in rest)] == whole


def test_a_message_may_be_longer_than_the_memory_that_was_mapped(tmp_path, monkeypatch):
    """It grows, is mapped again on both sides, and is given back at the end."""
    monkeypatch.setattr(ring, "LENGTH", 2 * mmap.PAGESIZE)
    monkeypatch.setattr(ring, "STEP", mmap.PAGESIZE)
    write_numbers(tmp_path / "a.parquet", 0, 40, "parquet", rows=30)
    dataset = me.read(tmp_path).lanes(2).map(widen).batch(5)
    files = []
    for _ in range(2):
        got = [(batch["x"].tolist(), batch["wide"][:, -1].tolist()) for batch in me.Loader(dataset, num_workers=2)]
        assert got == [([*range(first, first + 5)],) * 2 for first in (0, 20, 5, 25, 10, 30, 15, 35)]
        files.append(len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0)
    assert files[0] == files[1]
