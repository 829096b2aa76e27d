"""Which rows of which files some rows are, so that an error about a value can name them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import I64
from midepoch.errors import DataFormatError

Locate = Callable[[int], tuple[str, int]]
"""The name of the file that holds a row, and the row's number in that file."""


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """The numbers of rows in their dataset, and a function that finds the file of a number."""

    numbers: I64
    locate: Locate

    def at(self, chosen: slice | I64) -> "RowOrigin":
        """Some of them."""
        return RowOrigin(self.numbers[chosen], self.locate)


def join_origins(origins: "Iterable[RowOrigin | None]") -> RowOrigin | None:
    """The origin of rows that follow each other; None if that of some is not known, or they are of other datasets."""
    known = list(origins)
    first = known[0]
    if first is None or any(one is None or one.locate != first.locate for one in known):
        return None
    return RowOrigin(np.concatenate([one.numbers for one in known if one is not None]), first.locate)


UNREADABLE = (ValueError, OverflowError, SystemError)
"""What values raise that Python cannot hold: text that is not UTF-8, and times before year 1 or after year 9999."""


def unreadable(batch: pa.RecordBatch, origin: RowOrigin | None, error: Exception) -> Exception:
    """The error for a value that Python cannot hold: it names the column, and the row where that is known.

    An error that is not about a value is returned unchanged.
    """
    found = ((name, _first_unreadable(batch.column(name))) for name in batch.schema.names)
    name, row = next(((name, row) for name, row in found if row is not None), (None, 0))
    if name is None:
        is_text = isinstance(error, UnicodeDecodeError)
        text = f"Text of a file is not UTF-8: {error}. Write the file again in UTF-8."
        return DataFormatError(text) if is_text else error
    where = "a row (without workers, this message names the file)"
    if origin is not None:
        file, number = origin.locate(int(origin.numbers[row]))
        where = f"row {number:,} of {file}"
    if isinstance(error, UnicodeDecodeError):
        return DataFormatError(
            f"The column {name!r} has text that is not UTF-8 in {where}: {error.reason}, "
            f"0x{error.object[error.start]:02x}. Write the file again in UTF-8, or pass columns= without this one."
        )
    return DataFormatError(
        f"The column {name!r} has a value in {where} that Python cannot hold: {error}. Read it with "
        "with_format('arrow'), or pass columns= without this one."
    )


def _first_unreadable(column: Any) -> int | None:
    """The index of the first value that cannot be converted, if any."""
    for number in range(len(column)):
        try:
            column[number].as_py()
        except UNREADABLE:
            return number
    return None
