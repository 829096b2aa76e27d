"""A user function that gets columns of an item, or more arguments, as in `datasets`."""

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np

from midepoch._common.hashing import digest
from midepoch.errors import SchemaMismatchError

LONGEST = 100
"""The most characters of JSON in which an argument is described as it is. A longer one is described by a digest."""


@dataclass(frozen=True, slots=True)
class WithArguments:
    """A function of an item that calls another one with some columns of the item, and with more arguments."""

    function: Callable[..., Any]
    input_columns: tuple[str, ...] | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """A checkpoint knows this function by the user's."""
        return self.function

    def __call__(self, item: Any, *more: Any) -> Any:
        """The function's result for an item; ``more`` is what it also asked for: indices, a random generator."""
        if self.input_columns is None:
            return self.function(item, *more, **self.keywords)
        try:
            columns = [item[name] for name in self.input_columns]
        except KeyError as error:
            known = item.schema.names if hasattr(item, "schema") and not isinstance(item, Mapping) else list(item)
            raise SchemaMismatchError(
                f"input_columns has {error.args[0]!r}, and the item has no such column. It has: {', '.join(known)}."
            ) from None
        return self.function(*columns, *more, **self.keywords)


def with_arguments(
    function: Callable[..., Any], input_columns: Sequence[str] | str | None, fn_kwargs: Mapping[str, Any] | None
) -> Callable[..., Any]:
    """The function itself, or one that calls it with these columns and keyword arguments."""
    if input_columns is None and not fn_kwargs:
        return function
    if not callable(function):
        return function  # the stage says what is wrong
    if not isinstance(fn_kwargs, Mapping | None):
        raise TypeError(f"fn_kwargs must be a dict, got a {type(fn_kwargs).__name__}.")
    names = (input_columns,) if isinstance(input_columns, str) else input_columns
    return WithArguments(function, None if names is None else tuple(names), dict(fn_kwargs or {}))


def check_not_async(function: Callable[..., Any], stage: str) -> None:
    """Raise if calling a user function returns something to await, and not its result."""
    while isinstance(function, WithArguments | partial):
        function = function.func if isinstance(function, partial) else function.function
    called = function, type(function).__call__  # the second for objects
    if any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in called):
        raise TypeError(
            f"{stage} needs a plain function, and {name_of(function)} is async: a call of it has no result until it is "
            "awaited. Wrap it in a function that calls asyncio.run(...). To await many rows at once, let it take "
            "columns and pass batched=True."
        )


def name_of(function: Callable[..., Any]) -> str:
    """A function's qualified name. Its module is left out, as it differs between a script and its workers."""
    if isinstance(function, partial):
        return f"partial({name_of(function.func)})"
    if hasattr(function, "__wrapped__"):
        return name_of(function.__wrapped__)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def describe_function(function: Callable[..., Any]) -> dict[str, Any]:
    """What surveys, caches and checkpoints know of a function: its name, the arguments of partials, ``fn_kwargs``."""
    if isinstance(function, partial):
        inner = describe_function(function.func)
        positional = [repr(describe_argument(value)) for value in function.args]
        keywords = [f"{name}={describe_argument(value)!r}" for name, value in sorted(function.keywords.items())]
        arguments = ", ".join([*positional, *keywords])
        if len(arguments) > 2 * LONGEST:
            arguments = f"<arguments {_short_digest(arguments)}>"
        return {**inner, "fn": f"partial({', '.join(filter(None, [inner['fn'], arguments]))})"}
    if hasattr(function, "__wrapped__"):
        described = describe_function(function.__wrapped__)
        if isinstance(function, WithArguments) and function.keywords:
            described["fn_kwargs"] = {
                name: describe_argument(value) for name, value in sorted(function.keywords.items())
            }
        return described
    return {"fn": name_of(function)}


def describe_argument(value: Any) -> Any:
    """An argument of a function as JSON has it, or a digest of it. Of an object only its class is known."""
    try:
        plain = _plain(value)
        text = json.dumps(plain, sort_keys=True)
    except (RecursionError, ValueError, TypeError):  # it contains itself, or has keys that cannot be sorted
        return f"<{type(value).__qualname__}>"
    return plain if len(text) <= LONGEST else f"<{type(value).__qualname__} {_short_digest(text)}>"


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return f"<{type(value).__qualname__}.{value.name}>"
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else f"<{value}>"  # nan is not equal to itself
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key if isinstance(key, str) else f"<{_plain(key)!r}>": _plain(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return {"set": sorted((_plain(one) for one in value), key=lambda one: json.dumps(one, sort_keys=True))}
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return f"<bytes {_short_digest(bytes(value))}>"
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        return _plain(value.item())
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"<array {value.dtype} {list(value.shape)} {_short_digest(value.tobytes())}>"
    name = getattr(value, "__qualname__", None)  # functions and classes have one
    return f"<{name if isinstance(name, str) else type(value).__qualname__}>"


def _short_digest(content: str | bytes) -> str:
    return digest(content.encode() if isinstance(content, str) else content, size=8).hex()
