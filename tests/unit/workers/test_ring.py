"""Shared memory: messages never overlap, it grows, and nothing of it has a name."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch.workers import ring
from midepoch.workers.ring import NOTE_BYTES, Places, SharedMemory

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@given(st.lists(st.integers(1, 50) | st.none(), max_size=60))
def test_messages_never_overlap_and_the_lowest_place_is_used_first(sizes):
    places, taken = Places(), []
    for number, size in enumerate(sizes):
        if size is None:
            if taken:  # in any order
                start, *_ = taken.pop(number % len(taken))
                places.release(start)
            continue
        start = places.find(size)
        used = {byte for begin, end, _ in taken for byte in range(begin, end)}
        assert used.isdisjoint(range(start, start + size))
        assert all(used.intersection(range(lower, lower + size)) for lower in range(NOTE_BYTES, start)), (
            "there was room before"
        )
        assert start >= NOTE_BYTES
        places.take(start, size, number)
        taken.append((start, start + size, number))
    assert (len(places), places.bytes) == (len(taken), sum(end - begin for begin, end, _ in taken))
    assert places.turns == sum(turns for *_, turns in taken)


def test_no_room_is_an_error_that_says_what_to_do(monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    memory = SharedMemory()
    monkeypatch.setattr(ring.os, "posix_fallocate", fail)
    with pytest.raises(MemoryError, match=r"no room for 4,194,304 bytes.*No space left.*fewer workers"):
        memory.grow(1000)
    assert memory.size == 0
    memory.free()


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, None])
def test_a_system_that_cannot_allocate_ahead_grows_the_file(monkeypatch, number):
    def fail(*_):
        raise OSError(number, "not supported")

    if number is None:
        monkeypatch.delattr(ring.os, "posix_fallocate")
    else:
        monkeypatch.setattr(ring.os, "posix_fallocate", fail)
    memory = SharedMemory()
    memory.grow(10)
    memory.view(6, 10)[:] = b"text"
    assert bytes(memory.view(6, 10)) == b"text"
    memory.free()
