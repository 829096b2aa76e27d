"""Rows chosen by number from another order: some stretches of it, or a list of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.hashing import digest
from midepoch._common.types import I64
from midepoch.order.orders import ROW_PIECE, Order, files_torn

SAMPLED = 1 << 14


class Stretches:
    """Several stretches of another order, one after the other."""

    def __init__(self, inner: Order, stretches: Sequence[tuple[int, int]]) -> None:
        bounds = np.array(stretches, np.int64).reshape(-1, 2).clip(0, inner.size)
        bounds = bounds[bounds[:, 0] < bounds[:, 1]]
        self._inner, self._begins, self._ends = inner, bounds[:, 0], bounds[:, 1]
        self._starts = np.concatenate([[0], np.cumsum(self._ends - self._begins)]).astype(np.int64)
        self.size = int(self._starts[-1])

    def rows(self, positions: I64) -> I64:
        """Those of the stretch in which each position falls."""
        if not len(positions):
            return positions
        stretch = np.searchsorted(self._starts, positions, "right") - 1
        return self._inner.rows(self._begins[stretch] + positions - self._starts[stretch])

    def pieces(self, level: Literal["file", "block"]) -> I64:
        """Those of the inner order inside each stretch, with the first and the last cut."""
        bounds = self._inner.pieces(level)
        inside = [
            bounds[np.searchsorted(bounds, begin, "right") : np.searchsorted(bounds, end)] - begin + start
            for begin, end, start in zip(self._begins, self._ends, self._starts[:-1], strict=True)
        ]
        return np.unique(np.concatenate([self._starts, *inside])).astype(np.int64)


class Blocks:
    """Some blocks of all files, whole, in file order."""

    def __init__(self, file_starts: I64, block_starts: I64, kept: npt.NDArray[np.bool_]) -> None:
        """Take the first rows of files and blocks, with the number of all rows at the end, and which blocks stay."""
        after = np.concatenate([[0], np.cumsum(np.diff(block_starts) * kept)]).astype(np.int64)
        self._begins = block_starts[:-1][kept]
        self._starts = np.append(after[:-1][kept], after[-1])
        self._files = np.unique(after[np.searchsorted(block_starts, file_starts)])
        self.size = int(after[-1])

    def rows(self, positions: I64) -> I64:
        """Those of the block in which each position falls."""
        if not len(positions):
            return positions
        block = np.searchsorted(self._starts, positions, "right") - 1
        found: I64 = self._begins[block] + positions - self._starts[block]
        return found

    def pieces(self, level: Literal["file", "block"]) -> I64:
        """The blocks, or the files that any of them are of."""
        return self._files if level == "file" else self._starts


class ChunkedNumbers:
    """A column of row numbers, looked at where it lies, never put together."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._chunks = [np.asarray(chunk) for chunk in column.chunks if len(chunk)]
        self._starts = np.cumsum([0, *map(len, self._chunks)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def at(self, places: I64) -> I64:
        """The numbers at these places."""
        owners = np.searchsorted(self._starts, places, "right") - 1
        order = np.argsort(owners, kind="stable")
        cuts = np.flatnonzero(np.diff(owners[order])) + 1
        numbers = np.empty(len(places), np.int64)
        for some in np.split(order, cuts) if len(places) else ():
            owner = int(owners[some[0]])
            numbers[some] = self._chunks[owner][places[some] - self._starts[owner]]
        return numbers


class Listed:
    """The positions of another order that a list names, in the list's order."""

    def __init__(self, inner: Order, numbers: ChunkedNumbers) -> None:
        self._inner, self._numbers = inner, numbers
        self.size = len(numbers)

    def rows(self, positions: I64) -> I64:
        """Those that stand at these places of the list."""
        return self._inner.rows(self._numbers.at(positions))

    def pieces(self, level: Literal["file", "block"]) -> I64:
        """Runs of some length: the rows of a list need not lie together."""
        if level == "file":
            raise files_torn("a selection of rows")
        return np.append(np.arange(0, self.size, ROW_PIECE), self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Some stretches of the rows, as a split expression names them."""

    stretches: tuple[tuple[int, int], ...]

    def apply(self, inner: Order, *_key: int | str) -> Order:
        """The stretches of the inner order."""
        return Stretches(inner, self.stretches)

    def size(self, inner: int) -> int:
        """The rows of all stretches."""
        return sum(max(0, min(end, inner) - begin) for begin, end in self.stretches)

    def describe(self) -> dict[str, Any]:
        """The stretches."""
        return {"op": "split", "rows": [list(stretch) for stretch in self.stretches]}


class IndicesTable(Protocol):
    """A table with a column "indices" of row numbers, which can be sent to another process."""

    def column(self, name: str) -> pa.ChunkedArray:
        """The column."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The rows whose numbers a table lists."""

    table: IndicesTable

    def __getstate__(self) -> dict[str, Any]:
        return {"table": self.table}

    def apply(self, inner: Order, *_key: int | str) -> Order:
        """The listed rows of the inner order."""
        return Listed(inner, self._numbers)

    def size(self, inner: int) -> int:
        """As many as are listed."""
        return len(self._numbers)

    def describe(self) -> dict[str, Any]:
        """How many there are, and a digest of a sample of them: another shuffle or filter has another."""
        return {"op": "select", "rows": len(self._numbers), "digest": self._digest}

    @cached_property
    def _numbers(self) -> ChunkedNumbers:
        return ChunkedNumbers(self.table.column("indices"))

    @cached_property
    def _digest(self) -> str:
        places = np.unique(np.linspace(0, max(0, len(self._numbers) - 1), SAMPLED).astype(np.int64))
        sample = self._numbers.at(places if len(self._numbers) else places[:0])
        return digest(sample.astype("<i8").tobytes()).hex()
