"""A survey or cache that is killed, meets another one, or finds no room: the next call completes it exactly."""

import errno
import io
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
from midepoch.counting import survey as surveys
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
    monkeypatch.setattr(surveys, "SMALLEST_UNIT", 100)
    monkeypatch.setattr(surveys, "COLUMN_BYTES", 100)
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
    """The rows for which functions were called since the last time."""
    rows = [int(line) for line in calls.read_text().split()]
    calls.write_text("")
    return rows


def complete(action, data, folder):
    """Survey or cache in this process what is not done yet. The whole is exact."""
    rows = np.arange(ROWS)
    kept = rows % 3 != 1
    if action == "cache":
        cached = list(surveying.build(data).cache(folder))
        assert cached == [{"id": row, "input_ids": list(range(row % 11))} for row in rows[kept].tolist()]
        return
    survey = plan_of(surveying.build(data).pack(16).survey(folder=folder)).pipeline.survey
    assert survey.kept(rows).tolist() == kept.tolist()
    assert survey.lengths(rows).tolist() == (rows % 11 * kept).tolist()


actions = pytest.mark.parametrize("action", ["survey", "cache"])


@actions
def test_after_a_kill_only_what_is_unfinished_is_done_again(data, calls, tmp_path, action):
    code, _ = run(action, data, tmp_path / "kept", TEST_KILL_AT="33")
    assert code == -signal.SIGKILL
    assert noted(calls) == list(range(34))
    complete(action, data, tmp_path / "kept")
    assert noted(calls) == list(range(30, ROWS))
    complete(action, data, tmp_path / "kept")
    assert noted(calls) == []


@actions
def test_after_a_kill_of_the_process_that_leads_others(data, calls, tmp_path, action):
    options = {"TEST_KILL_AT": "33", "TEST_KILL_PARENT": "1", "TEST_PAUSE": "0.01"}
    code, _ = run(action, data, tmp_path / "kept", processes=2, **options)
    assert code == -signal.SIGKILL
    noted(calls)
    complete(action, data, tmp_path / "kept")
    again = noted(calls)
    assert 0 < len(again) < ROWS
    assert max(Counter(again).values()) == 1


@actions
def test_two_processes_at_once_do_every_row_once(data, calls, tmp_path, action):
    both = [run(action, data, tmp_path / "kept", wait=False, TEST_PAUSE="0.01") for _ in range(2)]
    for process in both:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert sorted(noted(calls)) == list(range(ROWS))
    complete(action, data, tmp_path / "kept")
    assert noted(calls) == []


@pytest.mark.parametrize(
    ("action", "step"),
    [("survey", "run_all"), ("survey", "write_survey"), ("cache", "run_units"), ("cache", "widened")],
)
def test_where_there_are_no_locks_another_process_may_finish_first(data, calls, tmp_path, monkeypatch, action, step):
    module = {"survey": surveys, "cache": cache}[action]
    original = getattr(module, step)

    def after_another(*arguments, **options):
        monkeypatch.setattr(module, step, original)
        complete(action, data, tmp_path / "kept")  # it removes its units at the end
        return original(*arguments, **options)

    monkeypatch.setattr(module, step, after_another)
    monkeypatch.setattr(module, "exclusive_lock", lambda path: nullcontext())
    complete(action, data, tmp_path / "kept")


def test_a_damaged_unit_is_surveyed_again(data, calls, tmp_path):
    run("survey", data, tmp_path / "kept", TEST_KILL_AT="33")
    (unit,) = (tmp_path / "kept").glob("*/unit-000002")
    content = bytearray(unit.read_bytes())
    content[14] ^= 1
    unit.write_bytes(content)
    noted(calls)
    complete("survey", data, tmp_path / "kept")
    assert noted(calls) == [*range(10, 15), *range(30, ROWS)]


def test_a_full_disk_is_named_and_what_was_finished_is_kept(data, calls, tmp_path, monkeypatch):
    write = files.write_privately

    def fills_up(path, content):
        if path.name == "unit-000004":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    monkeypatch.setattr(surveys, "write_privately", fills_up)
    with pytest.raises(OSError, match=r"The disk is full.*the next call continues there") as caught:
        complete("survey", data, tmp_path / "kept")
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.setattr(surveys, "write_privately", write)
    noted(calls)
    complete("survey", data, tmp_path / "kept")
    assert noted(calls) == list(range(20, ROWS))


class FullDisk(io.RawIOBase):
    """A file that takes its first bytes only."""

    def __init__(self, file, room):
        self._file, self._room = file, room

    def write(self, content):
        self._room -= len(content)
        if self._room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write(content)

    def tell(self):
        return self._file.tell()

    def close(self):
        self._file.close()
        super().close()

    def writable(self):
        return True


@pytest.mark.parametrize("room", [0, 300, 700])
def test_a_full_disk_leaves_a_clear_error_and_no_half_file(data, calls, tmp_path, monkeypatch, room):
    original = cache.open_sink

    def fills_up(path):
        return pa.PythonFile(FullDisk(open(path, "wb"), room), "w") if "000004" in path.name else original(path)

    monkeypatch.setattr(cache, "open_sink", fills_up)
    with pytest.raises(OSError, match=r"The cache cannot be written to .*: The disk is full.*pass another") as caught:
        complete("cache", data, tmp_path / "kept")
    assert caught.value.errno == errno.ENOSPC
    finished = [f"part-{number:06}.arrow" for number in range(4)]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [".lock", "cache.json", *finished]
    monkeypatch.setattr(cache, "open_sink", original)
    noted(calls)
    complete("cache", data, tmp_path / "kept")
    assert noted(calls) == list(range(20, ROWS))
