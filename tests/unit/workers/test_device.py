"""Batches on a device: they equal those of the processor, memory is used again only after its copies, and states."""

import logging
from collections import UserDict, namedtuple
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
import torch

import midepoch as me
from midepoch.delivery import ring, transport
from midepoch.delivery.progress import EMPTY, Turns
from midepoch.errors import StaleIteratorError
from midepoch.loader import delivering
from midepoch.workers import device as devices
from midepoch.workers import pool
from midepoch.workers.device import CudaCopies, check_device, copies_to, one_ahead, start_copies
from worlds import write_files

CPU = torch.device("cpu")
Pair = namedtuple("Pair", ["one", "two"])

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


class LateCopies:
    """A device that copies late: when somebody waits for a copy, or has asked several times if it is done."""

    def __init__(self, patience=3):
        self.patience, self.log, self._copies, self._done = patience, [], [], 0

    def start(self, tensor):
        new = torch.full_like(tensor, 77)
        self.log.append("start")
        self._copies.append((new, tensor))
        return new

    def mark(self):
        return LateMark(self, len(self._copies))

    next_mark = mark

    def pin(self, memory):
        self.log.append("pin")
        return self.unpin

    def unpin(self):
        self.log.append("unpin")
        self.finish(len(self._copies))

    def finish(self, count):
        for new, tensor in self._copies[self._done : count]:
            new.copy_(tensor)
        self._copies[self._done : count] = [None] * (max(self._done, count) - self._done)  # lets the memory go
        self._done = max(self._done, count)

    def is_done(self, count):
        return count <= self._done


class LateMark:
    def __init__(self, copies, count):
        self._copies, self._count, self._asked = copies, count, 0

    def is_done(self):
        self._asked += 1
        if self._asked >= self._copies.patience:
            self.wait()
        return self._copies.is_done(self._count)

    def wait(self):
        self._copies.finish(self._count)

    def hand_over(self):
        self._copies.log.append("hand over")


def long_and_short(row):
    """A tensor that is sent beside the pickle, one that is part of it, and a value that is none."""
    number = row["id"]
    return {"long": torch.full((400,), number), "short": torch.tensor(number), "text": row["text"]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = write_files(tmp_path_factory.mktemp("device") / "data", [20, 7, 33])
    return me.read(folder).map(long_and_short).lanes(2)


def plain(batch):
    assert batch["long"].shape[-1] == 400
    return [*map(int, batch["long"][..., -1].reshape(-1))], [*map(int, batch["short"].reshape(-1))], batch["text"]


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_batches_equal_those_of_the_processor(dataset, workers):
    loader = me.Loader(dataset, num_workers=workers, device="cpu")
    expected = [plain(row) for row in me.Loader(dataset)]
    assert [plain(row) for row in loader] == expected
    assert [plain(row) for row in loader] == expected  # the next epoch


@pytest.mark.parametrize("ahead", [None, 1, 5])
@pytest.mark.parametrize("workers", [1, 2])
def test_shared_memory_is_used_again_only_when_its_copies_are_done(dataset, monkeypatch, workers, ahead):
    """Messages of one item, and memory for few of them: it is used again many times."""
    late = LateCopies()
    monkeypatch.setattr(pool, "copies_to", lambda device: late)
    for name, small in {"MESSAGE_BYTES": 4096, "AHEAD_BYTES": 20_000, "MESSAGE_ITEMS": 1}.items():
        monkeypatch.setattr(transport, name, small)
    loader = me.Loader(dataset, num_workers=workers, device="cpu", prefetch_factor=ahead)
    received = list(loader)  # when the loader has closed its memory, everything is copied
    assert [plain(row) for row in received] == [plain(row) for row in me.Loader(dataset)]
    assert late.log.count("pin") == late.log.count("unpin") == workers


def test_copies_of_the_next_batch_begin_before_a_batch_is_handed_over():
    late = LateCopies()

    def turns():
        for number in range(3):
            yield Turns([late.start(torch.tensor(number))], ((),))

    assert len(list(one_ahead(turns(), late))) == 3
    assert late.log[:-1] == ["start", "start", "hand over", "start", "hand over", "hand over"]


def test_a_batch_is_handed_over_before_the_next_is_waited_for():
    late = LateCopies()

    def turns():
        for number in range(3):
            yield Turns([late.start(torch.tensor(number))], ((),))
            late.log.append("wait")
            yield None

    assert len(list(one_ahead(turns(), late))) == 3
    assert late.log[:-1] == ["start", "wait", "hand over"] * 3


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cut", [0, 1, 2, 13, 59, 60])
def test_the_state_counts_what_the_loop_received(dataset, workers, cut):
    expected = [plain(row) for row in me.Loader(dataset)]
    loader = me.Loader(dataset, num_workers=workers, device="cpu")
    rows = iter(loader)
    received = [plain(row) for row in islice(rows, cut)]
    state = loader.state_dict()
    assert state["turn"] == cut
    del rows
    resumed = me.Loader(dataset, device="cpu", num_workers=2 - workers)
    resumed.load_state_dict(state)
    assert received + [plain(row) for row in islice(resumed, 60 - cut)] == expected


def fail_at_30(row):
    if row["id"] == 30:
        raise ValueError("this row is broken")
    return long_and_short(row)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_was_made_before_an_error_is_delivered_before_it_is_raised(tmp_path, workers):
    dataset = me.read(write_files(tmp_path / "data", [60])).map(fail_at_30)
    loader, received = me.Loader(dataset, num_workers=workers, device="cpu"), []
    with pytest.raises(ValueError, match="this row is broken"):
        received.extend(int(row["short"]) for row in loader)
    assert received == [*range(30)]
    assert loader.state_dict()["turn"] == 30


def test_an_iterator_that_is_out_of_date_delivers_nothing_more(dataset):
    loader = me.Loader(dataset, num_workers=1, device="cpu", prefetch_factor=1)
    rows = iter(loader)
    next(rows)
    loader.close()
    with pytest.raises(StaleIteratorError):
        next(rows)


def test_padding_is_copied_too(dataset, monkeypatch):
    late = LateCopies()
    monkeypatch.setattr(delivering, "copies_to", lambda device: late)
    last, other = (me.Loader(dataset.shard(7, rank), device="meta") for rank in (6, 0))
    assert len(list(last)) == len(list(other)) == 9
    assert late.log.count("start") == 2 * 2 * 9
    late.finish(0)


@dataclass(frozen=True)
class Sample:
    pixels: torch.Tensor
    name: str


class Movable:
    def __init__(self, where="here"):
        self.where = where

    def to(self, device):
        return Movable(str(device))


def test_tensors_are_found_in_containers():
    copies = LateCopies()
    item = {
        "list": [torch.ones(2), "text"],
        "pair": Pair(torch.ones(3), None),
        "mapping": UserDict(inner=torch.ones(4)),
        "sample": Sample(torch.ones(5), "name"),
        "object": Movable(),
        "number": 3,
    }
    meta: Any = torch.device("meta")  # not where the tensors are
    moved = start_copies(item, meta, copies)
    copies.finish(4)
    assert copies.log == ["start"] * 4
    assert (moved["list"][1], moved["number"], moved["object"].where) == ("text", 3, "meta")
    assert type(moved["pair"]) is Pair
    assert isinstance(moved["mapping"], UserDict)
    assert moved["sample"].name == "name"
    tensors = [moved["list"][0], moved["pair"].one, moved["mapping"]["inner"], moved["sample"].pixels]
    assert [tensor.sum() for tensor in tensors] == [2, 3, 4, 5]
    assert item["sample"].pixels is not moved["sample"].pixels
    assert start_copies(item["list"], CPU, copies)[0] is item["list"][0]


def test_batches_without_a_tensor_are_an_error(tmp_path):
    dataset = me.read(write_files(tmp_path / "data", [6]))
    with pytest.raises(TypeError, match="the first batch has none"):
        next(iter(me.Loader(dataset.with_format("python"), batch_size=2, device="cpu")))
    assert len(list(me.Loader(dataset, batch_size=2, device="cpu"))) == 3


def test_empty_turns_are_not_looked_into():
    turns = [Turns((EMPTY,), ((),)), Turns([{"one": torch.ones(1)}], (((),),))]
    assert len(list(one_ahead((one for one in turns), copies_to(CPU)))) == 2


@pytest.mark.parametrize(
    ("device", "pin", "message"),
    [
        ("gpu", False, "which torch does not know"),
        ("cpu", True, "pin_memory=True is for batches that are copied to a CUDA device"),
    ],
)
def test_a_device_that_makes_no_sense_is_refused(dataset, device, pin, message):
    with pytest.raises(ValueError, match=message):
        me.Loader(dataset, device=device, pin_memory=pin)


def test_a_machine_without_cuda_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch finds no CUDA device"):
        check_device("cuda:0", pin_memory=False)


class Cuda:
    """What ``CudaCopies`` uses of torch.cuda, as a log."""

    def __init__(self, error=0):
        self.log, self.error, self.events, self.made = [], error, [], 0

    def Stream(self, device):
        return self

    def Event(self):
        self.made += 1
        if self.made == 1:  # the one that is recorded in the stream of the loop
            return CudaEvent(-1, self.log)
        self.events.append(CudaEvent(len(self.events), self.log))
        return self.events[-1]

    def current_stream(self, device):
        return self

    def wait_event(self, event):
        self.log.append("wait for the loop" if event.is_of_loop else f"let the loop wait for {event.number}")

    def synchronize(self):
        self.log.append("synchronize")

    def cudart(self):
        return self

    def cudaHostRegister(self, address, size, flags):
        self.log.append(("register", address % 4096, size, flags))
        return self.error

    def cudaHostUnregister(self, address):
        self.log.append("unregister")


class CudaEvent:
    def __init__(self, number, log):
        self.number, self.is_reached, self._log = number, False, log
        self.is_of_loop = number < 0

    def record(self, stream):
        self.is_reached = False
        if not self.is_of_loop:
            self._log.append(f"record {self.number}")

    def query(self):
        return self.is_reached

    def synchronize(self):
        self._log.append(f"wait for {self.number}")


def cuda_copies(monkeypatch, **options):
    cuda = Cuda(**options)
    for name in ("Stream", "Event", "current_stream", "cudart"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch, "empty_like", lambda tensor, device: torch.zeros(tensor.shape))
    return cuda, CudaCopies(0)


def test_memory_is_pinned_once_and_unpinned_after_its_copies(monkeypatch):
    cuda, copies = cuda_copies(monkeypatch)
    memory = transport.SharedMemory()
    memory.grow(1 << 20)
    memory.pin = copies.pin
    for _ in range(3):
        memory.view(0, 1000)
    assert cuda.log == [("register", 0, 1 << 20, 0)]
    memory.grow(2 << 20)
    memory.view(0, 2 << 20)
    assert cuda.log[1:] == ["synchronize", "unregister", ("register", 0, 2 << 20, 0)]
    memory.free()
    assert cuda.log[4:] == ["synchronize", "unregister"]


def test_memory_is_pinned_before_anything_is_in_it(monkeypatch):
    cuda, copies = cuda_copies(monkeypatch)
    memory = transport.SharedMemory(4 << 20, 8 << 20)
    assert not memory.pin_early(), "nothing is pinned without a device"
    memory.pin = copies.pin
    assert [memory.pin_early(), memory.pin_early()] == [True, False]
    memory.grow(1)
    memory.view(0, 8 << 20)
    assert cuda.log == [("register", 0, 8 << 20, 0)], "once"
    memory.view(0, (8 << 20) + 1)
    assert cuda.log[1:] == ["synchronize", "unregister", ("register", 0, (8 << 20) + 1, 0)]
    assert not memory.pin_early()
    memory.free()


def test_memory_of_a_file_that_may_not_be_long_is_pinned_when_it_is_used(monkeypatch):
    cuda, copies = cuda_copies(monkeypatch)

    def refuse(*_):
        raise OSError("the limit of file sizes")

    with monkeypatch.context() as patched:
        patched.setattr(ring.os, "ftruncate", refuse)
        memory = transport.SharedMemory(4 << 20, 8 << 20)
    memory.pin = copies.pin
    assert not memory.pin_early()
    memory.grow(1)
    assert memory.pin_early()
    assert cuda.log == [("register", 0, 8 << 20, 0)]
    memory.free()


def test_memory_that_cannot_be_pinned_is_no_error(monkeypatch):
    cuda, copies = cuda_copies(monkeypatch, error=2)
    messages = []
    monkeypatch.setattr(devices, "log_once", lambda text, level=logging.WARNING: messages.append(text))
    copies.pin(memoryview(bytearray(4096)))()
    assert "unregister" not in cuda.log
    assert "cudaHostRegister: error 2" in messages[0]


def test_marks_are_points_in_the_stream_of_copies(monkeypatch):
    cuda, copies = cuda_copies(monkeypatch)
    assert copies.mark().is_done()
    marks = []
    for number in range(3):
        moved = copies.start(torch.full((2,), number))
        copies.start(torch.ones(1))
        marks.append(copies.mark())
        assert moved.tolist() == [number, number]
        assert copies.mark() == marks[-1]
    assert cuda.log == [line for number in range(3) for line in ("wait for the loop", f"record {number}")]
    assert [mark.is_done() for mark in marks] == [False, False, False]
    cuda.events[0].is_reached = True
    assert [mark.is_done() for mark in marks] == [True, False, False]
    cuda.log.clear()
    for mark in marks:
        mark.hand_over()
    assert cuda.log == ["let the loop wait for 1", "let the loop wait for 2"]
    cuda.log.clear()
    marks[2].wait()
    assert cuda.log == ["wait for 1", "wait for 2"]
    assert all(mark.is_done() for mark in marks)
    copies.start(torch.ones(1))
    assert not copies.mark().is_done()
    assert len(cuda.events) == 3, "an event is used again"


@pytest.mark.parametrize("begins", ["mark", "wait", "hand_over"])
def test_copies_of_many_messages_begin_together(monkeypatch, begins):
    """The next mark says of each message when its memory can be used again, and begins nothing."""
    cuda, copies = cuda_copies(monkeypatch)
    assert copies.next_mark().is_done()
    moved, marks = [], []
    for number in range(3):
        moved.append(copies.start(torch.full((2,), 1 + number)))
        marks.append(copies.next_mark())
    assert not any(mark.is_done() for mark in marks)
    assert cuda.log == []
    if begins == "mark":
        assert copies.mark() == marks[0]
    else:
        getattr(marks[1], begins)()
    assert cuda.log[:2] == ["wait for the loop", "record 0"]
    assert [one.tolist() for one in moved] == [[1, 1], [2, 2], [3, 3]]
    assert {copies.mark(), copies.next_mark()} == set(marks), "nothing was started since"
    assert [mark.is_done() for mark in marks] == [begins == "wait"] * 3
    copies.start(torch.ones(1))
    later = copies.next_mark()
    cuda.events[0].is_reached = True
    assert marks[2].is_done()
    assert not later.is_done()


def test_memory_is_unpinned_only_after_copies_of_it_that_have_not_begun(monkeypatch):
    cuda, copies = cuda_copies(monkeypatch)
    unpin = copies.pin(memoryview(bytearray(4096)))
    moved = copies.start(torch.full((2,), 5))
    copies.next_mark()
    cuda.log.clear()
    unpin()
    assert moved.tolist() == [5, 5]
    assert cuda.log == ["wait for the loop", "record 0", "synchronize", "unregister"]


@pytest.mark.parametrize("end", ["leave", "finish", "fail"])
def test_the_loop_waits_for_copies_of_what_was_not_delivered(end):
    late = LateCopies()

    def turns():
        for number in range(3):
            if end == "fail" and number == 2:
                raise ValueError("broken")
            yield Turns([late.start(torch.tensor(number))], ((),))

    handed = one_ahead(turns(), late)
    next(handed)
    late.log.clear()
    if end == "leave":
        handed.close()
        assert late.log == ["hand over"]
    elif end == "finish":
        assert len(list(handed)) == 2
        assert late.log[-1] == "hand over"
    else:
        next(handed)
        with pytest.raises(ValueError, match="broken"):
            next(handed)
        assert late.log[-1] == "hand over"
