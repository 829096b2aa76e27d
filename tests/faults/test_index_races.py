"""Many processes that build one index, and processes that are killed while they do."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

import midepoch as me
from files import KINDS, values, write_numbers
from midepoch.formats import scan_file
from midepoch.index import build

spawn = multiprocessing.get_context("spawn")
FILES, ROWS = 12, 20


@pytest.fixture
def folder(tmp_path):
    for number in range(FILES):
        kind = KINDS[number % 3]
        write_numbers(tmp_path / "data" / f"{number:02d}.arrow", number * ROWS, (number + 1) * ROWS, kind)
    return tmp_path / "data"


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "kept"


def read_at_once(barrier, queue, folder, kept):
    barrier.wait()
    try:
        dataset = me.read(folder, index_dir=kept)
        queue.put((values(dataset), dataset.state_dict()["fingerprint"]))
    except BaseException as error:
        queue.put((repr(error), None))
        raise


def test_eight_processes_that_build_one_index_all_read_the_same(folder, kept):
    barrier, queue = spawn.Barrier(8), spawn.Queue()
    processes = [spawn.Process(target=read_at_once, args=(barrier, queue, folder, kept), daemon=True) for _ in range(8)]
    for process in processes:
        process.start()
    results = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 8
    for rows, fingerprint in results:
        assert rows == list(range(FILES * ROWS))
        assert fingerprint == results[0][1]
    assert len(list(kept.glob("*.index"))) == 1
    assert [path.name for path in kept.iterdir() if path.name.startswith(".")] == []


def scan_forever(started, folder, kept):
    def slow(path, *options):
        if path.endswith("05.arrow"):
            started.set()
            time.sleep(600)
        return scan_file(path, *options)

    build.scan_file = slow
    me.read(folder, index_dir=kept)


def write_forever(started, folder, kept):
    def half(self, path):
        content = self.read_bytes()
        self.write_bytes(content[: len(content) // 2])
        started.set()
        time.sleep(600)

    Path.replace = half
    me.read(folder, index_dir=kept)


@pytest.mark.parametrize("stuck", [scan_forever, write_forever], ids=["while scanning", "while writing"])
def test_a_process_that_is_killed_at_the_index_leaves_nothing_harmful(folder, kept, stuck):
    started = spawn.Event()
    process = spawn.Process(target=stuck, args=(started, folder, kept), daemon=True)
    process.start()
    started.wait()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert list(kept.glob("*.index")) == []
    assert values(me.read(folder, index_dir=kept)) == list(range(FILES * ROWS))
    assert len(list(kept.glob("*.index"))) == 1


def test_a_process_waits_for_the_one_that_builds_and_scans_nothing_itself(folder, kept, monkeypatch):
    """While another process holds the lock nothing is scanned; the index it leaves is used."""
    me.read(folder, index_dir=kept)
    (path,) = kept.glob("*.index")
    whole = path.read_bytes()
    path.unlink()

    def arrive(_):
        path.write_bytes(whole)

    import fcntl

    monkeypatch.setattr(fcntl, "flock", lambda *_: arrive(None))
    monkeypatch.setattr(build, "scan_file", lambda path, *_: pytest.fail(f"{path} was scanned"))
    assert values(me.read(folder, index_dir=kept)) == list(range(FILES * ROWS))


def test_an_index_is_built_on_file_systems_without_locks(folder, kept, monkeypatch):
    import fcntl

    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert values(me.read(folder, index_dir=kept)) == list(range(FILES * ROWS))
    assert len(list(kept.glob("*.index"))) == 1


def test_an_index_of_a_file_that_changed_while_it_was_scanned_is_not_used(folder, kept, monkeypatch):
    """The stamp is taken before the scan, so rows of a newer file are never taken for those of the older."""

    def change_after(path, *options):
        scan = scan_file(path, *options)
        if path.endswith("03.arrow"):
            write_numbers(folder / "03.arrow", 0, 3)
        return scan

    with monkeypatch.context() as patched:
        patched.setattr(build, "scan_file", change_after)
        dataset = me.read(folder, index_dir=kept)
    with pytest.raises(me.DataChangedError, match=r"03\.arrow was changed"):
        list(dataset)
    assert len(me.read(folder, index_dir=kept)) == (FILES - 1) * ROWS + 3
