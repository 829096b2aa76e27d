"""Batches on a device: they equal those of the processor, copies begin one batch ahead, and states."""

from collections import UserDict, namedtuple
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
import torch

import midepoch as me
from midepoch import loader as loaders
from midepoch.delivery.turns import Turns
from midepoch.workers import device as devices
from midepoch.workers.device import CudaCopies, on_device, start_copies
from worlds import write_files

CPU = torch.device("cpu")
Pair = namedtuple("Pair", ["one", "two"])

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


@pytest.fixture
def late(monkeypatch):
    """A device that copies late: when somebody waits for the copies of an item. Returns what was done."""
    log = []

    def start(item, device):
        number = int(item["long"][-1])
        moved = dict(item, long=torch.full_like(item["long"], 77))
        log.append(f"start {number}")

        def wait():
            log.append(f"wait {number}")
            moved["long"].copy_(item["long"])

        return moved, wait

    for module in (devices, loaders):
        monkeypatch.setattr(module, "start_copies", start)
    return log


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


def items(*numbers):
    return [{"long": torch.full((2,), number)} for number in numbers]


def test_copies_of_the_next_batch_begin_before_a_batch_is_handed_over(late):
    assert len(list(on_device((Turns(items(number), ()) for number in range(3)), CPU))) == 3
    assert late == ["start 0", "start 1", "wait 0", "start 2", "wait 1", "wait 2"]


def test_a_batch_is_handed_over_before_the_next_is_waited_for(late):
    def turns():
        for number in range(3):
            yield Turns(items(number), ())
            late.append("nothing there")
            yield None

    assert len(list(on_device(turns(), CPU))) == 3
    assert late == [line for number in range(3) for line in (f"start {number}", "nothing there", f"wait {number}")]


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
    item = {
        "list": [torch.ones(2), "text"],
        "pair": Pair(torch.ones(3), None),
        "mapping": UserDict(inner=torch.ones(4)),
        "sample": Sample(torch.ones(5), "name"),
        "object": Movable(),
        "number": 3,
    }
    meta: Any = torch.device("meta")  # not where the tensors are
    moved, _ = start_copies(item, meta)
    assert (moved["list"][1], moved["number"], moved["object"].where) == ("text", 3, "meta")
    assert type(moved["pair"]) is Pair
    assert isinstance(moved["mapping"], UserDict)
    assert moved["sample"].name == "name"
    tensors = [moved["list"][0], moved["pair"].one, moved["mapping"]["inner"], moved["sample"].pixels]
    assert [(tensor.device.type, len(tensor)) for tensor in tensors] == [
        ("meta", 2),
        ("meta", 3),
        ("meta", 4),
        ("meta", 5),
    ]
    assert item["sample"].pixels.device == CPU
    assert start_copies(item["list"], CPU)[0][0] is item["list"][0]


def test_batches_without_a_tensor_are_an_error(tmp_path):
    dataset = me.read(write_files(tmp_path / "data", [6]))
    with pytest.raises(TypeError, match="the first batch has none"):
        next(iter(me.Loader(dataset.with_format("python"), batch_size=2, device="cpu")))
    assert len(list(me.Loader(dataset, batch_size=2, device="cpu"))) == 3


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


class Cuda:
    """What ``CudaCopies`` uses of torch.cuda, as a log."""

    def __init__(self):
        self.log, self.events = [], 0

    def Stream(self, device):
        return self

    def Event(self):
        self.events += 1
        return CudaEvent("of the loop" if self.events == 1 else f"{self.events - 2}", self.log)

    def current_stream(self, device):
        return self

    def wait_event(self, event):
        self.log.append(f"wait for {event.name}")


class CudaEvent:
    def __init__(self, name, log):
        self.name, self._log = name, log

    def record(self, stream):
        self._log.append(f"record {self.name}")


@pytest.fixture
def cuda(monkeypatch):
    cuda, copy = Cuda(), torch.Tensor.copy_
    for name in ("Stream", "Event", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch, "empty_like", lambda tensor, device: torch.zeros(tensor.shape))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: (cuda.log.append("pin"), tensor)[1])
    monkeypatch.setattr(
        torch.Tensor, "copy_", lambda to, tensor, **options: (cuda.log.append("copy"), copy(to, tensor))[1]
    )
    return cuda


def test_copies_wait_for_the_loop_and_the_loop_for_the_copies(cuda):
    copies = CudaCopies(0)
    moved, wait = copies.start({"large": torch.ones(20_000), "small": torch.full((2,), 7)})
    before = ["pin", "record of the loop", "wait for of the loop", "copy", "copy", "record 0"]
    assert cuda.log == before, "memory that the loop may still use is not written to"
    wait()
    assert cuda.log[len(before) :] == ["wait for 0"]
    assert (moved["large"].sum(), moved["small"].tolist()) == (20_000, [7, 7])


@pytest.mark.parametrize("end", ["leave", "finish", "fail"])
def test_the_loop_waits_for_copies_of_what_was_not_delivered(late, end):
    def turns():
        for number in range(3):
            if end == "fail" and number == 2:
                raise ValueError("broken")
            yield Turns(items(number), ())

    handed = on_device(turns(), CPU)
    next(handed)
    late.clear()
    if end == "leave":
        handed.close()
        assert late == ["wait 1"]
    elif end == "finish":
        assert len(list(handed)) == 2
        assert late[-1] == "wait 2"
    else:
        next(handed)
        with pytest.raises(ValueError, match="broken"):
            next(handed)
        assert late[-1] == "wait 1"
