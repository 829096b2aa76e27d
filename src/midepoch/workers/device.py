"""Batches on a device: copies that run beside the training loop, one batch ahead.

A worker writes a batch to shared memory, which is pinned, and the device copies it from there: the processor copies it
only once. The place of a message is used again when its copies are done. For CUDA they run on a stream of their own.
"""

import dataclasses
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from copy import copy
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from midepoch._common.once import log_once
from midepoch.delivery.progress import EMPTY, Turns
from midepoch.delivery.reader import one_by_one
from midepoch.errors import StaleIteratorError
from midepoch.values.memory import LARGE
from midepoch.values.received import copied


class Mark(Protocol):
    """A point in a sequence of copies."""

    def is_done(self) -> bool:
        """True if all copies before it are done, so that the memory they came from can be used again."""

    def wait(self) -> None:
        """Wait until they are done."""

    def hand_over(self) -> None:
        """Let what the loop does next on the device wait for them."""


class Copies(Protocol):
    """Copies tensors to a device."""

    def start(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that a copy fills, which may not have begun: it is done at the next mark."""

    def mark(self) -> Mark:
        """The point after all copies so far."""

    def next_mark(self) -> Mark:
        """The same, but copies need not begin before the next mark, or before someone waits for this one."""

    def pin(self, memory: memoryview) -> Callable[[], None]:
        """Prepare memory from which much is copied. What it returns undoes that, when all copies are done."""


class PlainCopies:
    """Copies that are done when they return: to the processor's memory, and to devices without CUDA."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def start(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy, also if the device is that of the tensor, whose memory may be shared."""
        return copied(tensor) if self._device.type == "cpu" else tensor.to(self._device)

    def mark(self) -> Mark:
        """A point at which everything is done."""
        return _Done()

    next_mark = mark

    def pin(self, memory: memoryview) -> Callable[[], None]:
        """Nothing to prepare."""
        return _nothing


class CudaCopies:
    """Copies from pinned memory on a stream of their own, to memory that belongs to the stream of the loop.

    A forked process must not touch CUDA, not even to free an event or memory that two streams used, and the collector
    of a fork frees what its parent left. So these objects live for ever, with all their events, and marks are numbers.
    """

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._asked: list[tuple[torch.Tensor, torch.Tensor]] = []  # copies that have not begun: to where, and of what
        self._of_loop = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._events: deque[torch.cuda.Event] = deque()  # of the marks that are not known to be done
        self._spare: list[torch.cuda.Event] = []
        self._made = self._done = 0  # marks

    def start(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on the device. The copy begins with the next mark.

        The memory may still be in use by what the loop has begun, so the copy waits for that.
        """
        # Small ones need not be pinned: the driver copies them at once.
        pinned = tensor.pin_memory() if tensor.nbytes >= LARGE and not tensor.is_pinned() else tensor
        moved = torch.empty_like(tensor, device=self._device)
        self._asked.append((moved, pinned))
        return moved

    def mark(self) -> Mark:
        """A new point in the stream, or the last one if nothing was started since.

        The copies before it begin now, together: to change the stream takes as long as to begin a copy.
        """
        if self._asked:
            self._of_loop.record(torch.cuda.current_stream(self._device))  # always the same: a new event takes long
            self._stream.wait_event(self._of_loop)
            with torch.cuda.stream(self._stream):
                for moved, tensor in self._asked:
                    moved.copy_(tensor, non_blocking=True)
            self._asked.clear()
            event = self._spare.pop() if self._spare else torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
            self._events.append(event)
            self._made += 1
        return CudaMark(self, self._made)

    def next_mark(self) -> Mark:
        """The point of the next mark, or the last one if nothing was started since."""
        return CudaMark(self, self._made + bool(self._asked))

    def pin(self, memory: memoryview) -> Callable[[], None]:
        """Lock the memory's pages, so that the device reads them by itself while the processor does other things."""
        address, size = np.frombuffer(memory, np.uint8).ctypes.data, len(memory)
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = int(runtime.cudaHostRegister(address, size, 0))
        if error:
            log_once(
                f"CUDA cannot pin the memory through which workers send batches (cudaHostRegister: error {error}), so "
                "they are copied once more. Is the limit of locked memory too low (ulimit -l)?",
                logging.WARNING,
            )
            return _nothing

        def unpin() -> None:
            self.mark()  # copies that have not begun may be of this memory
            self._stream.synchronize()
            runtime.cudaHostUnregister(address)

        return unpin

    def is_done(self, mark: int) -> bool:
        """True if the device has passed a mark."""
        while self._events and self._events[0].query():  # type: ignore[no-untyped-call]
            self._drop_first()
        return mark <= self._done

    def wait(self, mark: int) -> None:
        """Let this process wait for a mark."""
        if mark > self._made:
            self.mark()
        while self._done < mark:
            self._events[0].synchronize()
            self._drop_first()

    def hand_over(self, mark: int) -> None:
        """Let the present stream wait for a mark; this process does not wait."""
        if mark > self._made:
            self.mark()
        if mark > self._done:
            torch.cuda.current_stream(self._device).wait_event(self._events[mark - self._done - 1])

    def _drop_first(self) -> None:
        self._spare.append(self._events.popleft())
        self._done += 1


class CudaMark(NamedTuple):
    """A point in the stream of the copies."""

    copies: CudaCopies
    number: int

    def is_done(self) -> bool:
        """True if the device has passed it."""
        return self.copies.is_done(self.number)

    def wait(self) -> None:
        """Let this process wait for it."""
        self.copies.wait(self.number)

    def hand_over(self) -> None:
        """Let the present stream wait for it."""
        self.copies.hand_over(self.number)


class _Done:
    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def hand_over(self) -> None:
        pass


def _nothing() -> None:
    pass


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


def copies_to(device: torch.device) -> Copies:
    """Copies to a device: those of this thread, for CUDA."""
    if device.type != "cuda":
        return PlainCopies(device)
    return _cuda_copies(torch.cuda.current_device() if device.index is None else device.index, threading.get_ident())


@cache
def _cuda_copies(index: int, thread: int) -> CudaCopies:
    return CudaCopies(index)


def start_copies(item: Any, device: torch.device, copies: Copies) -> Any:
    """An item with its tensors on a device. Those that are there already stay.

    Tensors are looked for in mappings, lists, tuples and dataclasses; other objects are asked by their method ``to``.
    """
    if isinstance(item, torch.Tensor):
        is_there = item.device.type == device.type and device.index in (None, item.device.index)
        return item if is_there else copies.start(item)
    if isinstance(item, Mapping):
        moved = {key: start_copies(value, device, copies) for key, value in item.items()}
        return moved if type(item) is dict else _changed(item, moved)
    if isinstance(item, list | tuple):
        values = [start_copies(value, device, copies) for value in item]
        return type(item)(*values) if hasattr(item, "_fields") else type(item)(values)
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        changed = copy(item)
        for field in dataclasses.fields(item):
            object.__setattr__(changed, field.name, start_copies(getattr(item, field.name), device, copies))
        return changed
    return item.to(device) if callable(getattr(item, "to", None)) else item


def _changed(mapping: Any, values: dict[Any, Any]) -> Any:
    """A copy of a mapping of the user's, such as the output of a tokeniser, with other values."""
    changed = copy(mapping)
    changed.update(values)
    return changed


def start_copies_of_turns(
    all_turns: Generator[Turns, None, None], device: torch.device, copies: Copies
) -> Generator[Turns, None, None]:
    """Turns of this process, one at a time, with their tensors on a device."""
    try:
        for turns in one_by_one(all_turns):
            items = [item if item is EMPTY else start_copies(item, device, copies) for item in turns.items]
            yield turns._replace(items=items)
    finally:
        all_turns.close()


def one_ahead(all_turns: Generator[Turns | None, None, None], copies: Copies) -> Generator[Turns, None, None]:
    """The turns whose items are being copied: each is handed over when the copies of the next have begun.

    If there is None among them, the next would have to be waited for, so those that are there are handed over first.
    What was made before an error is delivered before it is raised. At the end the loop waits for all copies, because
    the memory of what was not delivered is used again.
    """
    process, this_process, is_exiting = os.getpid(), os.getpid, sys.is_finalizing  # modules are emptied at the end
    try:
        yield from _one_ahead(all_turns, copies)
    finally:
        all_turns.close()
        if process == this_process() and not is_exiting():
            copies.mark().hand_over()


def _one_ahead(all_turns: Iterator[Turns | None], copies: Copies) -> Iterator[Turns]:
    waiting: deque[tuple[Turns, Mark]] = deque()
    error: Exception | None = None
    is_first, more = True, True
    while more:
        turns = None
        try:
            turns = next(all_turns)
            if turns is not None:
                is_first = is_first and not _check_first(turns)
                waiting.append((turns, copies.mark()))
        except StopIteration:
            more = False
        except StaleIteratorError:
            raise
        except Exception as raised:
            more, error = False, raised
        is_ahead = more and turns is not None
        while len(waiting) > is_ahead:
            turns, mark = waiting.popleft()
            mark.hand_over()
            yield turns
            del turns
    if error is not None:
        raise error


def _check_first(turns: Turns) -> bool:
    """Raise if the first item has nothing that can be on a device. False if there is no item among the turns."""
    items = [item for item in turns.items if item is not EMPTY]
    if items and isinstance(items[0], Mapping | list | tuple) and not _has_tensor(items[0]):
        raise TypeError(
            "device= moves tensors, and the first batch has none. Leave device= out, or the with_format that makes no "
            "tensors."
        )
    return bool(items)


def _has_tensor(item: Any) -> bool:
    if isinstance(item, Mapping | list | tuple):
        return any(map(_has_tensor, item.values() if isinstance(item, Mapping) else item))
    return isinstance(item, torch.Tensor) or dataclasses.is_dataclass(item) or hasattr(item, "to")
