"""Arrays and tensors that lie in memory shared with another process, copied to where they are to stay."""

import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from midepoch.values.memory import LARGE, RECYCLER, new_array
from midepoch.values.tensor_lists import cut_up

BYTES = np.dtype(np.uint8)
RUN_PART = 256 << 10
"""Tensors of fewer bytes are copied together with others that lie beside them."""
RUN_BYTES = 1 << 20
"""This many bytes are copied together at most. Who keeps one of the tensors keeps all of them."""


class Received:
    """The arrays and tensors of an item, by their numbers. Each is copied when it is asked for."""

    def __init__(self, memory: Sequence[memoryview], runs: "TensorRuns | None" = None) -> None:
        """``runs`` copies tensors, and knows where they go. Without it they get memory of their own."""
        self._memory, self._runs = memory, runs

    def array(self, number: int, dtype: Any, shape: tuple[int, ...], order: Any = "C") -> Any:
        """An array that may be written to."""
        sent: Any = np.ndarray(shape, dtype, self._memory[number], order=order)
        array: Any = np.ndarray(shape, dtype, new_array((sent.nbytes,), BYTES), order=order)
        np.copyto(array, sent)
        return array

    def arrays(self, number: int, dtype: Any, lengths: Sequence[int]) -> list[Any]:
        """Arrays of one dimension that lie next to each other, and stay so unless they have many bytes."""
        sent: Any = np.ndarray((sum(lengths),), dtype, self._memory[number])
        spans = [slice(end - length, end) for length, end in zip(lengths, accumulate(lengths), strict=True)]
        if sent.nbytes > RUN_BYTES:
            return [sent[span].copy() for span in spans]
        size = sent.nbytes if sent.nbytes < LARGE else -(-sent.nbytes // LARGE) * LARGE  # few sizes, to be used again
        joined: Any = np.ndarray(sent.shape, dtype, new_array((size,), BYTES))
        np.copyto(joined, sent)
        return [joined[span] for span in spans]

    def tensor(self, number: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        """A tensor, whose memory is contiguous."""
        if self._runs is not None:
            return self._runs.tensor(number, dtype, shape)
        return copied(sys.modules["torch"].frombuffer(self._memory[number], dtype=dtype)).view(shape)

    def tensors(self, number: int, dtype: Any, lengths: Sequence[int]) -> list[Any]:
        """Tensors of one dimension that lie next to each other."""
        if self._runs is not None:
            return cut_up(self._runs.tensor(number, dtype, (sum(lengths),)), lengths, own=False)
        return cut_up(sys.modules["torch"].frombuffer(self._memory[number], dtype=dtype), lengths, own=True)

    def tensor_lists(self, dtype: Any, all_lengths: Sequence[Sequence[int]]) -> list[list[Any]]:
        """The same for lists that are all of the item, whose numbers have one type."""
        if self._runs is not None and (lists := self._runs.tensor_lists(dtype, all_lengths)) is not None:
            return lists
        return [self.tensors(number, dtype, lengths) for number, lengths in enumerate(all_lengths)]


class TensorRuns:
    """Copies the tensors of an item. Small ones that lie next to each other in memory are copied together.

    A copy to pinned memory or to a device takes long to begin, however small it is.
    """

    def __init__(self, view: memoryview, spans: Sequence[tuple[int, int]], copy: Callable[[Any], Any]) -> None:
        """``spans`` says where in ``view`` the tensors begin and end; ``copy`` copies one that is a view of memory."""
        self._view, self._spans, self._copy = view, spans, copy
        self._torch = sys.modules["torch"]
        self._start = self._stop = 0
        self._run: Any = None

    def tensor(self, number: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        """A tensor where it is to stay."""
        start, stop = self._spans[number]
        if stop - start >= RUN_PART:
            return self._copy(self._torch.frombuffer(self._view[start:stop], dtype=dtype).view(shape))
        if not self._start <= start < self._stop:
            self._copy_run(number, self._run_from(number))
        tensor = self._run[start - self._start : stop - self._start].view(dtype)
        return tensor if len(shape) == 1 else tensor.view(shape)

    def tensor_lists(self, dtype: Any, all_lengths: Sequence[Sequence[int]]) -> list[list[Any]] | None:
        """The tensors of all lists of an item, copied and cut up together; None if they have many bytes.

        The calls that this takes do not depend on the number of lists: a call takes as long as a small copy.
        """
        if self._spans[-1][1] - self._spans[0][0] > RUN_BYTES:
            return None
        self._copy_run(0, len(self._spans))
        following = [start for start, _ in self._spans[1:]] + [self._stop]
        sizes: list[int] = []
        ends: list[int] = []
        for lengths, (_, stop), start in zip(all_lengths, self._spans, following, strict=True):
            sizes += lengths
            ends.append(len(sizes))
            sizes.append((start - stop) // dtype.itemsize)  # what lies before the next list, which is aligned
        parts = cut_up(self._run.view(dtype), sizes, own=False)
        return [parts[end - len(lengths) : end] for lengths, end in zip(all_lengths, ends, strict=True)]

    def _run_from(self, number: int) -> int:
        """The number after the last tensor that is copied together with one."""
        start = self._spans[number][0]
        for after, (begin, end) in enumerate(self._spans[number + 1 :], start=number + 1):
            if end - begin >= RUN_PART or end - start > RUN_BYTES:
                return after
        return len(self._spans)

    def _copy_run(self, first: int, after: int) -> None:
        """Copy tensors, with what lies between them."""
        self._start, self._stop = self._spans[first][0], self._spans[after - 1][1]
        view = self._view[self._start : self._stop]
        self._run = self._copy(self._torch.frombuffer(view, dtype=self._torch.uint8))


def copied(tensor: Any, *, pin: bool = False) -> Any:
    """A copy of a tensor, by one thread; with ``pin``, in pinned memory."""
    torch = sys.modules["torch"]
    if pin:
        new = tensor.new_empty(tensor.shape, pin_memory=True)
        np.copyto(new.reshape(-1).view(torch.uint8).numpy(), tensor.reshape(-1).view(torch.uint8).numpy())
        return new
    if tensor.nbytes < LARGE:
        return tensor.clone()
    memory = RECYCLER.array(tensor.nbytes)
    np.copyto(memory, tensor.reshape(-1).view(torch.uint8).numpy())
    return torch.from_numpy(memory).view(tensor.dtype).view(tensor.shape)
