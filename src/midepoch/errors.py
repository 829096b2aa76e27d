"""What midepoch raises.

    MidepochError
    ├── NoDataError (FileNotFoundError)         nothing to read: no such path, no match, no bytes
    ├── DataFormatError (ValueError)            a file is truncated, broken or of a format we do not read
    ├── SchemaMismatchError (ValueError)        two files of one data set disagree, or a column is missing
    ├── DataChangedError (RuntimeError)         a file is not the one that was indexed
    ├── StoreError (RuntimeError)               an object store refuses, or does not answer
    ├── CheckpointMismatchError (ValueError)    a state does not fit: other data, pipeline, seed, version, moment
    ├── UnknownStateError (RuntimeError)        a state is asked for where nobody knows it
    └── MissingExtraError (ImportError)         an optional dependency is not installed

Wrong arguments raise plain ``ValueError`` and ``TypeError`` on the line that passes them.
"""


class MidepochError(Exception):
    """Everything that midepoch raises about data and checkpoints."""


class NoDataError(MidepochError, FileNotFoundError):
    """There is nothing to read."""

    def __str__(self) -> str:
        return str(self.args[0])


class DataFormatError(MidepochError, ValueError):
    """A file is truncated, broken, or not of a format that midepoch reads."""


class SchemaMismatchError(MidepochError, ValueError):
    """Two files of one data set disagree about a column, or a column does not exist."""


class DataChangedError(MidepochError, RuntimeError):
    """A file is no longer the one that was indexed."""


class StoreError(MidepochError, RuntimeError):
    """An object store refuses, or does not answer."""


class CheckpointMismatchError(MidepochError, ValueError):
    """A state does not fit what it is loaded into, or is loaded too late."""


class UnknownStateError(MidepochError, RuntimeError):
    """A state is asked for that nobody can know."""


class MissingExtraError(MidepochError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'midepoch[{extra}]'")
