"""The bytes of a Parquet page once decompressed, and where its values begin in them."""

import struct

import pyarrow as pa

from midepoch.formats.parquet_pages import DATA_V2, Page

CODECS = {
    "SNAPPY": "snappy",
    "GZIP": "gzip",
    "ZSTD": "zstd",
    "BROTLI": "brotli",
    "LZ4": "lz4_raw",
    "UNKNOWN": "lz4_raw",
}
"""The codecs by the names that pyarrow has for them. It has none for the old "LZ4", which Hadoop writes."""
LZ4 = ("LZ4", "UNKNOWN")
STREAMED = ("GZIP", "ZSTD", "BROTLI")
"""Of these the beginning can be decompressed alone."""
RUNS = 3
"""The encoding of levels as runs, by its number."""
LENGTH, SIZES = struct.Struct("<I"), struct.Struct(">II")


class UncountableError(Exception):
    """A page is too large or too strange to count what it has."""


def contents_of(file: pa.NativeFile, page: Page, compression: str) -> list[bytes]:
    """What the bytes of a page may be once decompressed. None are left if they cannot be decompressed.

    There is one content, as Arrow sees it, unless only Arrow knows how the bytes are compressed: "LZ4" has two layouts,
    of which bytes of real files fit only one, and it may be unsure whether a page is compressed at all.
    """
    stored = page.content or file.read_at(page.stored, page.begin)
    levels, rest = stored[: page.level_bytes], stored[page.level_bytes :]
    if compression == "UNCOMPRESSED" or not rest or page.is_compressed is False:
        return [stored]
    size, found = page.inflated - len(levels), [] if page.is_compressed else [stored]
    for decompressed in (_decompressed, _decompressed_in_parts)[: 2 if compression in LZ4 else 1]:
        try:
            found.append(levels + decompressed(CODECS[compression], rest, size))
        except (KeyError, ValueError, OverflowError, struct.error, pa.ArrowException, OSError):
            continue
    return found


def beginning_of(file: pa.NativeFile, page: Page, compression: str, length: int) -> bytes | None:
    """About the first ``length`` bytes after the levels of a page once decompressed; None if that saves nothing."""
    length += page.level_bytes
    if length > page.inflated // 2 or not page.is_compressed:
        return None
    if compression == "UNCOMPRESSED":
        return bytes(page.content or file.read_at(min(length, page.stored), page.begin))
    if compression not in STREAMED:
        return None
    stored = pa.py_buffer(page.content or file.read_at(page.stored, page.begin))
    try:
        with pa.CompressedInputStream(pa.BufferReader(stored[page.level_bytes :]), CODECS[compression]) as stream:
            return bytes(stored[: page.level_bytes].to_pybytes() + stream.read(length))
    except (pa.ArrowException, OSError):
        return None


def _decompressed(codec: str, content: bytes, size: int) -> bytes:
    if size < 0:
        raise ValueError
    return bytes(pa.Codec(codec).decompress(content, size, asbytes=True))


def _decompressed_in_parts(codec: str, content: bytes, size: int) -> bytes:
    """The same as Hadoop writes it: in parts, each after the number of its bytes before and after compression.

    Each part gets all the room that is left, as Arrow gives it: LZ4 accepts some bytes only if there is more room.
    """
    parts, at = list[bytes](), 0
    while at < len(content):
        inflated, stored = SIZES.unpack_from(content, at)
        at += SIZES.size
        if inflated > size or stored > len(content) - at:
            raise ValueError
        parts.append(_decompressed(codec, content[at : at + stored], size)[:inflated])
        size -= inflated
        at += stored
    if size > 0:
        raise ValueError
    return b"".join(parts)


def values_at(content: bytes, page: Page, levels: tuple[bool, bool]) -> int:
    """Where the values of a page begin: after its levels. Before version 2 each of them begins with its length.

    ``levels`` says whether the column has definition levels and repetition levels.
    """
    if page.kind == DATA_V2:
        return page.level_bytes
    at = 0
    for encoding, exists in zip(page.encodings[1:], levels, strict=False):
        if exists and encoding != RUNS:
            raise UncountableError
    for _ in range(sum(levels)):
        at += LENGTH.size + LENGTH.unpack_from(content, at)[0]
    return at
