"""What arrives from workers, and the order of the rank in which it is handed over."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from files import write_numbers
from inboxes import PartInbox
from midepoch.delivery.turns import Turns, one_by_one
from midepoch.workers.pool import in_turn
from simulation import cursor_after, turns_of


@st.composite
def cut_turns(draw):
    """For each worker its turns, each with its hash, and the same in parts."""
    turns = draw(st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=4))
    numbered = [
        [(worker, number) if full else None for number, full in enumerate(of_worker)]
        for worker, of_worker in enumerate(turns)
    ]
    parts = []
    for of_worker in numbered:
        cuts = sorted({0, len(of_worker), *draw(st.sets(st.integers(0, len(of_worker))))})
        parts.append([part_of(of_worker[begin:end]) for begin, end in pairwise(cuts)])
    return numbered, parts


def part_of(turns):
    return turns_of(turns, [7 + turn[1] for turn in turns if turn is not None])


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


@given(cut_turns(), st.data())
def test_turns_come_in_the_order_of_the_rank_with_their_cursors_and_hashes(drawn, data):
    numbered, parts = drawn
    inboxes = [PartInbox(of_worker, lambda: data.draw(st.booleans())) for of_worker in parts]
    got = []
    for turn in one_by_one(filter(None, in_turn(inboxes))):
        got += [None] if turn.empty else turn.items
        if not turn.empty:
            assert [*turn.cursors] == [cursor_after(turn.items[0])]
            assert turn.hashes.tolist() == [7 + turn.items[0][1]]
    assert without_empty_end(got) == expected(numbered)


@given(cut_turns(), st.data())
def test_without_cursors_items_come_in_the_same_order(drawn, data):
    numbered, parts = drawn
    parts = [[part._replace(cursors=(), hashes=None) for part in of_worker] for of_worker in parts]
    inboxes = [PartInbox(of_worker, lambda: data.draw(st.booleans())) for of_worker in parts]
    got = [item for turns in filter(None, in_turn(inboxes)) for item in turns.items]
    assert got == [turn for turn in expected(numbered) if turn is not None]


class Waiting(PartInbox):
    """It notes when turns are waited for: none arrives earlier."""

    def __init__(self, name, log):
        super().__init__([Turns([name]), Turns([name])], lambda: False)
        self.name, self._log = name, log

    def receive(self, seconds):
        if seconds:
            self._log.append(f"wait for {self.name}")
        return super().receive(seconds)


def test_a_wait_is_announced_so_that_what_is_ready_can_be_handed_over_first():
    log = []
    for turns in in_turn([Waiting("a", log), Waiting("b", log)]):
        log.append("announced" if turns is None else turns.items)
    waits = [one for name in "abab" for one in ("announced", f"wait for {name}", [name])]
    assert log == [*waits, "announced", "wait for a", "announced", "wait for b"]


class Unreadable:
    """An item that is sent, and cannot be read."""

    def __reduce__(self):
        return unreadable, ()


def unreadable():
    raise ValueError("cannot be read")


def test_an_item_that_cannot_be_read_raises_in_its_turn(tmp_path):
    dataset = me.read(write_numbers(tmp_path / "a.arrow", 0, 10))
    loader, got = me.Loader(dataset.map(lambda row: Unreadable() if row["x"] == 3 else row["x"]), num_workers=1), []
    with pytest.raises(ValueError, match="cannot be read"):
        got.extend(loader)
    assert got == [0, 1, 2]
