"""What arrives from workers, and the order of the rank in which it is handed over."""

import pickle
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._utils import ExceptionWrapper

from inboxes import PartInbox
from midepoch.delivery.metrics import Tally
from midepoch.delivery.turns import Turns, one_by_one
from midepoch.workers import process
from midepoch.workers.pool import Inbox, in_turn
from midepoch.workers.process import MessageWorker, Outbox, Report
from midepoch.workers.ring import SharedMemory
from simulation import cursor_after, turns_of


class FakeOutbox(Outbox):
    """That of a worker in this process."""

    def __init__(self, worker):
        self._worker = worker
        super().__init__(None, worker.memory, ahead=None)

    def report(self, start=0, size=0, end=None):
        self._worker.send(start, size, end)

    def _release(self, *, wait):
        assert not wait, "a worker would wait for ever"


class FakeWorker(MessageWorker):
    """A worker in this process: both ends of the connection."""

    def __init__(self):
        self.memory, self.round, self._round = SharedMemory(), 1, 1
        self.content, self.given_back, self.is_alive = [], 0, True
        self.outbox = FakeOutbox(self)

    def send(self, start=0, size=0, end=None):
        self.content.append(pickle.dumps(tuple(Report(self.round, start, size, Tally(rows=1), end))))

    def deliver(self, *items):
        self.outbox.send(Turns(items))
        self.outbox.flush()

    def _send(self, content):
        pass

    def _view(self, start, size):
        return self.memory.view(start, start + size)

    def _death(self):
        return RuntimeError("died")

    def free(self, deadline):
        self.memory.free()

    def _read(self, seconds):
        if self.content:
            return self.content.pop(0)
        if seconds and not self.is_alive:
            raise RuntimeError("died")
        time.sleep(seconds)
        return None

    def _note_received(self, start, size):
        self.given_back += 1


class Counted:
    """As much of a Progress as is needed."""

    def __init__(self):
        self.of_workers, self.turns_taken = Tally(), 0


class Workers:
    def __init__(self, number, *, timeout=0.0):
        self.all, self.progress = [FakeWorker() for _ in range(number)], Counted()
        self.worker, self.step = self.all.__getitem__, number
        self.inboxes = [Inbox(self, place, self.progress, timeout=timeout) for place in range(number)]

    def __getitem__(self, number):
        return self.all[number]

    def items(self, number, *, wait=False):
        inbox = self.inboxes[number]
        count = inbox.ready(wait=wait)
        return list(inbox.take(count).items) if count else None


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.setattr(process, "PAUSE", 1000)  # no message is sent earlier on a busy machine
    made = []

    def make(number, **options):
        made.append(Workers(number, **options))
        return made[-1]

    yield make
    for one in made:
        for worker in one.all:
            worker.memory.free()


def error_of(text):
    try:
        raise ValueError(text)
    except ValueError:
        return pickle.dumps(ExceptionWrapper(where="in a worker"))


def test_what_has_not_arrived_is_not_waited_for_unless_one_wants_to(workers):
    one = workers(1, timeout=0.01)
    assert one.items(0) is None
    with pytest.raises(RuntimeError, match=r"timed out after 0\.01 seconds"):
        one.items(0, wait=True)


def test_a_worker_that_has_ended_has_no_more_turns(workers):
    two = workers(2)
    two[0].deliver("0")
    two[0].send(end=b"")
    assert two.items(0, wait=True) == ["0"]
    assert two.items(0, wait=True) is None
    assert two.items(1) is None
    two[1].deliver("1")
    assert two.items(1, wait=True) == ["1"]


def test_an_error_comes_after_the_items_before_it_and_only_if_one_waits(workers):
    two = workers(2)
    two[1].deliver("1")
    two[1].send(end=error_of("no more"))
    assert two.items(1) == ["1"]
    assert two.items(1) is None, "others have turns to deliver before"
    with pytest.raises(ValueError, match="no more"):
        two.items(1, wait=True)


class Unreadable:
    """An item that is sent, and cannot be read."""

    def __reduce__(self):
        return unreadable, ()


def unreadable():
    raise ValueError("cannot be read")


def test_an_item_that_cannot_be_read_raises_in_its_turn(workers):
    one = workers(1)
    one[0].deliver("1", Unreadable(), "5")
    assert one.items(0) == ["1"]
    assert one.items(0) is None, "others have turns to deliver before"
    with pytest.raises(ValueError, match="cannot be read"):
        one.items(0, wait=True)
    assert one[0].given_back == 1, "its room is given back"


def test_a_dead_worker_is_noticed_when_a_turn_of_it_is_needed(workers):
    two = workers(2, timeout=0.05)
    two[1].deliver("1")
    two[1].is_alive = False
    assert two.items(1, wait=True) == ["1"], "what it sent before is delivered"
    with pytest.raises(RuntimeError, match="timed out"):
        two.items(0, wait=True)
    with pytest.raises(RuntimeError, match="died"):
        two.items(1, wait=True)


def test_messages_of_a_loop_that_was_left_are_given_back(workers):
    one = workers(1)
    one[0].round = 0
    one[0].deliver("old")
    one[0].send(end=error_of("old"))
    one[0].send(end=b"")
    one[0].round = 1
    one[0].deliver("new")
    one[0].deliver("newer")
    assert one.items(0, wait=True) == ["new"]
    assert one.progress.of_workers.rows == 1
    assert one.items(0) == ["newer"]
    assert one[0].given_back == 3


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
