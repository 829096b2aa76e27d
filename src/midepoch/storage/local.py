"""Files on this machine: whether a file is still the indexed version, maps of files, and checks of what was mapped."""

import os
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakValueDictionary

import pyarrow as pa

from midepoch.errors import DataChangedError, NoDataError

FileVersion = tuple[int, int, int, int]
"""Device, inode, size and time of change: another file in the same place differs in one of them."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What a listing says of a version of a file: its size, its time of change and, in a store, its etag or the like.

    Two versions differ in one of them. Some stores tell times in whole seconds, and some list no ``version``.
    """

    size: int
    mtime_ns: int
    version: str = ""


def stamp_of(path: str) -> FileStamp:
    """The stamp that the file has now."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise NoDataError(f"{path} cannot be read: {error.strerror}.") from error
    return FileStamp(status.st_size, status.st_mtime_ns)


def check_unchanged(path: str, indexed: FileStamp) -> None:
    """Raise ``DataChangedError`` if the file is not the version that was indexed."""
    try:
        now = stamp_of(path)
    except NoDataError as error:
        raise DataChangedError(f"{error} It was there when the dataset was opened: restore it.") from error
    if now != indexed:
        raise changed_error(path, difference(indexed.size, now.size))


def changed_error(name: str, what: str) -> DataChangedError:
    """The error for a file or object that is not the version that was indexed."""
    return DataChangedError(
        f"{name} was changed while it was in use ({what}). Rows of two versions must not be mixed: open the dataset "
        "again and start over. To resume from a checkpoint, restore it first."
    )


def difference(then: int, now: int) -> str:
    """How the sizes of two versions differ."""
    return f"{then:,} bytes then, {now:,} now" if then != now else "same size, another version"


_maps: WeakValueDictionary[FileVersion, pa.Buffer] = WeakValueDictionary()


def mapped(path: str) -> pa.Buffer:
    """The bytes of a file, mapped. All readers of this process share a map, which is closed when nobody holds it.

    Linux limits the maps of a process, not of a dataset.
    """
    version = _version(path)
    content = _maps.get(version)
    if content is None:
        with pa.memory_map(path) as file:
            content = file.read_buffer()
        if _version(path) == version:  # else another file took its place meanwhile
            _maps[version] = content
    return content


def _version(path: str) -> FileVersion:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def check_offsets(data: pa.RecordBatch, names: list[str]) -> None:
    """Raise ``ArrowInvalid`` if offsets or indices of these columns point outside of their values.

    Text is not checked for UTF-8, which would read all of it. Bytes that are not UTF-8 raise when they are decoded.
    """
    for name in names:
        for number in data.schema.get_all_field_indices(name):
            _without_text(data.column(number)).validate(full=True)


def _without_text(column: pa.Array) -> pa.Array:
    """The column with bytes in place of text, without a copy, where it can be viewed like that."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = _bytes_for_text(column.type)
    return column if kind == column.type else column.view(kind)


@lru_cache(maxsize=1024)
def _bytes_for_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([_field(kind.field(number)) for number in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field))
    return kind


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_bytes_for_text(field.type))
