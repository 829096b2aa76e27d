"""Arguments are checked where they are passed, and the message names them."""

import multiprocessing
import re
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

import midepoch
from midepoch._common.checks import cached_property, check_integer, parse_size, size_in_words


@pytest.mark.parametrize("value", [0, 7, np.int32(7), np.uint64(1)])
def test_integers_pass_as_int(value):
    checked = check_integer("n", value)
    assert checked == value
    assert type(checked) is int


@pytest.mark.parametrize("value", [1.0, "1", None, True, np.float32(2)])
def test_what_is_no_integer_is_a_type_error(value):
    with pytest.raises(TypeError, match=r"n must be an integer, got "):
        check_integer("n", value)


@pytest.mark.parametrize(
    ("given", "size"),
    [(7, 7), ("7", 7), ("256MiB", 256 << 20), ("1GB", 10**9), ("1.5 kb", 1500), ("2g", 2 << 30), (0, 0)],
)
def test_sizes_are_numbers_of_bytes_or_strings_with_a_unit(given, size):
    assert parse_size("read_ahead", given) == size


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 bytes"),
        (1000, "1000 bytes"),
        (1 << 10, "1 KiB"),
        (512 << 20, "512 MiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 40, "5 TiB"),
    ],
)
def test_sizes_are_in_the_largest_unit(nbytes, words):
    assert size_in_words(nbytes) == words


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
