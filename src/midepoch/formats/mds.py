"""MDS shards, as MosaicML Streaming writes them: a block is a run of samples, found by the offsets at the file's head.

A shard has the number of its samples, the offset of each and of their end, the encodings of its columns as JSON, and
the samples. A sample has the sizes of the values whose encoding has no fixed one, and then the values.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import I64
from midepoch.errors import DataFormatError
from midepoch.formats.base import MAX_RECORD_BYTES, Block, Format, Scan, SpannedReader, check_inflation, read_as
from midepoch.formats.text.records import BLOCK_BYTES, BLOCK_RECORDS, block_ends
from midepoch.storage.objects import Location, Span, open_file
from midepoch.values.features import FEATURE

CODECS = {".br": "brotli", ".bz2": "bz2", ".gz": "gzip", ".snappy": "snappy", ".zstd": "zstd"}
"""How a shard that is compressed as a whole is decompressed, by the end of its name."""
VERSION = 2
NUMBERS = {name: name for bits in (8, 16, 32, 64) for name in (f"int{bits}", f"uint{bits}")} | {
    **{"int": "int64", "float16": "float16", "float32": "float32", "float64": "float64"},
}
"""The NumPy types of numbers, by their encoding."""
CODES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32"} | {
    **{64: "uint64", 65: "int64", 66: "float64"},
}
"""The NumPy types of arrays, by the number that an array has in front of it."""
LISTS = {
    "list[jpeg]": "Image",
    "list[png]": "Image",
    "list[pil]": "RawImage",
    "jpeg_array": "Image",
    "jpegarray": "Image",
}
KINDS = {"jpeg": "Image", "png": "Image", "pil": "RawImage", "pkl": "Pickle", "bytes": None}
TEXTS = {"str": None, "str_int": "Integer", "str_decimal": "Decimal", "json": "Json"}
"""Lists of bytes, bytes and texts, with the features by which ``Dataset.decode`` knows what they hold."""


class Encoded(NamedTuple):
    """A column of a shard: the bytes of each value, if all have as many, and what is fixed of the arrays in it."""

    name: str
    encoding: str
    size: int | None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


class Head(NamedTuple):
    """What stands before the samples."""

    offsets: I64
    columns: list[Encoded]
    first: bytes
    """The first sample."""


def scan(path: Location, limit: int = MAX_RECORD_BYTES) -> Scan:
    """The columns and the runs of samples of a shard, from its head. One that is compressed has a single run."""
    head = _head(path, limit)
    if len(head.offsets) < 2:
        return Scan("mds", None, ())
    largest, begin = int(np.diff(head.offsets).max()), int(head.offsets[0])
    if largest > limit:
        raise DataFormatError(
            f"{path} has a sample of {largest:,} bytes, more than max_record_bytes ({limit:,}). If the file is "
            "trusted, pass a larger max_record_bytes to read, or None."
        )
    with _explained(path):
        values = next(_values(head.columns, head.first, np.array([0, len(head.first)])))
        schema = pa.schema([_field(column, value) for column, value in zip(head.columns, values, strict=True)])
    if _codec(path) is not None:
        return Scan("mds", schema, [(0, int(head.offsets[-1]), len(head.offsets) - 1)])
    ends = [begin, *(begin + end for end in block_ends(head.offsets[1:] - begin, BLOCK_BYTES, BLOCK_RECORDS))]
    bounds = [*ends, int(head.offsets[-1])] if ends[-1] < head.offsets[-1] else ends
    rows = np.diff(head.offsets.searchsorted(bounds)).tolist()
    return Scan(
        "mds", schema, [(one, end - one, count) for (one, end), count in zip(pairwise(bounds), rows, strict=True)]
    )


class MdsBlocks(SpannedReader):
    """An open shard. Each read fetches some samples, or all of a shard that is compressed."""

    def __init__(self, path: Location, own: pa.Schema, wanted: pa.Schema) -> None:
        self.path, self._own, self._wanted = path, own, wanted
        self._codec, self._size, self._head = _codec(path), _size(path), _head(path)

    def spans(self, block: Block) -> list[Span]:
        """The bytes of the samples, or of the whole shard."""
        return [(block.offset, block.offset + block.length) if self._codec is None else (0, self._size)]

    def decode(self, block: Block, file: pa.NativeFile) -> pa.RecordBatch:
        """The rows of a block, from a file that has its bytes."""
        with _explained(self.path):
            end = block.offset + block.length
            file.seek(block.offset)
            data = _exactly(file if self._codec is None else _inflated(self.path, file, self._codec), block.length)
            first, last = self._head.offsets.searchsorted([block.offset, end]).tolist()
            offsets = self._head.offsets[first : last + 1] - block.offset
            rows = list(_values(self._head.columns, data, offsets))
            arrays = {
                column.name: _array(column, values, self._own.field(column.name).type)
                for column, values in zip(self._head.columns, zip(*rows, strict=True), strict=True)
                if column.name in self._wanted.names
            }
            return read_as(pa.record_batch(arrays or {"": pa.nulls(len(rows))}), self._wanted)


def _head(path: Location, limit: int | None = None) -> Head:
    """The head of a shard, and its first sample. ``limit`` is max_record_bytes, unless it was checked already."""
    size, codec = _size(path), _codec(path)
    with _explained(path), open_file(path) as file:
        stream = file if codec is None else _inflated(path, file, codec, limit)
        (count,) = struct.unpack("<I", _exactly(stream, 4))
        if codec is None and 4 * (count + 2) > size:
            raise ValueError(f"it says that it has {count:,} samples, in {size:,} bytes")
        if limit is not None:
            check_inflation(str(path), size, 4 * count, limit)
        offsets = np.frombuffer(_exactly(stream, 4 * (count + 1)), "<u4").astype(np.int64)
        if (np.diff(offsets) <= 0).any() or offsets[0] < 4 * (count + 2):
            raise ValueError("the offsets of its samples do not rise")
        if codec is None and offsets[-1] != size:
            raise ValueError(f"it has {size:,} bytes, and should have {offsets[-1]:,}")
        if limit is not None:
            check_inflation(str(path), size, int(offsets[-1]), limit)
        config = json.loads(_exactly(stream, int(offsets[0]) - 4 * (count + 2)))
        if config["version"] != VERSION or config["format"] != "mds":
            raise ValueError(f"it is of the format {config['format']!r}, version {config['version']!r}")
        names = zip(config["column_names"], config["column_encodings"], config["column_sizes"], strict=True)
        columns = [_column(path, name, encoding, size or None) for name, encoding, size in names]
        return Head(offsets, columns, _exactly(stream, int(offsets[1] - offsets[0])) if count else b"")


def _column(path: Location, name: str, encoding: str, size: int | None) -> Encoded:
    kind, _, details = encoding.partition(":")
    dtype, _, axes = details.partition(":")
    if kind != "ndarray" or dtype not in ("", *CODES.values()):
        known = {*NUMBERS, *LISTS, *KINDS, *TEXTS, "str_float"}
        if encoding not in known:
            raise DataFormatError(
                f"{path}: the column {name!r} has the encoding {encoding!r}, which midepoch does not know. It knows "
                f"ndarray and {', '.join(sorted(known))}. Write the shards again with one of these."
            )
        dtype = NUMBERS.get(encoding, "")
        column = Encoded(name, encoding, size, dtype or None, ())
    else:
        column = Encoded(name, kind, size, dtype or None, tuple(map(int, axes.split(","))) if axes else None)
    if size != (np.dtype(dtype).itemsize * prod(column.shape) if dtype and column.shape is not None else None):
        raise ValueError(f"the values of {name!r} ({encoding}) cannot have {size} bytes")
    return column


def _values(columns: Sequence[Encoded], data: bytes, offsets: I64) -> Iterator[list[memoryview]]:
    """The bytes of the values of each sample."""
    view, sizes = memoryview(data), struct.Struct(f"<{sum(column.size is None for column in columns)}I")
    for begin, end in pairwise(offsets.tolist()):
        own = iter(sizes.unpack_from(view, begin))
        lengths = [next(own) if column.size is None else column.size for column in columns]
        bounds = list(accumulate(lengths, initial=begin + sizes.size))
        if bounds[-1] != end:
            raise ValueError(f"a sample has {end - begin:,} bytes, and its values have {bounds[-1] - begin:,}")
        yield [view[first:last] for first, last in pairwise(bounds)]


def _field(column: Encoded, value: memoryview) -> pa.Field:
    """The Arrow column of a column. The first value says what is not fixed of the arrays in it."""
    name, encoding = column.name, column.encoding
    if encoding == "ndarray":
        dtype, shape, _ = _shaped(column, value)
        kind = pa.from_numpy_dtype(np.dtype(dtype))
        for _ in shape:
            kind = pa.list_(kind)
        return pa.field(name, kind)
    if encoding in NUMBERS:
        return pa.field(name, pa.from_numpy_dtype(np.dtype(NUMBERS[encoding])))
    if encoding == "str_float":
        return pa.field(name, pa.float64())
    feature: dict[str, Any] = {"_type": {**LISTS, **KINDS, **TEXTS}[encoding]}
    if encoding in LISTS:
        feature = {"_type": "List", "feature": feature}
    kind = pa.list_(pa.binary()) if encoding in LISTS else pa.string() if encoding in TEXTS else pa.binary()
    return pa.field(name, kind, metadata={FEATURE: json.dumps(feature)} if feature["_type"] else None)


def _array(column: Encoded, values: Sequence[memoryview], kind: pa.DataType) -> pa.Array:
    """The Arrow array of the values of a column."""
    if column.encoding in NUMBERS:
        return pa.array(np.frombuffer(b"".join(values), NUMBERS[column.encoding]))
    if column.encoding == "str_float":
        return pa.array([float(bytes(value)) for value in values], kind)
    if column.encoding in LISTS:
        return pa.array([_items(value, 4 if column.encoding.startswith("list") else 0) for value in values], kind)
    if column.encoding != "ndarray":
        return pa.array(values, pa.binary()).cast(kind)
    dtypes, shapes, contents = zip(*(_shaped(column, value) for value in values), strict=True)
    array = pa.array(np.frombuffer(b"".join(contents), dtypes[0]))
    for axis in reversed(range(len(shapes[0]))):
        lengths = [np.full(prod(shape[:axis]), shape[axis]) for shape in shapes]
        array = pa.ListArray.from_arrays(np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int32), array)
    if len({*dtypes}) > 1 or len({len(shape) for shape in shapes}) > 1 or array.type != kind:
        raise ValueError(
            f"the arrays of {column.name!r} differ in their type or number of axes; leave it out by columns="
        )
    return array


def _shaped(column: Encoded, value: memoryview) -> tuple[str, tuple[int, ...], memoryview]:
    """The type, the shape and the values of an array, of which what is not fixed stands in front of them."""
    dtype, shape = column.dtype, column.shape
    if dtype is None:
        dtype, value = CODES[value[0]], value[1:]
    if shape is None:
        axes, width = value[0] >> 2, 1 << value[0] % 4
        shape = tuple(np.frombuffer(value[1 : 1 + axes * width], f"<u{width}").tolist())
        value = value[1 + axes * width :]
    if not shape or prod(shape) * np.dtype(dtype).itemsize != len(value):
        raise ValueError(f"an array of {column.name!r} has the shape {shape} and {len(value):,} bytes")
    return dtype, shape, value


def _items(value: memoryview, begin: int) -> list[memoryview]:
    """The elements of a list: their number, the size of each, and their bytes."""
    (count,) = struct.unpack_from("<I", value, begin)
    bounds = list(accumulate(struct.unpack_from(f"<{count}I", value, begin + 4), initial=begin + 4 + 4 * count))
    if bounds[-1] != len(value):
        raise ValueError(f"a list has {len(value):,} bytes, and its elements end at {bounds[-1]:,}")
    return [value[first:last] for first, last in pairwise(bounds)]


def _codec(path: Location) -> str | None:
    return next((codec for suffix, codec in CODECS.items() if str(path).lower().endswith(suffix)), None)


def _size(path: Location) -> int:
    with open_file(path) as file:
        return int(file.size())


def _inflated(path: Location, file: pa.NativeFile, codec: str, limit: int | None = None) -> pa.NativeFile:
    """The content of a compressed file, decompressed as it is read; that of snappy all at once."""
    if codec != "snappy":
        return pa.CompressedInputStream(pa.BufferedInputStream(file, 64 << 10), codec)
    stored, nbytes = file.read(), 0
    for place, byte in enumerate(stored[:5]):  # how much it becomes: seven bits a byte, the last byte is below 128
        nbytes |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    if limit is not None:
        check_inflation(str(path), len(stored), nbytes, limit)
    return pa.BufferReader(pa.decompress(stored, nbytes, codec))


def _exactly(stream: pa.NativeFile, nbytes: int) -> bytes:
    """So many bytes of a stream, which may give fewer at a time."""
    chunks = list[bytes]()
    while nbytes and (chunk := stream.read(nbytes)):
        chunks.append(chunk)
        nbytes -= len(chunk)
    if nbytes:
        raise ValueError(f"it ends {nbytes:,} bytes too early")
    return b"".join(chunks)


@contextmanager
def _explained(path: Location) -> Iterator[None]:
    """Name the shard in errors about its bytes."""
    try:
        yield
    except DataFormatError:
        raise
    except (ValueError, LookupError, TypeError, struct.error, OverflowError, OSError, pa.ArrowException) as error:
        raise DataFormatError(
            f"{path} is no MDS shard, truncated or damaged: {error}. Copy or write it again."
        ) from error


FORMAT = Format(
    name="mds",
    suffixes=(".mds", *(f".mds{suffix}" for suffix in CODECS)),
    is_named=True,
    scan=scan,
    open_blocks=MdsBlocks,
    has_spans=True,
)
