"""What a worker runs: its items arrive in order and unchanged, and it is ahead as far as it may be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midepoch.delivery.turns import Turns, one_by_one
from midepoch.workers import process
from midepoch.workers.messages import MESSAGE_BYTES, read_message
from midepoch.workers.process import Outbox
from midepoch.workers.ring import SharedMemory


def turns_at(memory, place):
    start, size = place
    return read_message(memory.view(start, start + size))


def items_in(memory, place):
    return sum(turns.number for turns in turns_at(memory, place))


class Main(Outbox):
    """A worker and the main process, which receives a message when the worker waits for that, or at once."""

    def __init__(self, memory, at_once=False, ahead=None):
        super().__init__(None, memory, ahead=ahead)
        self.memory, self.at_once = memory, at_once
        self.places, self.turns, self.most_ahead, self._answered = [], [], 0, []

    def report(self, *place):
        self.places.append(place)
        self.most_ahead = max(self.most_ahead, self.items_ahead())
        if self.at_once:
            self.receive()

    def items_ahead(self):
        return sum(items_in(self.memory, place) for place in self.places)

    def receive(self):
        place = self.places.pop(0)
        for turn in one_by_one(turns_at(self.memory, place)):
            self.turns += [(None, None)] if turn.empty else zip(turn.items, map(tuple, turn.cursors), strict=True)
        self._answered.append(place[0])

    def _release(self, *, wait):
        if wait and not self._answered:
            assert self.places, "the worker waits, and there is nothing that the main process could receive"
            self.receive()
        while self._answered:
            self._places.release(self._answered.pop())

    def rest(self):
        while self.places:
            self.receive()
        return self.turns


@pytest.fixture
def memory():
    memory = SharedMemory()
    yield memory
    memory.free()


def numbered(items):
    return Turns(items, [(number, 2 * number) for number in range(len(items))])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3 * MESSAGE_BYTES) | st.text(max_size=9), max_size=9), st.booleans(), st.data())
def test_items_of_any_size_arrive_in_order(sizes, at_once, data):
    ahead = data.draw(st.sampled_from([None, 1, 2, 7]))
    items = [np.full(size, number, np.uint8) if isinstance(size, int) else size for number, size in enumerate(sizes)]
    memory = SharedMemory()
    main = Main(memory, at_once, ahead)
    main.send(numbered(items))
    main.flush()
    turns = main.rest()
    assert [cursor for _, cursor in turns] == [(number, 2 * number) for number in range(len(items))]
    for (arrived, _), item in zip(turns, items, strict=True):
        assert type(arrived) is type(item)
        assert np.array_equal(arrived, item)
    memory.free()


@pytest.mark.parametrize(("ahead", "most"), [(1, 1), (2, 2), (8, 11)])
def test_the_user_says_how_many_items_a_worker_is_ahead(memory, ahead, most):
    main = Main(memory, ahead=ahead)
    for number in range(100):
        main.send(numbered([number]))
        assert main.most_ahead <= most
    main.flush()
    assert [item for item, _ in main.rest()] == list(range(100))


def test_else_the_bytes_are_bounded_but_two_items_fit_always(memory, monkeypatch):
    monkeypatch.setattr(process, "AHEAD_BYTES", 16 * MESSAGE_BYTES)
    main = Main(memory)
    for number in range(30):
        main.send(numbered([np.full(MESSAGE_BYTES + 7, number, np.uint8)]))
    assert 8 <= main.most_ahead <= 16
    main.flush()
    assert [item[-1] for item, _ in main.rest()] == list(range(30))
    large = Main(memory)
    for number in range(4):
        large.send(numbered([np.full(16 * MESSAGE_BYTES, number, np.uint8)]))
    assert large.most_ahead == 2
    large.flush()
    assert [item[-1] for item, _ in large.rest()] == list(range(4))


def test_an_item_that_took_long_is_sent_at_once_and_others_together(memory, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(process.time, "monotonic", lambda: next(clock))
    main = Main(memory)
    main.send(numbered([1]))
    assert len(main.places) == 1
    monkeypatch.setattr(process.time, "monotonic", lambda: 0.0)
    main.flush()
    for number in range(10):
        main.send(numbered([number]))
    assert len(main.places) == 1
    main.flush()
    assert len(main.places) == 2
