"""A survey on disk: for every row of an indexed dataset, whether the filters keep it, and how many tokens it has.

Rows are numbered as in the index. One flat file has a bit for each row, another a length of 32 bits. Both are mapped.
They are divided into *pages* of rows. A header has a checksum of each page, which is compared when the page is first
used. So nothing is read when a survey is opened.
"""

import io
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from midepoch._common.checks import cached_property, count
from midepoch._common.files import (
    framed,
    is_shared,
    make_private_folder,
    map_trusted,
    open_privately,
    read_trusted,
    remove_folder,
    temporary_name,
    trust_folder,
    unframed,
    write_privately,
)
from midepoch._common.hashing import I64, digest
from midepoch.errors import DataChangedError, NoDataError

Mask = npt.NDArray[np.bool_]
U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]

MAGIC, UNIT_MAGIC = b"MSV2", b"MSU2"
HEADER, KEPT, LENGTHS = "header", "kept.bits", "lengths.u32"
PAGE_ROWS = 1 << 20
CELL_ROWS = 256
"""How many rows are searched together for a kept row. A table has 8 bytes for each of these cells."""
ROWS_AT_ONCE = 4096
"""How many rows are looked up together, which bounds the memory."""
MAX_LENGTH = (1 << 32) - 2


class UnitRows(NamedTuple):
    """What is known of some consecutive rows. An array is None if that is not surveyed."""

    kept: Mask | None
    lengths: U32 | None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return next(len(array) for array in self if array is not None)

    def to_bytes(self) -> bytes:
        """The bytes of a file of their own, with a checksum."""
        content = io.BytesIO()
        np.savez(content, **{name: array for name, array in self._asdict().items() if array is not None})
        return framed(content.getvalue(), UNIT_MAGIC)

    @classmethod
    def from_bytes(cls, content: bytes) -> "UnitRows":
        """The rows of such a file; ``ValueError`` if it is damaged."""
        body, _ = unframed(content, UNIT_MAGIC)
        arrays = np.load(io.BytesIO(body), allow_pickle=False)
        return cls(arrays.get("kept"), arrays.get("lengths"))


class Survey:
    """The survey in a folder. Its pickle is the folder's path, so other machines must see the same folder."""

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        self.folder = folder
        self.rows: int = header["rows"]
        """The number of rows of the dataset."""
        self.covered: int = header["covered"]
        """How many of the pipeline's counting stages it covers, from the first one on. Filters of ``read`` are none."""
        self.digest = _digest(header)
        """A digest of what it says of the rows. It does not depend on where it is."""
        self.kept_digest = _digest([self.rows, header["kept"]])
        """The same of which rows the filters keep, alone."""
        self._kept = None if header["kept"] is None else _Pages(folder / KEPT, header["kept"])
        self._lengths = None if header["lengths"] is None else _Pages(folder / LENGTHS, header["lengths"])
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

    def kept(self, rows: I64) -> Mask:
        """For each of these rows, whether the filters keep it."""
        if self._kept is None:
            return np.ones(len(rows), bool)
        self._kept.check(rows // PAGE_ROWS)
        kept: Mask = (self._kept.values[rows >> 3] >> (rows & 7).astype(np.uint8) & 1).astype(bool)
        return kept

    def lengths(self, rows: I64) -> I64:
        """The number of tokens of each of these rows; 0 for those that are not kept."""
        if self._lengths is None:
            raise ValueError(f"{self!r} has no lengths: it was made before pack was added. Call survey() after pack.")
        self._lengths.check(rows // PAGE_ROWS)
        lengths: I64 = self._lengths.values[rows].astype(np.int64)
        return lengths

    def kept_before(self, rows: I64) -> I64:
        """How many rows before each of these are kept. The number of all rows counts them all."""
        return rows.astype(np.int64) if self._kept is None or not self.rows else _in_parts(self._kept_before, rows)

    def _kept_before(self, rows: I64) -> I64:
        cells, inside = np.divmod(rows, CELL_ROWS)
        before_in_cell = self._bits_of(cells) & (np.arange(CELL_ROWS) < inside[:, None])
        before: I64 = self._kept_before_cells[cells] + np.count_nonzero(before_in_cell, axis=1)
        return before

    def kept_at(self, numbers: I64) -> I64:
        """The rows with these numbers among all kept rows."""
        return numbers if self._kept is None else _in_parts(self._kept_at, numbers)

    def _kept_at(self, numbers: I64) -> I64:
        before = self._kept_before_cells
        cells, of_numbers = np.unique(np.searchsorted(before, numbers, "right") - 1, return_inverse=True)
        kept = np.flatnonzero(self._bits_of(cells))  # in these cells, one after the other
        firsts = np.searchsorted(kept, CELL_ROWS * np.arange(len(cells)))
        rows: I64 = CELL_ROWS * cells[of_numbers] + kept[(firsts - before[cells])[of_numbers] + numbers] % CELL_ROWS
        return rows

    def _bits_of(self, cells: I64) -> Mask:
        """Whether each row of each cell is kept. What the last cell lacks comes after all its rows."""
        assert self._kept is not None
        of_cells = cells[:, None] * (CELL_ROWS >> 3) + np.arange(CELL_ROWS >> 3)
        content = self._kept.values[np.minimum(of_cells, len(self._kept.values) - 1)]
        return np.unpackbits(content, axis=1, bitorder="little").view(bool)

    @cached_property
    def _kept_before_cells(self) -> I64:
        """The number of kept rows before each cell, and of all. All bits are read once."""
        assert self._kept is not None
        self._kept.check(np.arange(-(-self.rows // PAGE_ROWS)))
        counts = [np.zeros(1, np.int64)]
        for start in range(0, len(self._kept.values), CELL_ROWS * ROWS_AT_ONCE >> 3):
            bits = np.unpackbits(self._kept.values[start : start + (CELL_ROWS * ROWS_AT_ONCE >> 3)])
            counts.append(np.add.reduceat(bits, np.arange(0, len(bits), CELL_ROWS), dtype=np.int64))
        before: I64 = np.cumsum(np.concatenate(counts))
        return before


def write_survey(folder: Path, units: Iterable[UnitRows | None], *, rows: int, covered: int, work: Path) -> Survey:
    """Join the units of all rows, in order, to the survey in ``folder``. There is at least one; None is an error.

    It is written in the folder ``work`` and appears as a whole. If another process has just put one there, that one is
    used.
    """
    temporary = temporary_name(work / folder.name)
    try:
        make_private_folder(temporary)
        header = {**_join(temporary, units, rows), "rows": rows, "covered": covered}
        write_privately(temporary / HEADER, framed(json.dumps(header).encode(), MAGIC))
        with suppress(OSError):  # a folder that is not empty is never replaced
            temporary.rename(folder)
        return Survey.load(folder)
    finally:
        remove_folder(temporary)


def _join(folder: Path, units: Iterable[UnitRows | None], rows: int) -> dict[str, list[int] | None]:
    """Write the bits and the lengths, and return the checksums of their pages; None of what is not surveyed."""
    written, unit = 0, None
    left = np.empty(0, bool)  # the rows after the last whole byte
    with open_privately(folder / KEPT) as bits, open_privately(folder / LENGTHS) as lengths:
        for unit in units:
            if unit is None:
                raise FileNotFoundError("a unit is missing or damaged")
            written += unit.rows
            if unit.kept is not None:
                left = np.concatenate([left, unit.kept])
                bits.write(_packed(left[: len(left) // 8 * 8]).data)
                left = left[len(left) // 8 * 8 :]
            if unit.lengths is not None:
                lengths.write(unit.lengths.astype("<u4", copy=False).data)
        bits.write(_packed(left).data)
    if unit is None or written != rows:
        raise ValueError(f"The units of a survey have {count('row', written)}, but the dataset has {rows:,}.")
    return {
        "kept": None if unit.kept is None else _Pages(folder / KEPT).checksums,
        "lengths": None if unit.lengths is None else _Pages(folder / LENGTHS).checksums,
    }


class _Pages:
    """A mapped file of bits or lengths, whose pages are checked when they are first used."""

    def __init__(self, path: Path, checksums: list[int] | None = None) -> None:
        """Without ``checksums``, they are those that the file has now."""
        self.path = path
        dtype = np.dtype(np.uint8) if path.name == KEPT else np.dtype("<u4")
        self._page = PAGE_ROWS >> 3 if path.name == KEPT else PAGE_ROWS
        self.values: npt.NDArray[Any] = np.empty(0, dtype)
        if path.stat().st_size:
            self.values = np.frombuffer(map_trusted(path), dtype)
        pages = range(-(-len(self.values) // self._page))
        self.checksums = [self._checksum(page) for page in pages] if checksums is None else checksums
        self._is_checked = np.zeros(len(self.checksums), bool)

    def _checksum(self, page: int) -> int:
        return zlib.crc32(self.values[page * self._page : (page + 1) * self._page].data)

    def check(self, pages: I64) -> None:
        """Raise if one of these pages is damaged."""
        if self._is_checked[pages].all():
            return
        for page in np.unique(pages[~self._is_checked[pages]]).tolist():
            if self._checksum(page) != self.checksums[page]:
                raise DataChangedError(
                    f"The survey in {self.path.parent} is damaged at row {page * PAGE_ROWS:,} or after it: "
                    f"{self.path.name} has a wrong checksum. Delete the folder, and call survey() again."
                )
            self._is_checked[page] = True


def _packed(kept: Mask) -> U8:
    return np.packbits(kept, bitorder="little")


def _digest(facts: Any) -> str:
    return digest(json.dumps(facts, sort_keys=True).encode(), size=16).hex()


def _in_parts(look_up: Callable[[I64], I64], numbers: I64) -> I64:
    """Look up some numbers at a time."""
    parts = [look_up(numbers[start : start + ROWS_AT_ONCE]) for start in range(0, len(numbers), ROWS_AT_ONCE)]
    return np.concatenate([np.empty(0, np.int64), *parts])


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
