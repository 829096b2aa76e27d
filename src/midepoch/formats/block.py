"""What every format gives: the blocks of a file, and a reader of one block."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa


class Block(NamedTuple):
    """What one read fetches: a record batch, a row group. ``number`` counts the blocks of its file."""

    number: int
    offset: int
    length: int
    rows: int


@dataclass(frozen=True, slots=True)
class Scan:
    """A file's schema and the ``(offset, length, rows)`` of its blocks. A file without bytes has no schema."""

    format: str
    schema: pa.Schema | None
    blocks: Sequence[tuple[int, int, int]]


class BlockReader(Protocol):
    """An open file, for use in the process that opened it."""

    def read(self, block: Block) -> pa.Table | pa.RecordBatch:
        """The rows of a block."""


class Format(Protocol):
    """A file format: a module of this package with these names."""

    @property
    def MAPPED(self) -> bool:  # noqa: N802
        """Whether a block is a view of the file, which costs next to nothing to hold and to read again."""

    def scan(self, path: str) -> Scan:
        """The schema and blocks of a file, from its headers or footer alone."""

    def open_blocks(self, path: str, columns: Sequence[str]) -> BlockReader:
        """The file, opened to read these columns of its blocks."""
