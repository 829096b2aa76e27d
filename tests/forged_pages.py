"""Pages of Parquet files as any program may write them, among them those that pyarrow would not write."""

import io
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DATA, DATA_V2 = 0, 3
INT32, INT64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
POOLS = []
"""They live as long as what was allocated from them."""


@contextmanager
def counted_memory():
    """A pool that knows what Arrow allocates in the meantime."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(usual)


def varint(value):
    """A number of variable length."""
    coded = bytearray()
    while value >= 0x80:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*coded, value])


def zigzag(value):
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def packed(values, per_block=128, parts=4, count=None):
    """Numbers as differences in few bits: the encoding DELTA_BINARY_PACKED. ``count`` is how many it says to have."""
    per_part = per_block // parts
    coded = bytearray(varint(per_block) + varint(parts) + varint(len(values) if count is None else count))
    coded += zigzag(values[0] if values else 0)
    differences = [after - before for before, after in pairwise(values)]
    for begin in range(0, len(differences), per_block):
        block = differences[begin : begin + per_block]
        least = min(block)
        runs = [[value - least for value in block[at : at + per_part]] for at in range(0, per_block, per_part)]
        widths = [max(map(int.bit_length, run), default=0) for run in runs]
        coded += zigzag(least) + bytes(widths)
        for run, width in zip(runs, widths, strict=True):
            if run:
                bits = sum(value << (number * width) for number, value in enumerate(run))
                coded += bits.to_bytes(per_part * width // 8, "little")
    return bytes(coded)


def field(number, value, kind=INT32):
    """A field of a header, with its number written out."""
    return bytes([kind]) + zigzag(number) + (value if kind in (BINARY, LIST, STRUCT) else zigzag(value))


def header(body, values, encoding, inflated=None, more=b""):
    """The header of a data page of version 1. ``more`` comes after its last field."""
    of_kind = field(1, values) + field(2, encoding) + field(3, 3) + field(4, 3) + b"\0"
    sizes = field(2, len(body) if inflated is None else inflated) + field(3, len(body))
    return field(1, DATA) + sizes + field(5, of_kind, STRUCT) + more + b"\0"


def header_v2(body, values, encoding, inflated, levels=(0, 0), is_compressed=None):
    """The header of a data page of version 2, whose levels have so many bytes."""
    flag = b"" if is_compressed is None else bytes([1 if is_compressed else 2]) + zigzag(7)
    numbers = (values, 0, values, encoding, *levels)
    of_kind = b"".join(field(number + 1, value) for number, value in enumerate(numbers)) + flag + b"\0"
    return field(1, DATA_V2) + field(2, inflated) + field(3, len(body)) + field(8, of_kind, STRUCT) + b"\0"


def in_one_list(values):
    """The levels of version 1 of texts that are all in one list."""
    repetitions = varint(1 << 1) + b"\0" + varint((values - 1) << 1) + b"\1"
    definitions = varint(values << 1) + b"\3"
    return b"".join(len(levels).to_bytes(4, "little") + levels for levels in (repetitions, definitions))


def file_with(page, values, kind, compression="none", is_list=False):
    """A file of one column, not nullable or in one list, that has a page in place of that which pyarrow wrote."""
    width = kind.byte_width if pa.types.is_fixed_size_binary(kind) else 64
    noise = np.random.default_rng(0).bytes(width * values)
    texts = pa.array([noise[at : at + width] for at in range(0, len(noise), width)], kind)
    column = pa.ListArray.from_arrays([0, values], texts) if is_list else texts
    schema = pa.schema([pa.field("x", column.type, nullable=is_list)])
    sink = io.BytesIO()
    options = {"use_dictionary": False, "write_statistics": False, "store_schema": False, "compression": compression}
    pq.write_table(pa.Table.from_arrays([column], schema=schema), sink, **options)
    content, chunk = bytearray(sink.getvalue()), pq.read_metadata(sink).row_group(0).column(0)
    begin, end = chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size
    assert len(page) <= end - begin, "the page that pyarrow wrote is too short"
    content[begin : begin + len(page)] = page
    return bytes(content)
