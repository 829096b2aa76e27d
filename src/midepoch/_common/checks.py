"""Checks of the arguments that users pass, words for messages, messages that are logged once, and a cached property."""

import copy
import logging
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Generic, Self, TypeVar, overload

UNITS = {"": 1, "b": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for ending, base in (("", 1024), ("b", 1000), ("ib", 1024))
}
Size = int | str
"""A number of bytes, or a string such as "256MiB"."""
Version = str | int | None
"""What a user changes when functions make other rows than before."""


def check_integer(name: str, value: Any, *, least: int | None = 0, most: int | None = None) -> int:
    """The value as an int; ``TypeError`` if it is not an integer, ``ValueError`` if it is out of bounds."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        text = isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,18}\s*", value)
        raise TypeError(f"{name} must be an integer, got {value!r}." + (f" Pass {int(value)}." if text else ""))
    number = int(value.__index__())
    if least is not None and number < least:
        raise ValueError(f"{name} is {number}; it must be at least {least}.")
    if most is not None and number > most:
        raise ValueError(f"{name} is {number}; it must be at most {most}.")
    return number


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise ``ValueError`` if a value is none of the choices."""
    *others, last = choices
    if value not in (*others, last):
        raise ValueError(f"{name} is {value!r}; it can be {', '.join(map(repr, others))} or {last!r}.")


def options_among(kind: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments of a call that are options of a dataclass."""
    return {one.name: arguments[one.name] for one in fields(kind) if one.name in arguments}


def way_to_a_dataset(given: object) -> str:
    """How something that is no midepoch dataset becomes one, in a sentence."""
    kinds = [f"{kind.__module__}.{kind.__name__}" for kind in type(given).__mro__]
    if isinstance(given, str | os.PathLike):
        return "Open the files first: midepoch.read(path)."
    if kinds[0].startswith("datasets."):
        return (
            "Open it with midepoch.from_hf(dataset), or one split of several: midepoch.from_hf(dataset['train']). A "
            "stream has no files to resume in: open what it reads with midepoch.read(files)."
        )
    if any(kind.startswith("torch.") and kind.endswith(".DataLoader") for kind in kinds):
        return "Pass the dataset that it reads. A midepoch.Loader takes the place of a DataLoader."
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, Mapping):
        return "Open it with midepoch.from_indexable(dataset), as anything with len() and [i]."
    if any(kind.startswith("torch.") for kind in kinds):
        return "A stream has no positions to resume at. Open the files that it reads: midepoch.read(files)."
    return "Make one with midepoch.read(files), or midepoch.from_indexable(rows) of what has len() and [i]."


def parse_size(name: str, size: Size) -> int:
    """The bytes of a size: it is their number already, or a string such as "256MiB" or "1GB"."""
    rule = 'pass a number of bytes, or a string such as "256MiB" or "1GB"'
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f"{name} is a {type(size).__name__}; {rule}.")
    if isinstance(size, int):
        number, unit = float(size), ""
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", size, re.IGNORECASE)
        if match is None or match[2].lower() not in UNITS:
            raise ValueError(f"{name} is {size!r}; {rule}.")
        number, unit = float(match[1]), match[2].lower()
    if number < 0:
        raise ValueError(f"{name} is {size}; it cannot be negative.")
    return int(number * UNITS[unit])


def checked_version(version: Any) -> Version:
    """The version that a user gives to the functions of a pipeline; ``TypeError`` if it is neither text nor number."""
    if isinstance(version, bool) or not isinstance(version, str | int | None):
        raise TypeError(f"version is {version!r}; it can be a string, an integer, or left out.")
    return version


def seed_of(generator: Any, seed: int | None) -> int:
    """A seed from a generator of NumPy or torch, which is not advanced. ``seed`` must be left out then."""
    if seed is not None:
        raise ValueError("Pass a seed or a generator, not both.")
    if hasattr(generator, "initial_seed"):
        return int(generator.initial_seed())
    if hasattr(generator, "bit_generator"):
        return int(copy.deepcopy(generator).integers(1 << 63))
    raise TypeError(
        f"generator is a {type(generator).__name__}; it must be a numpy.random.Generator or a torch.Generator."
    )


def count(noun: str, number: int, plural: str | None = None) -> str:
    """The number and its noun, as in "1 file" and "1,234 files"; ``plural`` is for nouns that do not just add an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def size_in_words(nbytes: int) -> str:
    """A number of bytes in the largest unit of which there is one, as in "512 MiB" and "1.5 GiB"."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, nbytes.bit_length() - 1) // 10)
    return f"{nbytes / 1024**power:.1f}".removesuffix(".0") + f" {units[power]}"


log = logging.getLogger("midepoch")


@cache
def log_once(message: str, level: int = logging.WARNING) -> None:
    """Log a message the first time this process has it."""
    log.log(level, message)


T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801
    """Computes an attribute on its first use and keeps it in the object, like that of ``functools``.

    In Python 3.11 ``functools.cached_property`` holds a lock while it computes: one per attribute, for all objects. A
    process that is forked at that moment inherits the lock, and waits for it forever. Here two threads may compute the
    same value at once; both get the one that was there first.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self._name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        return instance.__dict__.setdefault(self._name, self._function(instance))  # type: ignore[no-any-return]


def shortened(value: Any, most: int = 80) -> str:
    """The value for an error message, at most ``most`` characters, however large or deeply nested it is."""
    try:
        text = _short.repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python writes
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= most else text[: most - 3] + "..."


_short = reprlib.Repr()
_short.maxlevel, _short.maxother, _short.maxstring, _short.maxlong = 6, 300, 300, 80
_short.maxdict = _short.maxlist = _short.maxtuple = 20
