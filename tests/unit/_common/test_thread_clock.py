"""A clock of each thread counts what is asked for, also where that fails."""

import threading

import pytest

from midepoch._common import thread_clock
from midepoch._common.thread_clock import ThreadClock


@pytest.fixture
def now(monkeypatch):
    """What the clock shows: a test moves it."""
    shown = [100.0]
    monkeypatch.setattr(thread_clock.time, "perf_counter", lambda: shown[0])
    return shown


def test_functions_and_blocks_are_timed_also_if_they_fail(now):
    clock = ThreadClock()

    def work(seconds):
        now[0] += seconds
        return 10 / seconds

    assert clock.timed(work)(5) == 2
    assert clock.seconds == 5
    with pytest.raises(ZeroDivisionError):
        clock.timed(work)(0)
    with pytest.raises(ZeroDivisionError), clock.running():
        work(3 - work(10 / 3))
    now[0] += 1000
    assert clock.seconds == pytest.approx(5 + 10 / 3)


def test_every_thread_has_seconds_of_its_own(now):
    clock, seen = ThreadClock(), []

    def work():
        with clock.running():
            now[0] += 7
        seen.append(clock.seconds)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (seen, clock.seconds) == ([7], 0)
