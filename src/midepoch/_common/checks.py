"""Checks of arguments that users pass."""

import re
from typing import Any


def whole_number(name: str, value: Any, *, least: int | None = 0) -> int:
    """The value as an int, if it is a whole number that is large enough."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {value!r}.")
    number = int(value.__index__())
    if least is not None and number < least:
        raise ValueError(f"{name} is {number}; it must be at least {least}.")
    return number


UNITS = {"": 1, "b": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for ending, base in (("", 1024), ("b", 1000), ("ib", 1024))
}
Size = int | str


def size_of(name: str, size: Size) -> int:
    """A number of bytes, or a text such as "256MiB" or "1GB", as a number."""
    rule = 'pass a number of bytes, or a text such as "256MiB" or "1GB"'
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f"{name} is a {type(size).__name__}; {rule}.")
    if isinstance(size, int):
        number, unit = float(size), ""
    else:
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", size, re.IGNORECASE)
        if found is None or found[2].lower() not in UNITS:
            raise ValueError(f"{name} is {size!r}; {rule}.")
        number, unit = float(found[1]), found[2].lower()
    if number < 0:
        raise ValueError(f"{name} is {size}; it cannot be negative.")
    return int(number * UNITS[unit])
