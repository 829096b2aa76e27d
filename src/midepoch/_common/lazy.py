"""A cached property without a lock."""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

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
