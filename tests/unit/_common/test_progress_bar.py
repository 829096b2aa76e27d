"""The progress bar, with tqdm and without it."""

import io
import logging
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from midepoch._common import progress_bar
from midepoch._common.progress_bar import ProgressBar


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves by hand."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress_bar, "time", clock)
    return clock


@pytest.fixture(params=[False, True], ids=["plain", "tqdm"])
def with_tqdm(request, monkeypatch):
    if not request.param:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    else:
        pytest.importorskip("tqdm")
    return request.param


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)


class Output(io.StringIO):
    def __init__(self, is_terminal):
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal


@pytest.fixture
def terminal(monkeypatch):
    output = Output(is_terminal=True)
    monkeypatch.setattr(progress_bar, "sys", SimpleNamespace(stderr=output))
    return output


@pytest.fixture
def log_file(monkeypatch):
    output = Output(is_terminal=False)
    monkeypatch.setattr(progress_bar, "sys", SimpleNamespace(stderr=output))
    return output


def work(clock, seconds, *, steps=10, **options):
    with ProgressBar("copying", unit="files", total=steps, **options) as bar:
        for done in range(1, steps + 1):
            clock.now += seconds / steps
            bar.update(done)


def test_a_terminal_sees_long_work_to_its_end(with_tqdm, terminal, clock):
    work(clock, 30)
    shown = terminal.getvalue()
    assert "midepoch: copying" in shown
    assert "5/10" in shown
    assert "10/10" in shown.split("\r")[-1]
    assert shown.endswith("\n")


def test_work_of_less_than_two_seconds_shows_nothing(with_tqdm, terminal, clock):
    work(clock, 1.9)
    assert terminal.getvalue() == ""


def test_a_log_file_sees_nothing_unless_asked(with_tqdm, log_file, clock):
    work(clock, 30)
    assert log_file.getvalue() == ""
    work(clock, 30, show=True)
    assert "10/10" in log_file.getvalue()


def test_a_terminal_sees_nothing_if_not_wanted(with_tqdm, terminal, clock):
    work(clock, 30, show=False)
    assert terminal.getvalue() == ""


def test_the_plain_line(plain, terminal, clock):
    with ProgressBar("epoch 3", unit="rows") as bar:
        clock.now += 3
        bar.update(1500)
        clock.now += 1
        bar.update(2000, total=4000, note="7.5 batches/s")
        clock.now += 1
        bar.update(4001)
    lines = terminal.getvalue().split("\r\033[K")[1:]
    assert lines == [
        "midepoch: epoch 3 1,500 rows",
        "midepoch: epoch 3 [###############---------------] 2,000/4,000 rows, 7.5 batches/s",
        "midepoch: epoch 3 [##############################] 4,001/4,000 rows, 7.5 batches/s",
        "midepoch: epoch 3 [##############################] 4,001/4,000 rows, 7.5 batches/s\n",
    ]


def test_it_is_drawn_a_few_times_a_second_at_most(plain, terminal, clock):
    work(clock, 4, steps=4000)
    assert 5 <= terminal.getvalue().count("\r") <= 12


def test_callers_need_not_count_what_is_not_drawn(plain, terminal, clock):
    with ProgressBar("epoch 0", unit="rows") as bar:
        assert not bar.is_due
        clock.now += 2
        assert bar.is_due
        bar.update(1)
        assert not bar.is_due


def test_no_work_at_all_can_be_shown(with_tqdm, terminal, clock):
    with ProgressBar("copying", unit="files", total=0) as bar:
        clock.now += 3
        bar.update(0)
    assert terminal.getvalue().endswith("\n")


def test_long_work_is_logged_when_it_is_finished(clock, caplog):
    caplog.set_level(logging.INFO, "midepoch")
    work(clock, 1)
    assert caplog.messages == []
    work(clock, 1234.56, steps=2000)
    assert caplog.messages == [
        "copying: 4 of 2,000 files so far; it goes on.",
        "copying: 2,000 files in 1234.6 s.",
    ]


def test_one_long_job_is_not_silent(with_tqdm, terminal, clock, caplog):
    caplog.set_level(logging.INFO, "midepoch")
    with ProgressBar("indexing", unit="files", total=1) as bar:
        bar.tick()
        assert terminal.getvalue() == ""
        clock.now += 3
        bar.tick()
        assert "0/1" in terminal.getvalue()
        bar.tick()
        clock.now += 60
        bar.update(1)
    assert caplog.messages == ["indexing: 0 of 1 files so far; it goes on.", "indexing: 1 files in 63.0 s."]


def test_work_that_fails_ends_its_line_and_is_not_logged_as_finished(with_tqdm, terminal, clock, caplog):
    caplog.set_level(logging.INFO, "midepoch")

    def fail():
        with ProgressBar("copying", unit="files", total=3) as bar:
            clock.now += 5
            bar.update(1)
            raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        fail()
    assert terminal.getvalue().endswith("\n")
    assert caplog.messages == ["copying: 1 of 3 files so far; it goes on."]


def test_tqdm_starts_no_thread(terminal, clock):
    pytest.importorskip("tqdm")
    before = threading.active_count()
    with ProgressBar("copying", unit="files", total=3) as bar:
        clock.now += 5
        bar.update(1)
        assert threading.active_count() == before


def test_importing_it_does_not_import_tqdm():
    code = "import sys, midepoch._common.progress_bar; assert 'tqdm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
