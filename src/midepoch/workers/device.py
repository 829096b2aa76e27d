"""Batches on a device, and in pinned memory: copies that run beside the training loop, one batch ahead.

For CUDA they go from torch's pinned memory to memory of the loop's stream, on a stream of their own.
"""

import dataclasses
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from copy import copy
from functools import cache
from itertools import cycle
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from midepoch.delivery.turns import Turns, one_by_one
from midepoch.errors import StaleIteratorError

LEAST_PINNED = 64 << 10
"""Tensors of fewer bytes are not pinned: the driver copies them at once."""


def check_device(device: str | torch.device | None, *, pin_memory: bool) -> torch.device | None:
    """The device that a user names. Raises if there is none, or if nothing would be pinned for it."""
    if device is None:
        return None
    try:
        checked = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}, which torch does not know: {error}") from error
    if checked.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, and torch finds no CUDA device on this machine. Use device=None.")
    if checked.type != "cuda" and pin_memory:
        raise ValueError(
            f"pin_memory=True is for batches that are copied to a CUDA device, and device is {device!r}. Leave one out."
        )
    return checked


def pins(loader: DataLoader[Any]) -> bool:
    """True if a loader's tensors are to be in pinned memory, and there is a device for which that is of use."""
    return bool(loader.pin_memory and torch.cuda.is_available())


def pinned_turns(all_turns: Iterator[Turns]) -> Iterator[Turns]:
    """The turns with the tensors of their items in pinned memory, as with torch's DataLoader."""
    for turns in all_turns:
        yield turns._replace(items=[pin_memory(item) for item in turns.items])  # type: ignore[no-untyped-call]


class CudaCopies:
    """Copies to a CUDA device on a stream of their own.

    A forked process must not touch CUDA, not even to free an event, and the collector of a fork frees what its parent
    left. So these objects live for ever, with their events. An event that is recorded again says more, never less.
    """

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._of_loop, *events = (torch.cuda.Event() for _ in range(4))  # type: ignore[no-untyped-call]
        self._events = cycle(events)

    def start(self, item: Any) -> tuple[Any, Callable[[], None]]:
        """An item on the device, which copies fill, and what lets the loop's stream wait for them.

        The new memory may still be in use by what the loop has begun, so the copies wait for that.
        """
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []

        def start_one(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.device == self._device:
                return value.to(self._device)
            source = value.pin_memory() if value.nbytes >= LEAST_PINNED else value
            copies.append((torch.empty_like(value, device=self._device), source))
            return copies[-1][0]

        moved = _mapped(item, start_one)
        self._of_loop.record(torch.cuda.current_stream(self._device))
        self._stream.wait_event(self._of_loop)
        with torch.cuda.stream(self._stream):
            for tensor, source in copies:
                tensor.copy_(source, non_blocking=True)
        event = next(self._events)
        event.record(self._stream)
        return moved, lambda: torch.cuda.current_stream(self._device).wait_event(event)


@cache
def _cuda_copies(index: int, thread: int) -> CudaCopies:
    return CudaCopies(index)


def start_copies(item: Any, device: torch.device) -> tuple[Any, Callable[[], None]]:
    """An item with its tensors on a device, and what to call before it is used. Those that are there already stay."""
    if device.type != "cuda":
        return _mapped(item, lambda value: value.to(device)), _nothing
    index = torch.cuda.current_device() if device.index is None else device.index
    return _cuda_copies(index, threading.get_ident()).start(item)


def _nothing() -> None:
    """Wait for nothing."""


def _mapped(item: Any, move: Callable[[Any], Any]) -> Any:
    """An item with everything moved that has a method ``to``: in mappings, lists, tuples and dataclasses."""
    if isinstance(item, Mapping):
        moved = {key: _mapped(value, move) for key, value in item.items()}
        if type(item) is dict:
            return moved
        changed: Any = copy(item)  # such as the output of a tokeniser
        changed.update(moved)
        return changed
    if isinstance(item, list | tuple):
        values = [_mapped(value, move) for value in item]
        return type(item)(*values) if hasattr(item, "_fields") else type(item)(values)
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        changed = copy(item)
        for field in dataclasses.fields(item):
            object.__setattr__(changed, field.name, _mapped(getattr(item, field.name), move))
        return changed
    return move(item) if callable(getattr(item, "to", None)) else item


def on_device(all_turns: Generator[Turns | None, None, None], device: torch.device) -> Generator[Turns, None, None]:
    """The turns one by one, their items on a device. Each is handed over when the copies of the next have begun.

    If there is None among them, the next would have to be waited for, so the one that is there is handed over first.
    What was made before an error is delivered before it is raised. At the end the loop waits for the copies of what was
    not delivered, because their memory is used again.
    """
    process, this_process, is_exiting = os.getpid(), os.getpid, sys.is_finalizing  # modules are emptied at the end
    waiting: tuple[Turns, Callable[[], None]] | None = None
    try:
        for started in _started(all_turns, device):
            ready, waiting = waiting, started
            if ready is not None:
                ready[1]()
                yield ready[0]
            del ready, started
    finally:
        all_turns.close()
        if waiting is not None and process == this_process() and not is_exiting():
            waiting[1]()


def _started(
    all_turns: Iterator[Turns | None], device: torch.device
) -> Iterator[tuple[Turns, Callable[[], None]] | None]:
    """Each turn with its copies under way, and what to call before it is used. None stays None, and is at the end."""
    is_first = True
    try:
        for many in all_turns:
            for turns in one_by_one(() if many is None else (many,)):
                moved, wait = [], _nothing
                for item in turns.items:
                    if is_first:
                        _check_first(item)
                        is_first = False
                    on_it, wait = start_copies(item, device)
                    moved.append(on_it)
                yield turns._replace(items=moved), wait
            if many is None:
                yield None
    except Exception as error:  # no other class: modules are emptied at the end, where this is closed
        if not isinstance(error, StaleIteratorError):
            yield None  # so that what was made before is delivered
        raise
    yield None


def _check_first(item: Any) -> None:
    """Raise if the first item has nothing that can be on a device."""
    found: list[Any] = []
    _mapped(item, found.append)
    if isinstance(item, Mapping | list | tuple) and not found:
        raise TypeError(
            "device= moves tensors, and the first batch has none. Leave device= out, or the with_format that makes no "
            "tensors."
        )
