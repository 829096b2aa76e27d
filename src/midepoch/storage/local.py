"""Files on this machine: whether a file is still the indexed version, maps of files, and checks of what was mapped."""

import contextlib
import os
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakValueDictionary

import pyarrow as pa

from midepoch.errors import DataChangedError, NoDataError

FileVersion = tuple[int, int, int, int]
"""Device, inode, size and time of change: another file in the same place differs in one of them."""

KEPT_FILES, KEPT_BYTES = 4096, 16 << 30


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
        status = os.stat(path)
    except OSError as error:
        raise DataChangedError(
            f"{path} cannot be read: {error.strerror}. It was there when the dataset was opened: restore it."
        ) from error
    if status.st_mtime_ns != indexed.mtime_ns or status.st_size != indexed.size:
        now = FileStamp(status.st_size, status.st_mtime_ns)
        what = f"{indexed.size:,} bytes then, {now.size:,} now" if now.size != indexed.size else "same size"
        raise DataChangedError(
            f"{path} was changed while it was in use ({what}). Rows of two versions must not be mixed: open the "
            "dataset again and start over. To resume from a checkpoint, restore the file first."
        )


class FileMaps:
    """Maps of files. A map is shared by all who ask for the same file, and closed when nobody holds it."""

    def __init__(self) -> None:
        self._maps: WeakValueDictionary[FileVersion, pa.Buffer] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._maps)

    def map(self, path: str) -> pa.Buffer:
        """The bytes of a file, mapped."""
        version = _version(path)
        content = self._maps.get(version)
        if content is None:
            with pa.memory_map(path) as file:
                content = file.read_buffer()
            if _version(path) == version:  # else another file took its place meanwhile
                self._maps[version] = content
        return content


PROCESS_MAPS = FileMaps()
"""The maps of this process, the only ones there are.

They are shared by datasets that know nothing of each other, and Linux limits the maps of a process, not of a dataset.
The registry holds weak references only, so it keeps nothing alive.
"""


class KeptMaps:
    """The maps that a dataset keeps when their readers are done, because finding the pages again slows an epoch by 10%.

    At most ``KEPT_BYTES`` are kept, because the page tables of the kernel grow with them. No map is kept while the
    process has more than ``KEPT_FILES``, because Linux allows a process 65,530 maps.
    """

    def __init__(self) -> None:
        self._kept: dict[str, pa.Buffer] = {}
        self._bytes = 0

    def keep(self, path: str, size: int) -> None:
        """Keep the map of a file of ``size`` bytes, if the limits allow it."""
        if path in self._kept or self._bytes + size > KEPT_BYTES or len(PROCESS_MAPS) > KEPT_FILES:
            return
        with contextlib.suppress(OSError):  # a missing file is reported by its reader
            self._kept[path] = PROCESS_MAPS.map(path)
            self._bytes += size


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
