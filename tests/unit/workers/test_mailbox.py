"""What arrives from workers: messages are found by their turns."""

import pickle
from multiprocessing import Pipe

import pytest
from torch._utils import ExceptionWrapper

from midepoch.delivery import transport
from midepoch.delivery.layout import Destination
from midepoch.delivery.progress import Turns
from midepoch.delivery.ring import Places, SharedMemory
from midepoch.delivery.tally import Tally
from midepoch.delivery.transport import NO_TURN, Sender
from midepoch.workers.mailbox import Mailbox, WorkerPort
from midepoch.workers.process import END, ERROR, ITEMS, ROUND, TURN


class Process:
    def __init__(self):
        self.alive = True

    def is_alive(self):
        return self.alive


class Outbox:
    def __init__(self, worker):
        self._worker = worker

    def send_place(self, place):
        self._worker.send(ITEMS, place + Tally(rows=1).write())

    def received(self, *, wait):
        assert not wait, "a worker would wait for ever"
        return []


class FakeWorker:
    """A worker in this process: both ends of the connection."""

    def __init__(self, workers, round_number=1):
        self.connection, self._other = Pipe()
        self.memory, self.process, self.round = SharedMemory(), Process(), round_number
        self.received, self.told, self.prepared, self.arrives = [], 0, None, None
        self.sender = Sender(self.memory, Outbox(self), Places(), ahead=None, step=workers)

    def send(self, kind, content):
        self._other.send_bytes(kind + ROUND.pack(self.round) + content)

    def deliver(self, turn, *items):
        self.sender.turn = turn
        self.sender.send(Turns(items, ()))
        self.sender.flush()

    def note_received(self, message):
        self.received.append(message.turn)

    def before_wait(self):
        self.told += 1

    def prepare(self):
        """It takes so long that something may arrive meanwhile."""
        if self.prepared is None or self.prepared:
            return False
        self.prepared = True
        if self.arrives is not None:
            self.deliver(*self.arrives)
        return True

    def death(self):
        return RuntimeError("died")

    def end(self):
        self.process.alive = False
        self._other.close()

    def close(self):
        self.connection.close()
        self._other.close()
        self.memory.free()


class Counted:
    """As much of a Progress as is needed."""

    of_workers = Tally()


class Workers:
    def __init__(self, number, *, timeout=0.0):
        self.all = [FakeWorker(number) for _ in range(number)]
        self.progress = Counted()
        self.mailbox = Mailbox(self.all, 1, self.progress, timeout=timeout)
        self.ports = [WorkerPort(self.mailbox, owner, number, self.progress, Destination()) for owner in range(number)]

    def __getitem__(self, number):
        return self.all[number]

    def items(self, owner, *, wait=False):
        chunk = self.ports[owner].chunk(wait=wait)
        return None if chunk is None else list(chunk.items)


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.setattr(transport, "PAUSE", 1000)  # no message is sent earlier on a busy machine
    made = []

    def make(number, **options):
        made.append(Workers(number, **options))
        return made[-1]

    yield make
    for one in made:
        for worker in one.all:
            worker.close()


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
    assert one[0].told >= 1, "the worker may have waited for that"


def test_a_wait_is_used_to_prepare_workers_the_maker_of_the_turn_first_until_the_turn_is_there(workers):
    four = workers(4, timeout=0.01)
    for worker in four.all:
        worker.prepared = False
    assert four.items(1) is None
    assert [worker.prepared for worker in four.all] == [False] * 4, "nobody has waited"
    four[0].arrives = 1, "1"
    assert four.items(1, wait=True) == ["1"]
    assert [worker.prepared for worker in four.all] == [True, True, False, False]
    with pytest.raises(RuntimeError, match="timed out"):
        four.items(2, wait=True)
    assert [worker.prepared for worker in four.all] == [True] * 4


def test_a_worker_that_has_ended_has_no_more_turns(workers):
    two = workers(2)
    two[0].deliver(0, "0")
    two[0].send(END, b"")
    assert two.items(0, wait=True) == ["0"]
    assert two.items(0, wait=True) is None
    assert two.items(1) is None
    two[1].deliver(1, "1")
    assert two.items(1, wait=True) == ["1"]


def test_an_error_comes_in_its_turn(workers):
    two = workers(2)
    two[1].deliver(1, "1")
    two[1].send(ERROR, TURN.pack(3) + error_of("no more"))
    two[0].deliver(0, "0", "2")
    assert two.items(0) == ["0", "2"]
    assert two.items(1) == ["1"]
    assert two.items(1) is None
    with pytest.raises(ValueError, match="no more"):
        two.items(1, wait=True)


class Unreadable:
    """An item that is sent, and cannot be read."""

    def __reduce__(self):
        return unreadable, ()


def unreadable():
    raise ValueError("cannot be read")


def test_an_item_that_cannot_be_read_raises_in_its_turn(workers):
    two = workers(2)
    two[1].deliver(1, "1", Unreadable(), "5")
    two[0].deliver(0, "0", "2", "4")
    assert two.items(1) == ["1"]
    assert two.items(1) is None, "turn 2 comes before the error"
    assert two.items(0) == ["0", "2", "4"]
    with pytest.raises(ValueError, match="cannot be read"):
        two.items(1, wait=True)
    assert two[1].received == [1], "its room is given back"


def test_an_error_before_the_first_turn_comes_as_soon_as_one_waits_though_others_make_the_turns(workers):
    two = workers(2)
    two[1].send(ERROR, TURN.pack(NO_TURN) + error_of("at the start"))
    two[0].deliver(0, "0")
    assert two.items(0) == ["0"]
    with pytest.raises(ValueError, match="at the start"):
        two.items(1, wait=True)


def test_a_dead_worker_is_noticed_when_a_turn_of_it_is_needed(workers):
    two = workers(2, timeout=0.05)
    two[1].deliver(1, "1")
    two[1].end()
    assert two.items(1, wait=True) == ["1"], "what it sent before is delivered"
    with pytest.raises(RuntimeError, match="timed out"):
        two.items(0, wait=True)
    with pytest.raises(RuntimeError, match="died"):
        two.items(1, wait=True)


def test_messages_of_a_loop_that_was_left_are_given_back(workers):
    one = workers(1)
    one[0].round = 0
    one[0].deliver(0, "old")
    one[0].send(ERROR, TURN.pack(0) + error_of("old"))
    one[0].send(END, b"")
    one[0].round = 1
    one[0].deliver(0, "new")
    one[0].deliver(1, "newer")
    assert one.items(0, wait=True) == ["new"]
    assert one.progress.of_workers.rows == 1
    assert one.items(0) == ["newer"]
    assert one[0].received == [0, 0, 1]


def test_what_nobody_took_is_given_back_at_the_end(workers):
    one = workers(1)
    for turn in range(4):
        one[0].deliver(turn, turn)
    assert one.mailbox.message(9, wait=False) is None
    one.mailbox.close()
    assert sorted(one[0].received) == [0, 1, 2, 3]
