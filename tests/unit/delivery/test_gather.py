"""The turns of several workers: in the order of the rank, however they arrive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch.delivery.gather import in_turn, without_waits
from midepoch.delivery.layout import Chunk
from midepoch.delivery.progress import EMPTY


class Arriving:
    """A port to which chunks come; what is not waited for may not have arrived."""

    def __init__(self, chunks, arrived):
        self._chunks, self._arrived = list(chunks), arrived

    def chunk(self, *, wait):
        if not self._chunks or (not wait and not self._arrived()):
            return None
        return self._chunks.pop(0)


@st.composite
def workers(draw):
    """For each worker its turns, and the same cut into chunks of turns of one kind."""
    turns = draw(st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=4))
    numbered = [
        [(f"{worker}-{number}", (worker, number)) if full else None for number, full in enumerate(of_worker)]
        for worker, of_worker in enumerate(turns)
    ]
    chunked = []
    for of_worker in numbered:
        chunks = []
        for turn in of_worker:
            items, cursors = ([EMPTY], []) if turn is None else ([turn[0]], [turn[1]])
            joined = chunks and bool(chunks[-1].cursors) == bool(cursors) and draw(st.booleans())
            if joined:
                chunks[-1] = Chunk(chunks[-1].items + items, [*chunks[-1].cursors, *cursors])
            else:
                chunks.append(Chunk(items, cursors))
        chunked.append(chunks)
    return numbered, chunked


def expected(numbered):
    """One turn of each worker, round by round; turns after the end of a worker are empty if a later one has an item."""
    longest = max(map(len, numbered))
    turns = [
        of_worker[number] if number < len(of_worker) else None for number in range(longest) for of_worker in numbered
    ]
    return without_empty_end(turns)


def without_empty_end(turns):
    while turns and turns[-1] is None:
        turns.pop()
    return turns


@given(workers(), st.integers(1, 6), st.data())
def test_turns_come_in_the_order_of_the_rank_with_their_cursors(drawn, rotation, data):
    numbered, chunked = drawn
    ports = [Arriving(chunks, lambda: data.draw(st.booleans())) for chunks in chunked]
    got = []
    for items, cursors, _ in without_waits(in_turn(ports, rotation, tracks_cursors=True)):
        before = len(got)
        for number, item in enumerate(items):
            group = cursors[number % len(cursors)]
            got.append(None if item is EMPTY else (item, group[number // len(cursors)]))
        if len(got) - before > len(cursors):
            assert len(cursors) % rotation == 0, "turns of one group would be at several lanes"
    assert without_empty_end(got) == expected(numbered)


@given(workers(), st.data())
def test_without_cursors_items_come_in_the_same_order(drawn, data):
    numbered, chunked = drawn
    ports = [Arriving(chunks, lambda: data.draw(st.booleans())) for chunks in chunked]
    all_turns = without_waits(in_turn(ports, 1, tracks_cursors=False))
    got = [item for turns in all_turns for item in turns.items if item is not EMPTY]
    assert got == [turn[0] for turn in expected(numbered) if turn is not None]


class Waiting:
    """A port at which chunks arrive only when they are waited for. It notes when that is."""

    def __init__(self, name, chunks, log):
        self._name, self._chunks, self._log, self._waited = name, list(chunks), log, False

    def chunk(self, *, wait):
        if not wait or not self._chunks:
            return None
        self._log.append(f"wait for {self._name}")
        return self._chunks.pop(0)


def test_a_wait_is_announced_so_that_what_is_ready_can_be_handed_over_first():
    log = []
    ports = [Waiting(name, [Chunk([name], [()]), Chunk([name], [()])], log) for name in "ab"]
    for turns in in_turn(ports, 1, tracks_cursors=False):
        log.append("announced" if turns is None else turns.items)
    waits = [one for name in "abab" for one in ("announced", f"wait for {name}", [name])]
    assert log == [*waits, "announced", "announced"], "the end is waited for too"


@pytest.mark.parametrize(("items", "taken"), [(1, ["a"]), (2, ["a", "b"])])
def test_on_a_device_only_small_items_are_taken_before_their_turn(items, taken):
    asked = []

    class Ready(Arriving):
        def chunk(self, *, wait):
            chunk = super().chunk(wait=wait)
            asked.extend(() if chunk is None else chunk.items[:1])
            return chunk

    ports = [Ready([Chunk([name] * items, [()] * items)], lambda: True) for name in "ab"]
    all_turns = without_waits(in_turn(ports, 1, tracks_cursors=False, on_device=True))
    assert list(next(all_turns).items) == taken * items
    assert asked == taken
    assert [item for turns in all_turns for item in turns.items] == ["b"] * (items == 1)
