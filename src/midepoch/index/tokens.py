"""Files of tokens as a dataset: windows of a flat file, or the documents of a Megatron pair. Nothing is saved.

A flat file has one integer after the other (.bin), or is such an array of NumPy (.npy). A Megatron pair is a flat file
and an .idx file that says where its documents begin.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from midepoch._common.checks import count
from midepoch._common.hashing import I64
from midepoch.errors import DataFormatError, NoDataError
from midepoch.formats import Block, BlockReader
from midepoch.index.tables import HeldIndex, MadeBlocks
from midepoch.order.windows import bounds_of
from midepoch.storage.listing import Listing
from midepoch.storage.local import check_unchanged
from midepoch.values.arrow import arrow_of

BLOCK_TOKENS = 1 << 15
MAX_BLOCKS = 1 << 20
TOKEN = pa.int64()
"""Losses of torch take no narrower integers, so tokens are widened when they are read."""
MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLayout:
    """How tokens become rows. If there is no ``length``, a row is a document."""

    dtype: str | None
    """Of flat files that do not say it themselves."""
    length: int | None
    stride: int | None
    column: str


class TokenIndex(HeldIndex):
    """The windows or documents of files of tokens, which are mapped."""

    def __init__(self, listing: Listing, layout: TokenLayout) -> None:
        self._listing, self._token_layout = listing, layout
        self._files = [_file(os.path.join(listing.root, name), layout) for name in listing.names]
        _check_long_enough(self._files)
        kind = pa.large_list(TOKEN) if layout.length is None else pa.list_(TOKEN, layout.length)
        blocks = [file.blocks() for file in self._files]
        super().__init__(listing, pa.schema([(layout.column, kind)]), blocks, divisible=False)
        # Another cut has other rows.
        self.layout = {"tokens": {name: value for name, value in asdict(layout).items() if value is not None}}

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenIndex, (self._listing, self._token_layout)

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        def read(block: Block) -> pa.RecordBatch:
            return pa.RecordBatch.from_arrays([self._files[file].rows(block.offset, block.rows)], schema=wanted)

        return MadeBlocks(read)

    def check(self, file: int) -> None:
        check_unchanged(self.view.path(file), self.view.stamps[file])


def _check_long_enough(files: "Sequence[TokenFile]") -> None:
    """Raise if no file has the tokens of a single row: an empty dataset would hide a wrong ``length`` or ``dtype``."""
    if all(file.length and not file.row_count for file in files):
        longest = max(files, key=lambda file: file.tokens)
        raise NoDataError(
            f"{longest.path} has {count('token', longest.tokens)}, and a row needs {longest.length:,}. Pass a smaller "
            f"length, or the dtype of the file if it is not {longest.dtype}."
        )


@dataclass(frozen=True, slots=True, eq=False)
class TokenFile:
    """The rows of one file: windows, or documents if there is no ``length``."""

    path: str
    dtype: str
    offset: int
    """The bytes before the first token."""
    tokens: int
    length: int | None
    stride: int
    """Window ``n`` has the tokens from ``n * stride`` on."""
    begins: I64
    """The first token of each document."""
    ends: I64

    @property
    def row_count(self) -> int:
        return len(self.begins) if self.length is None else max(0, (self.tokens - self.length) // self.stride + 1)

    def blocks(self) -> list[tuple[int, int, int]]:
        """The first row, the bytes and the rows of each block."""
        rows, lengths = self.row_count, self.ends - self.begins
        average = self.length or max(1, int(lengths.sum()) // max(1, rows))
        size = max(1, BLOCK_TOKENS // average, -(-rows // MAX_BLOCKS))
        starts = np.arange(0, rows, size)
        counts = np.minimum(size, rows - starts)
        tokens = counts * average if self.length else np.add.reduceat(lengths, starts)
        nbytes = tokens * (TOKEN.bit_width // 8)
        return list(zip(starts.tolist(), nbytes.tolist(), counts.tolist(), strict=True))

    def rows(self, first: int, count: int) -> pa.Array:
        """Some rows, as a column. Their tokens are mapped, and copied, because they are widened."""
        begins, ends = self.begins[first : first + count], self.ends[first : first + count]
        if self.length is not None:
            begins = np.arange(first, first + count) * self.stride
            ends = begins + self.length
        starts = bounds_of(ends - begins)
        tokens = np.memmap(self.path, self.dtype, "r", self.offset, (self.tokens,))
        if (begins[1:] == ends[:-1]).all():
            values = tokens[begins[0] : ends[-1]]
        else:
            values = tokens[np.arange(starts[-1]) + np.repeat(begins - starts[:-1], ends - begins)]
        column = arrow_of(values.astype(np.int64))
        if self.length is not None:
            return pa.FixedSizeListArray.from_arrays(column, self.length)
        return pa.LargeListArray.from_arrays(arrow_of(starts), column)


def _file(path: str, layout: TokenLayout) -> TokenFile:
    """A file, given what it says of itself, and what the user says of it."""
    pair = path.removesuffix(".bin") + ".idx"
    has_pair = path.endswith(".bin") and os.path.exists(pair)
    if path.endswith(".npy"):
        dtype, offset = _of_npy(path)
    elif has_pair:
        dtype, offset = _megatron_dtype(pair), 0
    else:
        if layout.dtype is None:
            raise ValueError(f'{path} has tokens without a type, and no .idx file beside it: pass dtype="uint16" …')
        dtype, offset = layout.dtype, 0
    if layout.dtype not in (None, dtype):
        raise ValueError(
            f"{path} says that its tokens are {dtype}, and dtype is {layout.dtype!r}. Leave dtype out. If other files "
            "need it, open them on their own, and join the datasets with midepoch.concat or midepoch.mix."
        )
    nbytes, item = os.path.getsize(path) - offset, np.dtype(dtype).itemsize
    if nbytes % item:
        raise DataFormatError(f"{path} has {nbytes:,} bytes of tokens, which {dtype} does not divide. Is it truncated?")
    tokens, none = nbytes // item, np.empty(0, np.int64)
    if layout.length is None and not has_pair:
        raise ValueError(f"{path} has no .idx file beside it that says where documents begin: pass length=2048 …")
    begins, ends = _documents(pair, path, tokens, item) if layout.length is None else (none, none)
    stride = layout.stride or layout.length or 1
    return TokenFile(path, dtype, offset, tokens, layout.length, stride, begins, ends)


def _of_npy(path: str) -> tuple[str, int]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataFormatError(f"{path} is not an array of NumPy: {error}.") from error
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.dtype.isnative:
        raise DataFormatError(
            f"{path} has an array of the shape {array.shape} and type {array.dtype}; tokens are one row of integers."
        )
    return str(array.dtype), int(getattr(array, "offset", 0))


def _megatron_dtype(path: str) -> str:
    with open(path, "rb") as file:
        header = file.read(len(MAGIC) + 9)
    if len(header) < len(MAGIC) + 9 or not header.startswith(MAGIC) or header[len(MAGIC)] != 1:
        raise DataFormatError(f"{path} is not the index of a Megatron dataset of version 1.")
    if header[-1] not in MEGATRON_DTYPES:
        raise DataFormatError(f"{path} has tokens of the type number {header[-1]}, which are not integers.")
    return MEGATRON_DTYPES[header[-1]]


def _documents(path: str, flat: str, tokens: int, item: int) -> tuple[I64, I64]:
    """Where documents of a flat file begin and end, in tokens. A document is a run of sequences."""
    content = np.fromfile(path, np.uint8)
    at = len(MAGIC) + 9
    try:
        sequences, documents = np.frombuffer(content, "<i8", 2, at).tolist()
        lengths = np.frombuffer(content, "<i4", sequences, at + 16).astype(np.int64)
        pointers = np.frombuffer(content, "<i8", sequences, at + 16 + 4 * sequences)
        firsts = np.frombuffer(content, "<i8", documents, at + 16 + 12 * sequences)
    except ValueError as error:
        raise DataFormatError(f"{path} is truncated or damaged: {error}.") from error
    begins = pointers // item
    ends = begins + lengths
    in_order = documents > 0 and firsts[0] == 0 and firsts[-1] == sequences and (np.diff(firsts) >= 0).all()
    if not in_order or (lengths < 0).any() or (begins < 0).any() or (ends > tokens).any():
        raise DataFormatError(f"{path} does not fit {flat}: it names tokens or sequences that are not there.")
    firsts = firsts[np.append(np.diff(firsts) > 0, True)]  # documents without sequences have no tokens
    if (begins[1:] != ends[:-1])[np.setdiff1d(np.arange(1, sequences), firsts) - 1].any():
        raise DataFormatError(f"{path} has documents whose sequences do not follow each other, which is not possible.")
    return begins[firsts[:-1]], ends[firsts[1:] - 1]
