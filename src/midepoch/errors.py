"""The exceptions that midepoch raises, all of them subclasses of MidepochError and of a built-in exception.

    MidepochError (Exception)
    ├── NoDataError (FileNotFoundError)         nothing to read: no such path, no match, an empty file
    ├── DataFormatError (ValueError)            a file is truncated, damaged, or of an unknown format
    ├── SchemaMismatchError (ValueError)        two files of one dataset disagree, or a column does not exist
    ├── DataChangedError (RuntimeError)         a file has changed since it was indexed
    ├── NotAllowedError (PermissionError)       a row names a file or URL that the user has not allowed
    ├── TooManySkippedError (RuntimeError)      more broken samples were skipped than may be
    ├── StoreError (RuntimeError)               an object store refuses access, or does not answer
    ├── CacheMismatchError (ValueError)         a folder holds the cache of other data or stages
    ├── CheckpointMismatchError (ValueError)    a state is of other data, pipeline, seed or version
    ├── SurveyMismatchError (RuntimeError)      a row is not what a survey says of it
    ├── DigestMismatchError (RuntimeError)      what was delivered is not what should have been
    ├── RanksDisagreeError (RuntimeError)       ranks read other data, pipelines or lanes, or start elsewhere
    ├── StaleIteratorError (RuntimeError)       an iterator is older than the state or epoch that was set
    ├── UnknownStateError (RuntimeError)        a state is asked of a process that cannot know it
    └── MissingExtraError (ImportError)         an optional dependency is not installed

Wrong arguments raise plain ``ValueError`` and ``TypeError``, on the line that passes them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self


class MidepochError(Exception):
    """The base class of all errors about data and checkpoints."""


class NoDataError(MidepochError, FileNotFoundError):
    """There is nothing to read: the path does not exist, matches no file, or a file is empty."""

    def __str__(self) -> str:
        return str(self.args[0])


class DataFormatError(MidepochError, ValueError):
    """A file is truncated, damaged, or of a format that midepoch does not read."""


class SchemaMismatchError(MidepochError, ValueError):
    """Two files of one dataset disagree about a column, or a column does not exist."""


class DataChangedError(MidepochError, RuntimeError):
    """A file has changed since it was indexed."""


class NotAllowedError(MidepochError, PermissionError):
    """A row names a file or a URL that the user has not allowed, or one that is too large."""

    def __str__(self) -> str:
        return str(self.args[0])


class TooManySkippedError(MidepochError, RuntimeError):
    """More broken samples were skipped than may be, or all of them."""


class StoreError(MidepochError, RuntimeError):
    """An object store refuses access, or does not answer."""


class CacheMismatchError(MidepochError, ValueError):
    """A folder holds the cache of other data, stages or version, or something else than a cache."""


class CheckpointMismatchError(MidepochError, ValueError):
    """A state does not fit the dataset that loads it, or is loaded too late."""

    @classmethod
    def damaged(cls, reason: str) -> Self:
        """The error for a state that no run can have saved; ``reason`` says why."""
        return cls(f"The state is damaged: {reason}. Load an earlier checkpoint.")


class SurveyMismatchError(MidepochError, RuntimeError):
    """A row is not what a survey says of it: a function has changed, or does not return the same each time."""


class DigestMismatchError(MidepochError, RuntimeError):
    """The digest of what was delivered is not that of the rows that should have been delivered."""


class RanksDisagreeError(MidepochError, RuntimeError):
    """The ranks of a process group do not read the same, so rows would be lost and repeated."""


class StaleIteratorError(MidepochError, RuntimeError):
    """An iterator is advanced after a state was loaded or another epoch was set, or in a forked process."""

    @classmethod
    def forked(cls, process: int) -> "StaleIteratorError":
        """The error for an iterator that was started in ``process`` and is advanced in a process forked from it."""
        return cls(
            f"This iterator was started in process {process} and cannot continue in process {os.getpid()}, which was "
            "forked from it. Call iter() again there."
        )


class UnknownStateError(MidepochError, RuntimeError):
    """A state is asked of a process that cannot know what was delivered."""


class MissingExtraError(MidepochError, ImportError):
    """An optional dependency is not installed: ``purpose`` needs ``package``, which the extra ``extra`` installs."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(package, extra, purpose)  # what pickle makes it of in another process

    def __str__(self) -> str:
        package, extra, purpose = self.args
        return f"{purpose} needs {package}, which is not installed: pip install 'midepoch[{extra}]'"


@contextmanager
def needs(package: str, extra: str, purpose: str) -> Iterator[None]:
    """For imports of an optional dependency: if they fail, :class:`MissingExtraError` says how to install it."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(package, extra, purpose) from error
