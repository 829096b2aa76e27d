"""A user function that gets columns of an item, more arguments, or another library's object, as in `datasets`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from midepoch.errors import SchemaMismatchError
from midepoch.values.frames import Library, from_library, to_library


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


@dataclass(frozen=True, slots=True)
class WithLibrary:
    """A function of Arrow rows or NumPy arrays that calls a user function of a library's objects."""

    function: Callable[..., Any]
    library: Library

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """A checkpoint knows this function by the user's."""
        return self.function

    @property
    def input_columns(self) -> tuple[str, ...] | None:
        """The columns that the function gets instead of the item."""
        return self.function.input_columns if isinstance(self.function, WithArguments) else None

    def __call__(self, item: Any, *more: Any) -> Any:
        """The function's result, converted back."""
        return from_library(self.function(to_library(item, self.library), *more), self.library)


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
