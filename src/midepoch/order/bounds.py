"""The bounds of a slice of rows: numbers, also negative ones, or shares or percents of all rows. Pure functions."""

import re
from typing import Any

from midepoch._common.checks import check_integer

Bound = int | float | str
"""A number of rows, a share of them such as 0.1, or percents such as "10%"."""

PERCENT = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*%\s*")


def slice_bounds(start: Bound | None, stop: Bound | None, rows: int) -> tuple[int, int]:
    """The first row of a slice and its end. They are those of Python, and a slice that would be inverted is empty."""
    first = 0 if start is None else _row("start", start, rows)
    end = rows if stop is None else _row("stop", stop, rows)
    return first, max(first, end)


def percent_of(percent: float, rows: int) -> int:
    """The number of rows nearest to this many percent of them, as `datasets` rounds it."""
    return round(percent * rows / 100)


def clipped(row: int, rows: int) -> int:
    """A bound between 0 and the number of rows. A negative one counts from the end."""
    return min(rows, max(0, row + rows if row < 0 else row))


def _row(name: str, bound: Any, rows: int) -> int:
    if isinstance(bound, float):
        if not -1 <= bound <= 1:
            raise ValueError(f"{name} is {bound}; as a float it is a share of the rows, between -1.0 and 1.0.")
        return clipped(percent_of(bound * 100, rows), rows)
    if not isinstance(bound, str):
        return clipped(check_integer(name, bound, least=None), rows)
    match = PERCENT.fullmatch(bound)
    if match is None or abs(float(match[1])) > 100:
        raise ValueError(f'{name} is {bound!r}; pass a number of rows, or percents between "-100%" and "100%".')
    return clipped(percent_of(float(match[1]), rows), rows)
