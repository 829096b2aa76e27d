"""Tar files of samples, as WebDataset has them: a block is a run of samples, found by a walk over the headers.

A sample is a run of members with the same key: their path up to the first dot of its last part. What follows that dot
is their column. Folders, links and names without a dot are in no sample.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from midepoch._common.checks import count
from midepoch.errors import DataFormatError, MidepochError
from midepoch.formats.base import MAX_RECORD_BYTES, Block, Format, Scan, SpannedReader, read_as
from midepoch.formats.text.records import BLOCK_BYTES, BLOCK_RECORDS
from midepoch.storage.objects import Location, Span, StoredFile, open_bytes, open_file
from midepoch.values.features import FEATURE

log = logging.getLogger("midepoch")

KEY = "__key__"
IN_SAMPLE = re.compile(r"(?!__[^/]*__(?:/|$))((?:.*/)?[^.]+)\.([^/]*)", re.DOTALL)
"""The key and the extension. Names such as __index__ are for other programs."""
UNIT = 512
FILES, FOLDER, WITHOUT_CONTENT, SPARSE = (b"0", b"\0", b"7"), b"5", tuple(b"%d" % kind for kind in range(1, 7)), b"S"
LONG_NAME, LONG_LINK, PAX_FOR_ALL = b"L", b"K", b"g"
DESCRIBING = (LONG_NAME, LONG_LINK, PAX_FOR_ALL, b"x", b"X")
"""Headers that say something of those that follow."""
PAX_RECORD = re.compile(rb"(\d{1,9}) ([^=]+)=")
MOST_NAME_BYTES = 1 << 20
"""A header that only describes the next one has no longer content."""
UNPACK = {b"\x1f\x8b": "gunzip", b"\x28\xb5\x2f\xfd": "unzstd", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz"}
NEAR_LOCAL, NEAR_STORED = 16 << 10, 1 << 20
"""What a walk reads rather than seek over it."""
LARGE, PIECES = 32 << 20, 4
"""An object of this size that Energon has indexed is walked in several pieces at once."""
KINDS = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp"), "Image"),
    **dict.fromkeys(("flac", "wav", "mp3"), "Audio"),
    **dict.fromkeys(("cls", "id"), "Integer"),
    **{"mp4": "Video", "json": "Json", "txt": "Text", "npy": "Array"},
}
"""What files are, by their last extension: the features that ``Dataset.decode`` knows."""


class Member(NamedTuple):
    """A file, folder or link: from the first header that describes it to the end of its padded content."""

    name: str
    kind: bytes
    begin: int
    content: int
    size: int
    end: int


class Sample(NamedTuple):
    """Adjacent members with the same key, by extension."""

    key: str
    members: dict[str, Member]


def scan(path: Location, limit: int = MAX_RECORD_BYTES) -> Scan:
    """The columns of a file and the runs of its samples, from its headers."""
    members = _all_members(path)
    columns: dict[str, None] = {}
    blocks: list[tuple[int, int, int]] = []
    rows = 0
    for sample in _samples(path, members):
        columns.update(dict.fromkeys(sample.members))
        parts = list(sample.members.values())
        first, end = parts[0].begin, parts[-1].end
        if end - first > limit:
            raise DataFormatError(
                f"{path}: the sample {sample.key!r} has {end - first:,} bytes, more than max_record_bytes ({limit:,}). "
                "If the file is trusted, pass a larger max_record_bytes to read, or None."
            )
        begin = blocks.pop()[0] if rows else first
        rows += 1
        blocks.append((begin, end - begin, rows))
        if end - begin >= BLOCK_BYTES or rows == BLOCK_RECORDS:
            rows = 0
    others = [one.name for one in members if one.kind != FOLDER and _key_and_extension(one) is None]
    if others:
        log.warning(
            "%s: %s in no sample and left out, such as %s. Links, names without an extension and __names__ are.",
            path,
            count("member is", len(others), "members are"),
            others[0],
        )
    fields = [pa.field(KEY, pa.string()), *map(_field, columns)]
    return Scan("tar", pa.schema(fields) if blocks else None, blocks)


class TarBlocks(SpannedReader):
    """An open tar file. Each read fetches some samples, and walks over their headers."""

    def __init__(self, path: Location, own: pa.Schema, wanted: pa.Schema) -> None:
        self.path, self._wanted = path, wanted

    def spans(self, block: Block) -> list[Span]:
        """All bytes of the samples."""
        return [(block.offset, block.offset + block.length)]

    def decode(self, block: Block, file: pa.NativeFile) -> pa.RecordBatch:
        """The rows of a block, from a file that has its bytes."""
        data: bytes = file.read_at(block.length, block.offset)

        def read_at(nbytes: int, offset: int) -> bytes:
            return data[offset - block.offset : offset - block.offset + nbytes]

        end = block.offset + block.length
        samples = list(_samples(self.path, _members(self.path, read_at, end, block.offset, end, verify=False)))
        view = memoryview(data)

        def contents(extension: str) -> Iterator[memoryview | None]:
            for sample in samples:
                found = sample.members.get(extension)
                yield None if found is None else view[found.content - block.offset :][: found.size]

        keys = pa.array([sample.key for sample in samples], pa.string())
        names = [name for name in self._wanted.names if name != KEY]
        columns = [pa.array(contents(name), pa.binary()) for name in names]
        return read_as(pa.record_batch([keys, *columns], [KEY, *names]), self._wanted)


def _samples(path: Location, members: Iterable[Member]) -> Iterator[Sample]:
    """The samples of a file. A key that comes back later begins another sample, as in WebDataset."""
    sample: Sample | None = None
    for member in members:
        split = _key_and_extension(member)
        if split is None:
            continue
        key, extension = split
        if sample is None or sample.key != key:
            if sample is not None:
                yield sample
            sample = Sample(key, {})
        if extension in sample.members or extension == KEY:
            raise DataFormatError(
                f"{path}: the sample {key!r} has {extension!r} twice. Extensions are compared in lower case. Write the "
                "file again with another name for one of them."
            )
        sample.members[extension] = member
    if sample is not None:
        yield sample


def _key_and_extension(member: Member) -> tuple[str, str] | None:
    """The sample that a member is of, and its column in it; None if it is in no sample."""
    found = IN_SAMPLE.fullmatch(member.name) if member.kind in FILES else None
    return found and (found[1], found[2].lower())


def _field(extension: str) -> pa.Field:
    kind = KINDS.get(extension.rpartition(".")[2])
    return pa.field(extension, pa.binary(), metadata=kind and {FEATURE: json.dumps({"_type": kind})})


def _all_members(path: Location) -> list[Member]:
    """All members of a file, in its order."""
    with open_file(path) as opened:
        size = opened.size()
    read_at = open_bytes(path).read_at
    near = NEAR_STORED if isinstance(path, StoredFile) else NEAR_LOCAL

    def walked(begin: int, end: int | None) -> list[Member]:
        return list(_members(path, _Windows(read_at, near).read_at, size, begin, end))

    if isinstance(path, StoredFile) and size >= LARGE and (starts := _energon_starts(path, size)):
        try:
            with ThreadPoolExecutor(PIECES) as pool:
                return list(chain.from_iterable(pool.map(walked, [0, *starts], [*starts, None])))
        except DataFormatError as error:
            log.warning("%s.idx is not used, because it is of another file: %s", path, error)
    return walked(0, None)


def _energon_starts(path: StoredFile, size: int) -> list[int]:
    """Where some samples begin that divide a file into pieces, as the index beside it says; empty if it has none."""
    index = path.beside(".idx")
    try:
        starts = np.frombuffer(index.read_at(min(index.size, size // UNIT * 8) // 8 * 8, 0), "<u8")
    except MidepochError:
        return []
    chosen = {int(starts[len(starts) * piece // PIECES]) for piece in range(1, PIECES)} if len(starts) else set()
    return sorted(one for one in chosen if 0 < one < size)


class _Windows:
    """Bytes of a file, which are read in windows: larger ones where the walk would seek only a little."""

    def __init__(self, read_at: Callable[[int, int], bytes], near: int) -> None:
        self._read_at, self._near, self._step = read_at, near, near
        self._begin, self._data = 0, b""

    def read_at(self, nbytes: int, offset: int) -> bytes:
        skipped = offset - self._begin - len(self._data)
        if skipped + nbytes > 0 or offset < self._begin:
            self._step = min(2 * self._step, 4 * self._near) if skipped <= self._near else self._near // 4
            self._begin, self._data = offset, self._read_at(max(nbytes, self._step), offset)
        return self._data[offset - self._begin : offset - self._begin + nbytes]


def _members(
    path: Location,
    read_at: Callable[[int, int], bytes],
    size: int,
    begin: int,
    end: int | None,
    *,
    verify: bool = True,
) -> Iterator[Member]:
    """The members of a file of ``size`` bytes from a header on, up to another header or the zeros at its end.

    Checksums of headers that a scan has verified need not be verified again: the walk ends where it should, or raises.
    """
    at = first = begin
    described: dict[bytes, bytes] = {}
    while end is None or at < end:
        header = read_at(UNIT, at)
        if not at:
            _check_packed(path, header)
        if len(header) < UNIT:
            raise _truncated(path, size)
        if not any(header):
            _check_end(path, at, read_at(min(size - at, NEAR_LOCAL), at))
            return
        kind, content = header[156:157], at + UNIT
        nbytes = _number(header[124:136])
        if kind not in DESCRIBING and b"size" in described:
            nbytes = _decimal(described[b"size"])
        if nbytes < 0 or (verify and not is_header(header)):
            raise _no_header(path, at, header)
        at = content if kind in WITHOUT_CONTENT else content + -(-nbytes // UNIT) * UNIT
        if at > size:
            raise _truncated(path, size)
        if kind in DESCRIBING:
            described |= _described(path, kind, read_at(min(nbytes, MOST_NAME_BYTES), content))
            continue
        try:
            name = described.get(b"path", _name(header)).decode()
        except UnicodeDecodeError:
            raise DataFormatError(
                f"{path}: the name of the member at byte {first:,} is not UTF-8. Write the file again with other names."
            ) from None
        if kind == SPARSE or any(key.startswith(b"GNU.sparse") for key in described):
            raise DataFormatError(f"{path}: {name!r} is stored as a sparse file. Write the tar without --sparse.")
        yield Member(name, kind, first, content, nbytes, at)
        first, described = at, {}
    if at != end:
        raise _no_header(path, at, b"")


def is_header(header: bytes) -> bool:
    """True if bytes begin with the header of a member: its checksum is right."""
    header = header[:UNIT]
    return len(header) == UNIT and _number(header[148:156]) == sum(header) - sum(header[148:156]) + 8 * ord(" ")


def _number(field: bytes) -> int:
    """A number of a header: octal digits, or after a byte of 128 its bytes; -1 if it is neither."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip()
    return int(digits or b"0", 8) if not digits.strip(b"01234567") else -1


def _name(header: bytes) -> bytes:
    """The name in a header. GNU tar has other things where POSIX has folders that did not fit."""
    name, folders = header[:100].partition(b"\0")[0], header[345:500].partition(b"\0")[0]
    return folders + b"/" + name if folders and not header.startswith(b"ustar  ", 257) else name


def _described(path: Location, kind: bytes, content: bytes) -> dict[bytes, bytes]:
    """What a header says of the next one."""
    if kind in (LONG_NAME, LONG_LINK):
        return {b"path": content.partition(b"\0")[0]} if kind == LONG_NAME else {}
    records: dict[bytes, bytes] = {}
    at = 0
    while (found := PAX_RECORD.match(content, at)) is not None:
        records[found[2]] = content[found.end() : at + int(found[1]) - 1]
        at = max(found.end(), at + int(found[1]))
    if kind == PAX_FOR_ALL and not records.keys().isdisjoint((b"path", b"size")):
        raise DataFormatError(f"{path} gives all members one name or size. Write the tar without such --pax-option.")
    return {} if kind == PAX_FOR_ALL else records


def _decimal(digits: bytes) -> int:
    return int(digits) if digits.isdigit() else -1


def _truncated(path: Location, size: int) -> DataFormatError:
    return DataFormatError(
        f"{path} is truncated: it has {size:,} bytes, and ends before the zeros that a tar file ends with. Copy or "
        f"write it again. If only the zeros are missing, add them: head -c 1024 /dev/zero >> {path}"
    )


def _no_header(path: Location, at: int, found: bytes) -> DataFormatError:
    what = "is no tar file" if not at else f"is broken at byte {at:,}"
    return DataFormatError(f"{path} {what}: there is no header of a member, but {found[:8]!r}. Copy or write it again.")


def _check_packed(path: Location, head: bytes) -> None:
    """Raise if a file begins as compressed ones do."""
    for magic, tool in UNPACK.items():
        if head.startswith(magic) and not is_header(head):
            raise DataFormatError(
                f"{path} is compressed as a whole, so it cannot be read in place. Decompress it: {tool} {path}"
            )


def _check_end(path: Location, at: int, rest: bytes) -> None:
    """Raise unless only zeros follow the mark at the end."""
    if any(rest):
        raise DataFormatError(
            f"{path} is several tar files in one: more follows the zeros at byte {at:,}, where the first one ends. "
            "Join them by tar --concatenate, or write them apart."
        )


FORMAT = Format(
    name="tar",
    suffixes=(".tar",),
    is_named=True,
    types="values",
    has_magic=is_header,
    scan=scan,
    open_blocks=TarBlocks,
    has_spans=True,
)
