"""Some rows of another order: intervals of it, whole blocks, or rows that a list names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.hashing import digest
from midepoch._common.lazy import cached_property
from midepoch._common.types import I64
from midepoch.order.orders import PIECE_ROWS, Order, PieceLevel, equal_pieces, scattered_files_error
from midepoch.order.windows import Blocks, rows_of_virtual

SAMPLED_NUMBERS = 1 << 14


class Intervals:
    """Several intervals ``(start, stop)`` of another order, one after the other."""

    def __init__(self, inner: Order, intervals: Sequence[tuple[int, int]]) -> None:
        bounds = np.array(intervals, np.int64).reshape(-1, 2).clip(0, inner.size)
        bounds = bounds[bounds[:, 0] < bounds[:, 1]]
        self._inner, self._inner_starts, self._inner_stops = inner, bounds[:, 0], bounds[:, 1]
        self.blocks = inner.blocks
        self._starts = np.concatenate([[0], np.cumsum(self._inner_stops - self._inner_starts)]).astype(np.int64)
        self.size = int(self._starts[-1])

    def rows(self, positions: I64) -> I64:
        if not len(positions):
            return positions
        interval = np.searchsorted(self._starts, positions, "right") - 1
        return self._inner.rows(self._inner_starts[interval] + positions - self._starts[interval])

    def positions(self, rows: I64) -> I64:
        inner = self._inner.positions(rows)
        bounds = zip(self._inner_starts, self._inner_stops, self._starts[:-1], strict=True)
        inside = [inner[(inner >= begin) & (inner < end)] - begin + start for begin, end, start in bounds]
        return np.concatenate([np.empty(0, np.int64), *inside])

    def piece_starts(self, level: PieceLevel) -> I64:
        """The pieces of the inner order inside each interval; the first and the last of them may be cut."""
        pieces = self._inner.piece_starts(level)
        inside = [
            pieces[np.searchsorted(pieces, begin, "right") : np.searchsorted(pieces, end)] - begin + start
            for begin, end, start in zip(self._inner_starts, self._inner_stops, self._starts[:-1], strict=True)
        ]
        return np.unique(np.concatenate([self._starts, *inside])).astype(np.int64)


class KeptBlocks:
    """Some blocks of a dataset, whole, in file order."""

    def __init__(
        self, file_starts: I64, block_starts: I64, kept: npt.NDArray[np.bool_], blocks: Blocks | None = None
    ) -> None:
        """Take the first rows of files and blocks, both with the number of all rows at the end, and the kept blocks.

        If ``block_starts`` are those of virtual blocks, ``blocks`` are the blocks that hold them.
        """
        self.blocks = blocks or Blocks.of_rows(block_starts)
        new_starts = np.concatenate([[0], np.cumsum(np.diff(block_starts) * kept)]).astype(np.int64)
        self._first_rows = block_starts[:-1][kept]
        self._starts = np.append(new_starts[:-1][kept], new_starts[-1])
        self._file_starts = np.unique(new_starts[np.searchsorted(block_starts, file_starts)])
        self.size = int(new_starts[-1])

    def rows(self, positions: I64) -> I64:
        if not len(positions):
            return positions
        block = np.searchsorted(self._starts, positions, "right") - 1
        rows: I64 = self._first_rows[block] + positions - self._starts[block]
        return rows

    def positions(self, rows: I64) -> I64:
        block = np.searchsorted(self._first_rows, rows, "right") - 1
        rows, block = rows[block >= 0], block[block >= 0]
        inside = rows - self._first_rows[block]
        positions: I64 = (self._starts[block] + inside)[inside < np.diff(self._starts)[block]]
        return positions

    def piece_starts(self, level: PieceLevel) -> I64:
        """The kept blocks, or the files that have any."""
        return self._file_starts if level == "file" else self._starts


class ChunkedNumbers:
    """A column of row numbers in chunks, which are not copied into one array."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._chunks = [np.asarray(chunk) for chunk in column.chunks if len(chunk)]
        self._starts = np.cumsum([0, *map(len, self._chunks)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, indices: I64) -> I64:
        """The numbers at these indices."""
        chunks = np.searchsorted(self._starts, indices, "right") - 1
        by_chunk = np.argsort(chunks, kind="stable")
        changes = np.flatnonzero(np.diff(chunks[by_chunk])) + 1
        numbers = np.empty(len(indices), np.int64)
        for of_chunk in np.split(by_chunk, changes) if len(indices) else ():
            chunk = int(chunks[of_chunk[0]])
            numbers[of_chunk] = self._chunks[chunk][indices[of_chunk] - self._starts[chunk]]
        return numbers

    def find(self, numbers: I64) -> I64:
        """The indices of these numbers. All chunks are searched."""
        chunks = zip(self._chunks, self._starts[:-1].tolist(), strict=True)
        found = [np.flatnonzero(np.isin(chunk, numbers)) + start for chunk, start in chunks]
        return np.concatenate([np.empty(0, np.int64), *found])


class Listed:
    """The positions of another order that a list names, in the order of the list."""

    def __init__(self, inner: Order, numbers: ChunkedNumbers) -> None:
        self._inner, self._numbers = inner, numbers
        self.blocks, self.size = inner.blocks, len(numbers)

    def rows(self, positions: I64) -> I64:
        return self._inner.rows(self._numbers.take(positions))

    def positions(self, rows: I64) -> I64:
        return self._numbers.find(self._inner.positions(rows))

    def piece_starts(self, level: PieceLevel) -> I64:
        if level == "file":
            raise scattered_files_error("a selection of rows")
        return equal_pieces(self.size, rows_of_virtual(self.size) if self.blocks.divisible.all() else PIECE_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Take several intervals ``(start, stop)``, as a split expression names them."""

    intervals: tuple[tuple[int, int], ...]

    def apply(self, inner: Order, *_key: int | str) -> Order:
        return Intervals(inner, self.intervals)

    def size(self, inner: int) -> int:
        return sum(max(0, min(stop, inner) - start) for start, stop in self.intervals)

    def describe(self) -> dict[str, Any]:
        return {"op": "split", "rows": [list(interval) for interval in self.intervals]}


class IndicesTable(Protocol):
    """A table with a column "indices" of row numbers, which can be pickled."""

    def column(self, name: str) -> pa.ChunkedArray: ...


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Take the rows whose numbers a table lists."""

    table: IndicesTable

    def __getstate__(self) -> dict[str, Any]:
        return {"table": self.table}

    def apply(self, inner: Order, *_key: int | str) -> Order:
        return Listed(inner, self._numbers)

    def size(self, inner: int) -> int:
        return len(self._numbers)

    def describe(self) -> dict[str, Any]:
        """The number of rows, and a digest of a sample of them, which differs for another shuffle or filter."""
        return {"op": "select", "rows": len(self._numbers), "digest": self._digest}

    @cached_property
    def _numbers(self) -> ChunkedNumbers:
        return ChunkedNumbers(self.table.column("indices"))

    @cached_property
    def _digest(self) -> str:
        indices = np.unique(np.linspace(0, max(0, len(self._numbers) - 1), SAMPLED_NUMBERS).astype(np.int64))
        sample = self._numbers.take(indices if len(self._numbers) else indices[:0])
        return digest(sample.astype("<i8").tobytes()).hex()
