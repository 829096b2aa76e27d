"""A survey: for every row of an indexed dataset, whether the filters keep it, and how many tokens it has.

Rows are numbered as in the index. There is one flat file of bits and one of 32-bit lengths, both memory-mapped. They
are divided into *pages* of rows. A header has a checksum of each page, which is compared when the page is first used,
and the number of kept rows in it. So nothing is read when a survey is opened.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from midepoch._common.files import (
    framed,
    make_private_folder,
    open_privately,
    remove_folder,
    temporary_name,
    unframed,
    write_privately,
)
from midepoch._common.hashing import digest
from midepoch._common.lazy import cached_property
from midepoch._common.text import count
from midepoch._common.trust import is_shared, map_trusted, read_trusted, trust_folder
from midepoch._common.types import I64
from midepoch.errors import DataChangedError, NoDataError

Mask = npt.NDArray[np.bool_]
U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]

MAGIC, UNIT_MAGIC = b"MSV1", b"MSU1"
HEADER, KEPT, LENGTHS = "header", "kept.bits", "lengths.u32"
PAGE_BITS = 20
PAGE_ROWS = 1 << PAGE_BITS
CELL_ROWS = 256
"""How many rows a kept row is searched in, once its cell is known. A table has 8 bytes for each cell."""
CELLS_AT_ONCE = 4096
"""How many cells are searched together, which bounds the memory."""
MAX_LENGTH = (1 << 32) - 2
UNIT_HEAD = struct.Struct("<QBB")
ONES: U8 = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
"""The number of bits that are set in each byte."""
NTH_BIT: U8 = np.argsort(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") == 0, axis=1, kind="stable"
).astype(np.uint8)
"""For each byte, its bits that are set, from the lowest on, and then the others."""


class UnitRows(NamedTuple):
    """What is known of some consecutive rows. An array is None if that is not surveyed."""

    kept: Mask | None
    lengths: U32 | None

    def to_bytes(self) -> bytes:
        """The bytes of a file of their own, with a checksum."""
        rows = next(len(array) for array in self if array is not None)
        head = UNIT_HEAD.pack(rows, self.kept is not None, self.lengths is not None)
        bits = b"" if self.kept is None else _packed(self.kept).tobytes()
        lengths = b"" if self.lengths is None else self.lengths.astype("<u4", copy=False).tobytes()
        return framed(head + bits + lengths, UNIT_MAGIC)

    @classmethod
    def from_bytes(cls, content: bytes) -> "UnitRows":
        """The rows of such a file; ``ValueError`` if it is damaged."""
        body, _ = unframed(content, UNIT_MAGIC)
        rows, has_kept, has_lengths = UNIT_HEAD.unpack_from(body)
        bits = np.frombuffer(body, np.uint8, -(-rows // 8) if has_kept else 0, UNIT_HEAD.size)
        lengths = np.frombuffer(body, "<u4", rows if has_lengths else 0, UNIT_HEAD.size + len(bits))
        kept = np.unpackbits(bits, count=rows, bitorder="little").astype(bool) if has_kept else None
        return cls(kept, lengths if has_lengths else None)


class Survey:
    """The survey in a folder. Its pickle is the folder's path, so other machines must see the same folder."""

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        self.folder = folder
        self.rows: int = header["rows"]
        """The number of rows of the dataset."""
        self.covered: int = header["covered"]
        """How many of the pipeline's counting stages it covers, from the first one on. Filters of ``read`` are none."""
        self.digest: str = digest(json.dumps(header, sort_keys=True).encode(), size=16).hex()
        """A digest of what it says of the rows. It does not depend on where it is."""
        self.kept_digest: str = digest(json.dumps([self.rows, header["kept"], header["ones"]]).encode(), size=16).hex()
        """The same of which rows the filters keep, alone."""
        self._kept = None if header["kept"] is None else _Pages(folder / KEPT, np.uint8, header["kept"])
        self._lengths = None if header["lengths"] is None else _Pages(folder / LENGTHS, np.uint32, header["lengths"])
        self._ones_before = np.cumsum([0, *(header["ones"] or ())], dtype=np.int64)
        """The number of kept rows before each page."""
        for pages, values in ((self._kept, -(-self.rows // 8)), (self._lengths, self.rows)):
            if pages is not None and len(pages.values) != values:
                raise ValueError(f"{pages.path.name} has {len(pages.values):,} values instead of {values:,}")

    @classmethod
    def load(cls, folder: Path) -> "Survey":
        """Open the survey in a folder; ``OSError`` if there is none to use, ``ValueError`` if it is damaged."""
        body, _ = unframed(read_trusted(folder / HEADER), MAGIC)
        return cls(folder, json.loads(bytes(body)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.folder), self.digest, is_shared(self.folder))

    def __repr__(self) -> str:
        return f"<Survey of {count('row', self.rows)} in {self.folder}>"

    @property
    def has_kept(self) -> bool:
        """True if filters may leave out rows."""
        return self._kept is not None

    @property
    def has_lengths(self) -> bool:
        """True if the rows' lengths are known."""
        return self._lengths is not None

    @property
    def kept_rows(self) -> int:
        """The number of rows that the filters keep."""
        return int(self._ones_before[-1]) if self.has_kept else self.rows

    def kept(self, rows: I64) -> Mask:
        """For each of these rows, whether the filters keep it."""
        if self._kept is None:
            return np.ones(len(rows), bool)
        self._kept.check(rows >> PAGE_BITS)
        kept: Mask = (self._kept.values[rows >> 3] >> (rows & 7).astype(np.uint8) & 1).astype(bool)
        return kept

    def lengths(self, rows: I64) -> I64:
        """The number of tokens of each of these rows; 0 for those that are not kept."""
        if self._lengths is None:
            raise ValueError(f"{self!r} has no lengths: it was made before pack was added. Call survey() after pack.")
        self._lengths.check(rows >> PAGE_BITS)
        lengths: I64 = self._lengths.values[rows].astype(np.int64)
        return lengths

    def kept_before(self, rows: I64) -> I64:
        """How many rows before each of these are kept. The number of all rows counts them all."""
        if self._kept is None:
            return rows.astype(np.int64)
        pages, inside = rows >> PAGE_BITS, rows & (PAGE_ROWS - 1)
        before: I64 = self._ones_before[np.minimum(pages, len(self._ones_before) - 1)]
        partial = np.flatnonzero(inside)
        partial = partial[np.argsort(pages[partial], kind="stable")]
        for group in np.split(partial, np.flatnonzero(np.diff(pages[partial])) + 1) if len(partial) else ():
            first = int(pages[group[0]]) << (PAGE_BITS - 3)
            self._kept.check(pages[group[:1]])
            page = self._kept.values[first : first + (PAGE_ROWS >> 3)]
            ones = np.concatenate([[0], np.cumsum(ONES[page], dtype=np.int64)])
            byte, low_bits = inside[group] >> 3, (1 << (inside[group] & 7)) - 1
            before[group] += ones[byte] + ONES[page[np.minimum(byte, len(page) - 1)] & low_bits]
        return before

    def kept_at(self, numbers: I64) -> I64:
        """The rows with these numbers among all kept rows. The first call reads all bits once."""
        if self._kept is None:
            return numbers
        chunks = [
            self._kept_at(numbers[start : start + CELLS_AT_ONCE], self._kept.values)
            for start in range(0, len(numbers), CELLS_AT_ONCE)
        ]
        return np.concatenate([np.empty(0, np.int64), *chunks])

    def _kept_at(self, numbers: I64, values: U8) -> I64:
        before = self._kept_before_cells
        cells = np.searchsorted(before, numbers, "right") - 1
        distinct, line = np.unique(cells, return_inverse=True)
        of_cells = distinct[:, None] * (CELL_ROWS >> 3) + np.arange(CELL_ROWS >> 3)
        # The last cell may be shorter. Bytes that repeat there come after all others, so no number reaches them.
        content = values[np.minimum(of_cells, len(values) - 1)].ravel()  # of all cells, one after the other
        ends = np.cumsum(ONES[content], dtype=np.int64)
        counts = before[distinct + 1] - before[distinct]
        numbers = numbers - before[cells] + (np.cumsum(counts) - counts)[line]
        byte = np.searchsorted(ends, numbers, "right")
        bit = NTH_BIT[content[byte], numbers - ends[byte] + ONES[content[byte]]]
        rows: I64 = cells * CELL_ROWS + byte % (CELL_ROWS >> 3) * 8 + bit
        return rows

    @cached_property
    def _kept_before_cells(self) -> I64:
        """The number of kept rows before each cell of ``CELL_ROWS`` rows, and of all."""
        assert self._kept is not None
        values, counts = self._kept.values, [np.zeros(1, np.int64)]
        self._kept.check(np.arange(len(self._ones_before) - 1))
        for start in range(0, len(values), CELL_ROWS * CELLS_AT_ONCE >> 3):
            ones = ONES[values[start : start + (CELL_ROWS * CELLS_AT_ONCE >> 3)]]
            counts.append(np.add.reduceat(ones, np.arange(0, len(ones), CELL_ROWS >> 3), dtype=np.int64))
        before: I64 = np.cumsum(np.concatenate(counts))
        return before

    def kept_counts(self, block_starts: I64) -> I64:
        """The number of kept rows in each block. ``block_starts`` has the first row of each, and the end of the last.

        It takes about 0.3 s for a billion rows.
        """
        counts: I64 = np.diff(self.kept_before(block_starts))
        return counts


def write_survey(folder: Path, units: Iterable[UnitRows], *, rows: int, covered: int, work: Path) -> Survey:
    """Join the units of all rows, in order, to the survey in ``folder``. There is at least one unit.

    It is written in the folder ``work`` and appears as a whole. If another process has just put one there, that one is
    used.
    """
    temporary = temporary_name(work / folder.name)
    try:
        make_private_folder(temporary)
        write_privately(temporary / HEADER, framed(_join(temporary, units, rows, covered), MAGIC))
        try:
            temporary.rename(folder)
        except OSError:  # a folder that is not empty is never replaced
            return Survey.load(folder)
        return Survey.load(folder)
    finally:
        remove_folder(temporary)


def _join(folder: Path, units: Iterable[UnitRows], rows: int, covered: int) -> bytes:
    """Write the two files, and return the header as JSON."""
    written = 0
    bits = lengths = None
    left = np.empty(0, bool)  # the rows after the last whole byte
    with open_privately(folder / KEPT) as bits_file, open_privately(folder / LENGTHS) as lengths_file:
        for unit in units:
            if unit.kept is not None:
                bits = bits or _PageWriter(bits_file, PAGE_ROWS >> 3, are_bits=True)
                joined = np.concatenate([left, unit.kept])
                whole = len(joined) // 8 * 8
                bits.write(_packed(joined[:whole]))
                left = joined[whole:]
            if unit.lengths is not None:
                lengths = lengths or _PageWriter(lengths_file, PAGE_ROWS * 4, are_bits=False)
                lengths.write(unit.lengths.astype("<u4", copy=False).view(np.uint8))
            written += next(len(array) for array in unit if array is not None)
        if bits is not None:
            bits.write(_packed(left))
    if written != rows:
        raise ValueError(f"The units of a survey have {count('row', written)}, but the dataset has {rows:,}.")
    header = {
        "rows": rows,
        "covered": covered,
        "kept": None if bits is None else bits.checksums,
        "ones": None if bits is None else bits.ones,
        "lengths": None if lengths is None else lengths.checksums,
    }
    return json.dumps(header).encode()


class _PageWriter:
    """Writes bytes to a file, with a checksum of each page and, of bits, how many are set in it."""

    def __init__(self, file: BinaryIO, page: int, *, are_bits: bool) -> None:
        self._file, self._page, self._are_bits = file, page, are_bits
        self._room = 0
        self.checksums: list[int] = []
        self.ones: list[int] = []

    def write(self, values: U8) -> None:
        while len(values):
            if not self._room:
                self.checksums.append(0)
                self.ones.append(0)
                self._room = self._page
            now, values = values[: self._room], values[self._room :]
            self._file.write(now.data)
            self.checksums[-1] = zlib.crc32(now.data, self.checksums[-1])
            if self._are_bits:
                self.ones[-1] += int(ONES[now].sum(dtype=np.int64))
            self._room -= len(now)


class _Pages:
    """A mapped file of numbers, whose pages are checked when they are first used."""

    def __init__(self, path: Path, dtype: type[np.generic], checksums: list[int]) -> None:
        self.path, self._checksums = path, checksums
        self._is_checked = np.zeros(len(checksums), bool)
        self.values: npt.NDArray[Any] = np.empty(0, dtype)
        if checksums:
            self.values = np.frombuffer(map_trusted(path), np.dtype(dtype).newbyteorder("<"))

    def check(self, pages: I64) -> None:
        """Raise if one of these pages is damaged."""
        if self._is_checked[pages].all():
            return
        size = PAGE_ROWS >> 3 if self.values.dtype == np.uint8 else PAGE_ROWS
        for page in np.unique(pages[~self._is_checked[pages]]).tolist():
            if zlib.crc32(self.values[page * size : (page + 1) * size].data) != self._checksums[page]:
                raise DataChangedError(
                    f"The survey in {self.path.parent} is damaged at row {page * PAGE_ROWS:,} or after it: "
                    f"{self.path.name} has a wrong checksum. Delete the folder, and call survey() again."
                )
            self._is_checked[page] = True


def _packed(kept: Mask) -> U8:
    return np.packbits(kept, bitorder="little")


def _reopen(folder: str, expected: str, trust_shared: bool = False) -> Survey:
    if trust_shared:
        trust_folder(Path(folder))
    try:
        survey = Survey.load(Path(folder))
    except (OSError, ValueError, KeyError) as error:
        raise NoDataError(
            f"The survey in {folder} cannot be opened on this machine ({error}). Processes on other machines need the "
            "same folder: pass survey(folder=...) a folder that all machines share, or call survey() on each machine."
        ) from error
    if survey.digest != expected:
        raise DataChangedError(f"The survey in {folder} was replaced by another one. Call survey() again.")
    return survey
