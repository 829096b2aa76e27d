"""Checks of the files of which rows are views: values must be of the version that was indexed."""

from collections.abc import Callable, Iterable

Check = Callable[[], None]
"""Raises if a file has changed. Values that were copied from it before are then of the version that was indexed."""


def in_memory() -> None:
    """Check rows that are no view of a file."""


def all_checks(checks: Iterable[Check | None]) -> Check | None:
    """One check for several, each of which is made once; None if there is none."""
    distinct = tuple(dict.fromkeys(check for check in checks if check is not None))
    if len(distinct) < 2:
        return distinct[0] if distinct else None

    def check_all() -> None:
        for check in distinct:
            check()

    return check_all
