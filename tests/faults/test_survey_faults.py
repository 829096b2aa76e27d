"""A survey or cache that is killed, meets another one, or finds no room: the next call completes it exactly."""

import errno
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import surveying
from files import numbers, write
from midepoch._common import files
from midepoch.counting import survey as module
from midepoch.dataset import plan_of
from midepoch.pipeline import cache

ROWS = 60
SCRIPT = Path(surveying.__file__)


@pytest.fixture
def data(tmp_path):
    """Two files with the ids 0 to 59, in blocks of 5 rows: in the tests each block is a unit."""
    for number in range(2):
        firsts = range(30 * number, 30 * number + 30, 5)
        write(tmp_path / "data" / f"{number}.arrow", [numbers(first, first + 5, name="id") for first in firsts])
    return tmp_path / "data"


@pytest.fixture
def calls(tmp_path, monkeypatch):
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv(surveying.CALLS, str(path))
    return path


@pytest.fixture(autouse=True)
def _small_units(monkeypatch):
    monkeypatch.setattr(module, "SMALLEST_UNIT", 100)
    monkeypatch.setattr(module, "COLUMN_BYTES", 100)
    monkeypatch.setattr("midepoch._common.jobs.usable_cores", lambda: 1)


def run(action, data, folder, *, processes=1, wait=True, **environment):
    path = os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(SCRIPT), action, str(data), str(folder), str(processes)]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path, **environment}, stderr=subprocess.PIPE, text=True
    )
    if not wait:
        return process
    _, errors = process.communicate()
    return process.returncode, errors


def noted(calls):
    return [int(line) for line in calls.read_text().split()]


def assert_exact(survey):
    rows = np.arange(ROWS)
    kept = rows % 3 != 1
    assert survey.kept(rows).tolist() == kept.tolist()
    assert survey.lengths(rows).tolist() == (rows % 11 * kept).tolist()


def surveyed(data, folder):
    return plan_of(surveying.build(data).pack(16).survey(folder=folder)).pipeline.survey


def test_after_a_kill_only_unfinished_units_are_surveyed_again(data, calls, tmp_path):
    code, _ = run("survey", data, tmp_path / "kept", TEST_KILL_AT="33")
    assert code == -signal.SIGKILL
    assert noted(calls) == list(range(34))
    calls.write_text("")
    assert_exact(surveyed(data, tmp_path / "kept"))
    assert noted(calls) == list(range(30, ROWS))
    calls.write_text("")
    assert_exact(surveyed(data, tmp_path / "kept"))
    assert noted(calls) == []


def test_after_a_kill_of_the_process_that_leads_others(data, calls, tmp_path):
    options = {"TEST_KILL_AT": "33", "TEST_KILL_PARENT": "1", "TEST_PAUSE": "0.01"}
    code, _ = run("survey", data, tmp_path / "kept", processes=2, **options)
    assert code == -signal.SIGKILL
    finished = len(list((tmp_path / "kept").glob("*/unit-*")))
    calls.write_text("")
    assert_exact(surveyed(data, tmp_path / "kept"))
    again = noted(calls)
    assert finished > 0
    assert len(again) == ROWS - 5 * finished
    assert max(Counter(again).values()) == 1


def test_processes_survey_like_one(data, calls, tmp_path):
    code, errors = run("survey", data, tmp_path / "kept", processes=2)
    assert code == 0, errors
    assert sorted(noted(calls)) == list(range(ROWS))
    calls.write_text("")
    assert_exact(surveyed(data, tmp_path / "kept"))
    assert noted(calls) == []


def test_two_processes_at_once_survey_every_row_once(data, calls, tmp_path):
    both = [run("survey", data, tmp_path / "kept", wait=False, TEST_PAUSE="0.01") for _ in range(2)]
    for process in both:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert sorted(noted(calls)) == list(range(ROWS))
    assert_exact(surveyed(data, tmp_path / "kept"))


@pytest.mark.parametrize("step", ["run_all", "write_survey"])
def test_where_there_are_no_locks_another_process_may_finish_first(data, calls, tmp_path, monkeypatch, step):
    original = getattr(module, step)

    def after_another(*arguments, **options):
        monkeypatch.setattr(module, step, original)
        surveyed(data, tmp_path / "kept")  # it removes its units at the end
        return original(*arguments, **options)

    monkeypatch.setattr(module, step, after_another)
    monkeypatch.setattr(module, "exclusive_lock", lambda path: nullcontext())
    assert_exact(surveyed(data, tmp_path / "kept"))


def test_a_damaged_unit_is_surveyed_again(data, calls, tmp_path):
    run("survey", data, tmp_path / "kept", TEST_KILL_AT="33")
    (unit,) = (tmp_path / "kept").glob("*/unit-000002")
    content = bytearray(unit.read_bytes())
    content[14] ^= 1
    unit.write_bytes(content)
    calls.write_text("")
    assert_exact(surveyed(data, tmp_path / "kept"))
    assert noted(calls) == [*range(10, 15), *range(30, ROWS)]


def test_a_full_disk_is_named_and_what_was_finished_is_kept(data, calls, tmp_path, monkeypatch):
    write = files.write_privately

    def fills_up(path, content):
        if path.name == "unit-000004":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    monkeypatch.setattr(module, "write_privately", fills_up)
    with pytest.raises(OSError, match=r"The disk is full.*the next call continues there") as caught:
        surveyed(data, tmp_path / "kept")
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.setattr(module, "write_privately", write)
    calls.write_text("")
    assert_exact(surveyed(data, tmp_path / "kept"))
    assert noted(calls) == list(range(20, ROWS))


def cached(data, folder):
    return list(surveying.build(data).cache(folder))


def rows_of_the_pipeline(data, calls):
    rows = list(surveying.build(data))
    calls.write_text("")
    return rows


def test_after_a_kill_only_unfinished_files_are_cached_again(data, calls, tmp_path):
    expected = rows_of_the_pipeline(data, calls)
    code, _ = run("cache", data, tmp_path / "kept", TEST_KILL_AT="33")
    assert code == -signal.SIGKILL
    assert noted(calls) == list(range(34))
    assert len(list((tmp_path / "kept").glob("part-*"))) == 6
    assert len(list((tmp_path / "kept").glob(".part-*"))) == 1
    calls.write_text("")
    assert cached(data, tmp_path / "kept") == expected
    assert noted(calls) == list(range(30, ROWS))
    calls.write_text("")
    assert cached(data, tmp_path / "kept") == expected
    assert noted(calls) == []


def test_after_a_kill_of_the_process_that_leads_others_a_cache_is_completed(data, calls, tmp_path):
    expected = rows_of_the_pipeline(data, calls)
    options = {"TEST_KILL_AT": "33", "TEST_KILL_PARENT": "1", "TEST_PAUSE": "0.01"}
    code, _ = run("cache", data, tmp_path / "kept", processes=2, **options)
    assert code == -signal.SIGKILL
    calls.write_text("")
    assert cached(data, tmp_path / "kept") == expected
    assert 0 < len(noted(calls)) < ROWS
    assert max(Counter(noted(calls)).values()) == 1


def test_processes_cache_like_one(data, calls, tmp_path):
    expected = rows_of_the_pipeline(data, calls)
    code, errors = run("cache", data, tmp_path / "kept", processes=2)
    assert code == 0, errors
    assert sorted(noted(calls)) == list(range(ROWS))
    calls.write_text("")
    assert cached(data, tmp_path / "kept") == expected
    assert noted(calls) == []


def test_two_processes_at_once_cache_every_row_once(data, calls, tmp_path):
    expected = rows_of_the_pipeline(data, calls)
    both = [run("cache", data, tmp_path / "kept", wait=False, TEST_PAUSE="0.01") for _ in range(2)]
    for process in both:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert sorted(noted(calls)) == list(range(ROWS))
    assert cached(data, tmp_path / "kept") == expected


@pytest.mark.parametrize("step", ["run_units", "widened"])
def test_where_there_are_no_locks_another_process_may_cache_first(data, calls, tmp_path, monkeypatch, step):
    expected = rows_of_the_pipeline(data, calls)
    original = getattr(cache, step)

    def after_another(*arguments, **options):
        monkeypatch.setattr(cache, step, original)
        assert cached(data, tmp_path / "kept") == expected
        return original(*arguments, **options)

    monkeypatch.setattr(cache, step, after_another)
    monkeypatch.setattr(cache, "exclusive_lock", lambda path: nullcontext())
    assert cached(data, tmp_path / "kept") == expected


class FullDisk:
    """A file that takes its first bytes only."""

    def __init__(self, file, room):
        self._file, self._room = file, room
        self.closed = False

    def write(self, content):
        self._room -= len(content)
        if self._room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write(content)

    def flush(self):
        self._file.flush()

    def tell(self):
        return self._file.tell()

    def close(self):
        self.closed = True
        self._file.close()

    def writable(self):
        return True

    def readable(self):
        return False

    def seekable(self):
        return False


@pytest.mark.parametrize("room", [0, 300, 700])
def test_a_full_disk_leaves_a_clear_error_and_no_half_file(data, calls, tmp_path, monkeypatch, room):
    expected = rows_of_the_pipeline(data, calls)
    original = cache.open_sink

    def fills_up(path):
        if "000004" in path.name:
            return pa.PythonFile(FullDisk(open(path, "wb"), room), "w")
        return original(path)

    monkeypatch.setattr(cache, "open_sink", fills_up)
    with pytest.raises(OSError, match=r"The cache cannot be written to .*: The disk is full.*pass another") as caught:
        cached(data, tmp_path / "kept")
    assert caught.value.errno == errno.ENOSPC
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        ".lock",
        "cache.json",
        *(f"part-{number:06}.arrow" for number in range(4)),
    ]
    monkeypatch.setattr(cache, "open_sink", original)
    calls.write_text("")
    assert cached(data, tmp_path / "kept") == expected
    assert noted(calls) == list(range(20, ROWS))


def test_what_a_killed_process_left_is_removed_after_a_while(data, calls, tmp_path):
    run("cache", data, tmp_path / "kept", TEST_KILL_AT="33")
    (left,) = (tmp_path / "kept").glob(".part-*")
    os.utime(left, (0, 0))
    cached(data, tmp_path / "kept")
    assert not left.exists()
