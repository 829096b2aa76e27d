"""A cached property: computed once, and without a lock that a forked process could inherit."""

import multiprocessing
import re
from pathlib import Path
from threading import Event, Thread

import midepoch
from midepoch._common.lazy import cached_property


class Slow:
    """Two objects of one class, of which one may be computing while the other is asked."""

    def __init__(self, entered=None, go_on=None):
        self.entered, self.go_on, self.computed = entered, go_on, 0

    @cached_property
    def value(self):
        """The value."""
        self.computed += 1
        if self.entered is not None:
            self.entered.set()
            self.go_on.wait()
        return [self.computed]


def test_it_is_computed_once():
    slow = Slow()
    assert slow.value is slow.value
    assert slow.computed == 1
    assert Slow.value.__doc__ == "The value."


def test_threads_that_compute_at_once_get_one_value():
    entered, go_on = Event(), Event()
    slow = Slow(entered, go_on)
    got = []
    threads = [Thread(target=lambda: got.append(slow.value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    entered.wait()
    go_on.set()
    for thread in threads:
        thread.join()
    assert len({id(value) for value in got}) == 1


def test_a_process_that_is_forked_while_a_thread_computes_does_not_wait_for_it():
    entered, go_on = Event(), Event()
    thread = Thread(target=lambda: Slow(entered, go_on).value)
    thread.start()
    entered.wait()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(Slow().value), daemon=True)
    child.start()
    child.join(60)
    alive = child.is_alive()
    child.kill()
    go_on.set()
    thread.join()
    assert not alive
    assert answers.get() == [1]


def test_no_other_cached_property_is_used():
    root = Path(midepoch.__file__).parent
    users = [
        path.name for path in root.rglob("*.py") if re.search(r"functools import .*cached_property", path.read_text())
    ]
    assert users == []
