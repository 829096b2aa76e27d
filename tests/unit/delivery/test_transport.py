"""Items across a process border: they arrive in order and unchanged, and a worker is ahead as far as it may be."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exact import same
from midepoch.delivery import transport
from midepoch.delivery.progress import EMPTY, Turns
from midepoch.delivery.ring import Places, SharedMemory
from midepoch.delivery.transport import MESSAGE_BYTES, Message, Sender
from midepoch.values.pool import PickedRows, RowPool
from midepoch.values.row_items import RowItems, RowRounds, row_items
from midepoch.values.rows import Rows


class Main:
    """The main process: it receives a message when the worker waits for that, or at once."""

    def __init__(self, memory, at_once=False):
        self.memory, self.at_once = memory, at_once
        self.places, self.turns, self.most_ahead, self._answered = [], [], 0, []

    def send_place(self, place):
        self.places.append(place)
        self.most_ahead = max(self.most_ahead, self.items_ahead())
        if self.at_once:
            self.receive()

    def items_ahead(self):
        return sum(items_in(self.memory, place) for place in self.places)

    def receive(self):
        message = Message.at(self.places.pop(0))
        for chunk in message.receive(self.memory):
            self.turns += zip(chunk.items, chunk.cursors or [None] * len(chunk.items), strict=True)
        self._answered.append(message.start)

    def received(self, *, wait):
        if wait and not self._answered:
            assert self.places, "the worker waits, and there is nothing that the main process could receive"
            self.receive()
        answered, self._answered = self._answered, []
        return answered

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
    return Turns(items, [[(number, 2 * number) for number in range(len(items))]])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3 * MESSAGE_BYTES) | st.text(max_size=9), max_size=9), st.booleans(), st.data())
def test_items_of_any_size_arrive_in_order(sizes, at_once, data):
    ahead = data.draw(st.sampled_from([None, 1, 2, 7]))
    items = [np.full(size, number, np.uint8) if isinstance(size, int) else size for number, size in enumerate(sizes)]
    memory = SharedMemory()
    main = Main(memory, at_once)
    sender = Sender(memory, main, Places(), ahead=ahead)
    sender.send(numbered(items))
    sender.flush()
    turns = main.rest()
    assert [cursor for _, cursor in turns] == [(number, 2 * number) for number in range(len(items))]
    for (arrived, _), item in zip(turns, items, strict=True):
        assert type(arrived) is type(item)
        assert np.array_equal(arrived, item)
    memory.free()


def test_turns_at_lanes_that_have_run_out_arrive_as_such(memory):
    main = Main(memory)
    sender = Sender(memory, main, Places(), ahead=None)
    sender.send(Turns([1, EMPTY, 2, EMPTY], [[(1,), (2,)], []]))
    sender.send(Turns([3], ()))
    sender.flush()
    assert main.rest() == [(1, (1,)), (EMPTY, None), (2, (2,)), (EMPTY, None), (3, ())]


@pytest.mark.parametrize(("ahead", "most"), [(1, 1), (2, 2), (8, 11)])
def test_the_user_says_how_many_items_a_worker_is_ahead(memory, ahead, most):
    main = Main(memory)
    sender = Sender(memory, main, Places(), ahead=ahead)
    for number in range(100):
        sender.send(numbered([number]))
        assert main.most_ahead <= most
    sender.flush()
    assert [item for item, _ in main.rest()] == list(range(100))


def test_else_the_bytes_are_bounded_but_two_items_fit_always(memory, monkeypatch):
    monkeypatch.setattr(transport, "AHEAD_BYTES", 16 * MESSAGE_BYTES)
    main = Main(memory)
    sender = Sender(memory, main, Places(), ahead=None)
    for number in range(30):
        sender.send(numbered([np.full(MESSAGE_BYTES + 7, number, np.uint8)]))
    assert 8 <= main.most_ahead <= 16
    sender.flush()
    assert [item[-1] for item, _ in main.rest()] == list(range(30))
    large = Main(memory)
    sender = Sender(memory, large, Places(), ahead=None)
    for number in range(4):
        sender.send(numbered([np.full(16 * MESSAGE_BYTES, number, np.uint8)]))
    assert large.most_ahead == 2
    sender.flush()
    assert [item[-1] for item, _ in large.rest()] == list(range(4))


def test_an_item_that_took_long_is_sent_at_once_and_others_together(memory, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(transport.time, "monotonic", lambda: next(clock))
    main = Main(memory)
    sender = Sender(memory, main, Places(), ahead=None)
    sender.send(numbered([1]))
    assert len(main.places) == 1
    monkeypatch.setattr(transport.time, "monotonic", lambda: 0.0)
    sender.flush()
    for number in range(10):
        sender.send(numbered([number]))
    assert len(main.places) == 1
    sender.flush()
    assert len(main.places) == 2


@pytest.mark.parametrize(("taken", "pause", "further"), [("all", 1, True), ("some", 1, False), ("all", 0, False)])
def test_a_worker_is_further_ahead_if_all_was_taken_while_it_made_a_window(memory, monkeypatch, taken, pause, further):
    monkeypatch.setattr(transport, "AHEAD_BYTES", 16 * MESSAGE_BYTES)
    monkeypatch.setattr(transport, "MOST_AHEAD_BYTES", 40 * MESSAGE_BYTES)
    now = 0
    monkeypatch.setattr(transport.time, "monotonic", lambda: now)
    main = Main(memory)
    sender = Sender(memory, main, Places(), ahead=None)
    most = []
    for _ in range(4):  # windows
        now += pause
        main.most_ahead = 0
        for number in range(80):
            sender.send(numbered([np.full(MESSAGE_BYTES // 2, number, np.uint8)]))
        sender.flush()
        most.append(main.most_ahead)
        while len(main.places) > (taken == "some"):
            main.receive()
    assert most[0] <= 32
    assert (most[1] > 32, most[-1] > 64) == (further, further)
    assert max(most) <= 80
    main.rest()
    assert [item[0] for item, _ in main.turns] == 4 * [*range(80)]


@pytest.mark.parametrize("pause", [-1.0, 1000.0])
@pytest.mark.parametrize("size", [None, 1, 7])
def test_rows_are_sent_as_columns_few_at_first_and_then_many(memory, monkeypatch, size, pause):
    monkeypatch.setattr(transport, "PAUSE", pause)
    texts = [f"{number} " * 50 for number in range(2_000)]
    batch = pa.RecordBatch.from_pydict({"id": range(2_000), "text": texts})
    items = RowItems(Rows(batch), size)
    cursors = np.arange(2 * len(items)).reshape(-1, 2)
    main = Main(memory)
    sender = Sender(memory, main, Places(), ahead=None)
    sender.send(Turns(items, (cursors,)))
    sender.flush()
    counts = [items_in(memory, place) for place in main.places]
    assert max(counts) <= transport.MESSAGE_ITEMS
    if pause < 0:  # each part of the rows took long
        assert counts[0] == 1
    else:
        assert len(counts) == -(-len(items) // transport.MESSAGE_ITEMS)
    turns = main.rest()
    assert [item for item, _ in turns] == list(items)
    assert [cursor for _, cursor in turns] == list(map(tuple, cursors.tolist()))


@pytest.mark.parametrize("ahead", [None, 1, 6])
@pytest.mark.parametrize("pause", [-1.0, 1000.0])
def test_short_runs_of_rows_share_a_message_with_what_else_is_sent(memory, monkeypatch, pause, ahead):
    monkeypatch.setattr(transport, "PAUSE", pause)
    texts = [f"{number} " * 2000 for number in range(600)]
    rows = Rows(pa.RecordBatch.from_pydict({"text": texts}))
    main = Main(memory)
    sender = Sender(memory, main, Places(), ahead=ahead)
    bounds = [0, 40, 41, 200, 240, 241, 242, 400, 590, 600]
    for begin, end in pairwise(bounds):
        sender.send(Turns(RowItems(rows.slice(begin, end)), (np.arange(begin, end)[:, None],)))
        if begin == 200:
            sender.send(Turns([EMPTY, "another", EMPTY], ((), ((7,),), ())))
        assert ahead is None or main.most_ahead <= 1.5 * ahead
    sender.flush()
    sent = len(main.places)
    turns = main.rest()
    expected = [({"text": text}, (number,)) for number, text in enumerate(texts)]
    expected[240:240] = [(EMPTY, None), ("another", (7,)), (EMPTY, None)]
    assert turns == expected
    if pause > 0 and ahead is None:
        size = sum(map(len, texts))
        assert sent <= 2 * -(-size // transport.ROW_MESSAGE_BYTES), "the messages are at least half full"


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("ahead", [None, 1, 9, 12])
def test_rows_of_several_lanes_come_one_of_each_lane(memory, size, ahead):
    parts = tuple(
        RowItems(Rows(pa.RecordBatch.from_pydict({"x": [f"{lane} {number}" for number in range(300)]})), size)
        for lane in range(4)
    )
    items = RowRounds(parts)
    cursors = [np.arange(2 * len(part)).reshape(-1, 2) + 1000 * lane for lane, part in enumerate(parts)]
    main = Main(memory)
    sender = Sender(memory, main, Places(), ahead=ahead)
    sender.send(Turns(items, cursors))
    sender.flush()
    turns, values = main.rest(), [list(part) for part in parts]
    assert [item for item, _ in turns] == [values[number % 4][number // 4] for number in range(len(items))]
    assert [cursor for _, cursor in turns] == [
        tuple(cursors[number % 4][number // 4].tolist()) for number in range(len(items))
    ]
    assert ahead is None or main.most_ahead <= 1.5 * ahead


def test_a_file_that_changed_is_noticed_before_its_rows_are_sent(memory, monkeypatch):
    def check():
        raise RuntimeError("the file has changed")

    main = Main(memory)
    sender = Sender(memory, main, Places(), ahead=None)
    rows = Rows(pa.RecordBatch.from_pydict({"x": [1, 2]}), check=check)
    before = Rows(pa.RecordBatch.from_pydict({"x": [0]}))
    monkeypatch.setattr(transport, "PAUSE", 1000.0)
    sender.send(Turns(RowItems(before), (np.zeros((1, 1), np.int64),)))
    with pytest.raises(RuntimeError, match="the file has changed"):
        sender.send(Turns(RowItems(rows), (np.zeros((2, 1), np.int64),)))
    sender.flush()  # as a worker does after an error
    assert main.rest() == [({"x": 0}, (0,))]


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("passed", [0, 1, 2, 100])
def test_record_batches_of_a_file_that_changes_are_not_sent(memory, monkeypatch, size, passed):
    monkeypatch.setattr(transport, "PAUSE", 1000.0)
    main, checks = Main(memory), []

    def check():
        checks.append(1)
        if len(checks) > passed:
            raise RuntimeError("the file has changed")

    batch = pa.RecordBatch.from_pydict({"x": [1, 2, 3, 4]})
    items = row_items(Rows(batch, "arrow", check=check), size)
    sender = Sender(memory, main, Places(), ahead=None)
    turns = Turns(items, [[(number,) for number in range(len(items))]])
    if passed < 100:
        with pytest.raises(RuntimeError, match="the file has changed"):
            (sender.send(turns), sender.flush())
        assert main.rest() == []
    else:
        sender.send(turns)
        sender.flush()
        assert pa.Table.from_batches([item for item, _ in main.rest()]).equals(pa.Table.from_batches([batch]))


class Clock:
    """It stands still unless a test moves it."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    perf_counter = monotonic


@pytest.mark.parametrize("kind", ["rows", "objects"])
def test_what_took_long_to_make_is_sent_as_a_whole_because_the_next_may_take_as_long(memory, monkeypatch, kind):
    clock = Clock()
    monkeypatch.setattr(transport, "time", clock)
    main = Main(memory)
    sender = Sender(memory, main, Places(), ahead=None)

    def send(seconds):
        clock.now += seconds
        rows = RowItems(Rows(pa.RecordBatch.from_pydict({"x": range(100)})))
        items = rows if kind == "rows" else [f"{number}" for number in range(100)]
        sender.send(Turns(items, (np.arange(100)[:, None],)))
        return sum(items_in(memory, place) for place in main.places)

    assert send(2.0) == 100
    assert send(transport.PAUSE / 4) == 100, "it shares a message with others"
    assert send(2.0) == 300


def wide_items(check, batches=12):
    """Batches of wide rows, which are copied where they are sent."""
    values = np.repeat(np.arange(8 * batches, dtype=np.int32), 1024).reshape(-1, 1024)
    lists = [pa.FixedSizeListArray.from_arrays(part.ravel(), 1024) for part in np.split(values, 4)]
    parts = [pa.record_batch({"x": one}) for one in lists]
    indices = np.random.default_rng(0).permutation(len(values))
    rows = Rows(PickedRows(RowPool(parts, check), indices), "torch")
    return RowItems(rows, 8), [indices[at : at + 8].tolist() for at in range(0, len(indices), 8)]


def test_wide_rows_are_copied_straight_to_the_message(memory, monkeypatch):
    monkeypatch.setattr("midepoch.values.gather.PartedArray.pick", None)
    main, checks = Main(memory), []
    items, expected = wide_items(lambda: checks.append(1))
    sender = Sender(memory, main, Places(), ahead=None)
    sender.send(Turns(items, [[(number,) for number in range(12)]]))
    sender.flush()
    assert [(item["x"][:, 0].tolist(), *cursor) for item, cursor in main.rest()] == [
        (first, number) for number, first in enumerate(expected)
    ]
    assert len(checks) < 12, "files are checked for each message, not for each batch"


@pytest.mark.parametrize("passed", range(4))
def test_wide_rows_of_a_file_that_changes_are_not_sent(memory, monkeypatch, passed):
    monkeypatch.setattr(transport, "LARGE_ITEMS", 2)
    main, checks = Main(memory), []

    def check():
        checks.append(1)
        if len(checks) > passed:
            raise RuntimeError("the file has changed")

    items, expected = wide_items(check)
    sender = Sender(memory, main, Places(), ahead=2)
    with pytest.raises(RuntimeError, match="the file has changed"):
        sender.send(Turns(items, [[(number,) for number in range(12)]]))
    sent = [item["x"][:, 0].tolist() for item, _ in main.rest()]
    assert sent == expected[: len(sent)]
    assert len(sent) <= passed


@pytest.mark.parametrize("at_once", [True, False])
def test_messages_are_large_while_the_main_process_has_much_to_receive(memory, monkeypatch, at_once):
    monkeypatch.setattr(transport, "PAUSE", -1.0)  # every item takes long
    monkeypatch.setattr(transport, "AHEAD_BYTES", 32 * MESSAGE_BYTES)
    main, sizes = Main(memory, at_once), []
    monkeypatch.setattr(main, "send_place", lambda place: (sizes.append(items_in(memory, place)), send(place)))
    send = Main.send_place.__get__(main)
    sender = Sender(memory, main, Places(), ahead=None)
    items = [np.full(MESSAGE_BYTES // 2, number, np.uint8) for number in range(60)]
    sender.send(numbered(items))
    sender.flush()
    assert [int(item[0]) for item, _ in main.rest()] == list(range(60))
    if at_once:
        assert set(sizes) == {1}
    else:
        assert set(sizes[:30]) == {1}
        assert max(sizes) > 8


def items_in(memory, place):
    return sum(len(chunk.items) for chunk in Message.at(place).receive(memory))


@pytest.mark.parametrize("with_check", [True, False])
@pytest.mark.parametrize("size", [3, 8, 200])
def test_wide_rows_in_order_are_copied_once_and_arrive_as_tensors(memory, monkeypatch, size, with_check):
    monkeypatch.setattr("midepoch.values.arrow.copied_tensor", None)  # would be a copy before the one to the message
    values = np.arange(50 * 1024, dtype=np.int32)
    batch = pa.record_batch({"x": pa.FixedSizeListArray.from_arrays(values, 1024)}).slice(2, 40)
    checks = []
    rows = Rows(batch, "torch", check=(lambda: checks.append(1)) if with_check else None)
    main, items = Main(memory), RowItems(rows, size)
    sender = Sender(memory, main, Places(), ahead=None)
    sender.send(Turns(items, [[(number,) for number in range(len(items))]]))
    sender.flush()
    assert [bool(checks)] == [with_check]
    expected = np.split(values.reshape(50, 1024)[2:42], range(size, 40, size))
    arrived = [item["x"] for item, _ in main.rest()]
    assert [type(one) for one in arrived] == [torch.Tensor] * len(expected)
    assert all(np.array_equal(one, other) for one, other in zip(arrived, expected, strict=True))


@pytest.mark.parametrize("form", ["numpy", "torch"])
@pytest.mark.parametrize("has_sums", [True, False])
@pytest.mark.parametrize("ahead", [None, 1, 5])
def test_wide_batches_of_lanes_arrive_as_they_are_made_here(memory, form, has_sums, ahead):
    lanes = []
    for lane, width in enumerate([300, 1024, 515]):
        columns = {
            name: pa.FixedSizeListArray.from_arrays(np.arange(40 * width, dtype=kind) + lane, width)
            for name, kind in (("x", np.int32), ("y", np.float64))
        }
        pool = RowPool([pa.record_batch(columns)], lambda: None)
        order = np.random.default_rng(lane).permutation(40)[:36]
        lanes.append(RowItems(Rows(PickedRows(pool, order), form), 4))
    items = RowRounds(tuple(lanes))
    assert all(lane.wide_batches() for lane in lanes)
    cursors = [np.arange(18).reshape(-1, 2) + 100 * lane for lane in range(3)]
    main = Main(memory)
    sender = Sender(memory, main, Places(), ahead=ahead)
    sender.send(Turns(items, cursors, np.arange(27, dtype=np.uint64) + np.uint64(2**63) if has_sums else None))
    sender.flush()
    turns = main.rest()
    sums = [(-(2**63) + number,) if has_sums else () for number in range(27)]
    ends = [cursors[number % 3][number // 3].tolist() for number in range(27)]
    assert [cursor for _, cursor in turns] == [(*end, *one) for end, one in zip(ends, sums, strict=True)]
    for (arrived, _), made in zip(turns, items, strict=True):
        assert same(arrived, made)
    assert ahead is None or main.most_ahead <= 1.5 * ahead


def test_only_whole_batches_of_wide_rows_alone_are_written_without_a_look_at_each():
    wide = pa.FixedSizeListArray.from_arrays(np.arange(9 * 300), 300)
    batch = pa.record_batch({"x": wide, "id": pa.array(range(9))})
    rows = Rows(batch, "torch", check=lambda: None)
    assert RowItems(rows, 3).wide_batches() is None
    assert RowItems(rows.select(["x"]), 4).wide_batches() is None
    assert RowItems(rows.select(["x"])).wide_batches() is None
    assert RowItems(rows.select(["x"]).to("python"), 3).wide_batches() is None
    assert len(RowItems(rows.select(["x"]), 3).wide_batches()) == 3


def turns_sent(main):
    return [Message.at(place).turn for place in main.places]


def test_a_message_says_where_its_turns_begin(memory, monkeypatch):
    monkeypatch.setattr(transport, "PAUSE", 1000)
    main = Main(memory)
    sender = Sender(memory, main, Places(), ahead=None, step=3)
    sender.turn = 1
    sender.send(Turns(["a", "b"], ()))
    sender.flush()
    sender.send(Turns(["c"], ()))
    sender.flush()
    assert turns_sent(main) == [1, 7]
    assert [item for item, _ in main.rest()] == ["a", "b", "c"]
    assert sender.turn == 10


def test_after_a_failure_the_first_turn_that_was_not_sent_is_known(memory, monkeypatch):
    monkeypatch.setattr(transport, "PAUSE", 1000)
    main = Main(memory)
    sender = Sender(memory, main, Places(), ahead=None, step=2)
    assert sender.turn == transport.NO_TURN
    sender.turn = 5
    with pytest.raises(TypeError):
        sender.send(Turns(["sent", (number for number in range(3))], ()))
    sender.flush()
    assert (turns_sent(main), sender.turn) == ([5], 7)
