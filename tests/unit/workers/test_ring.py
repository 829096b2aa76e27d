"""Shared memory: messages never overlap, it grows, and nothing of it has a name."""

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch.workers import ring
from midepoch.workers.ring import NOTE_BYTES, STEP, Places, SharedMemory

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


def test_what_one_process_writes_another_reads_also_after_it_grew():
    memory = SharedMemory()
    memory.grow(10)
    before = memory.view(0, 10)
    before[:] = b"0123456789"
    memory.grow(3 * STEP)
    memory.view(3 * STEP - 4, 3 * STEP)[:] = b"last"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, bytes(memory.view(0, 10)) + bytes(memory.view(3 * STEP - 4, 3 * STEP)))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"0123456789last"
    assert bytes(before) == b"0123456789", "a view from before is the same memory"
    os.close(reader)
    os.close(writer)
    del before
    memory.free()
    memory.free()


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


def test_a_system_without_files_in_memory_uses_one_on_disk_that_is_deleted_at_once(monkeypatch, tmp_path):
    monkeypatch.delattr(ring.os, "memfd_create", raising=False)
    monkeypatch.setattr(ring.tempfile, "tempdir", str(tmp_path))
    memory = SharedMemory()
    memory.grow(10)
    memory.view(0, 4)[:] = b"text"
    assert bytes(memory.view(0, 4)) == b"text"
    assert list(tmp_path.iterdir()) == []
    memory.free()
