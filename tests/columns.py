"""Columns of every Arrow type, with the Python values that reading them must return."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa

DAYS = [dt.date(2020, 2, day) for day in (27, 28, 29)] + [dt.date(1969, 12, 31), dt.date(1, 1, 1)]
TIMES = [dt.time(0, 0), dt.time(1, 2, 3), dt.time(23, 59, 59), dt.time(5), dt.time(6)]
STAMPS = [dt.datetime(2020, 2, day, 3, 4, 5) for day in (26, 27, 28, 29)] + [dt.datetime(1969, 12, 31)]
SPANS = [dt.timedelta(seconds=seconds) for seconds in (0, 1, -1, 86_400, 3)]
LONG = "longer than the twelve bytes that a view holds in place"

SCALARS = {
    "int8": (pa.int8(), [1, -2, 127, -128, 0]),
    "int16": (pa.int16(), [1, -2, 3, -4, 5]),
    "int32": (pa.int32(), [1, -2, 3, -4, 5]),
    "int64": (pa.int64(), [2**62, -(2**63), 2**53 + 1, 0, 5]),
    "uint8": (pa.uint8(), [1, 2, 255, 4, 5]),
    "uint16": (pa.uint16(), [1, 2, 65_535, 4, 5]),
    "uint32": (pa.uint32(), [1, 2, 2**32 - 1, 4, 5]),
    "uint64": (pa.uint64(), [1, 2, 2**64 - 1, 4, 5]),
    "float16": (pa.float16(), [np.float16(value) for value in (1, 0.5, -2, 0, 4)]),
    "float32": (pa.float32(), [1.5, -0.0, 2.25, 3.0, 4.0]),
    "float64": (pa.float64(), [0.1, -0.0, float("inf"), 3.0, 4.0]),
    "bool": (pa.bool_(), [True, False, True, True, False]),
    "string": (pa.string(), ["", "a", "größer", LONG, "e"]),
    "large_string": (pa.large_string(), ["", "a", "größer", LONG, "e"]),
    "string_view": (pa.string_view(), ["", "a", "größer", LONG, "e"]),
    "binary": (pa.binary(), [b"", b"a", b"\0\xff", b"d", b"e"]),
    "large_binary": (pa.large_binary(), [b"", b"a", b"\0\xff", b"d", b"e"]),
    "binary_view": (pa.binary_view(), [b"", b"a", LONG.encode(), b"d", b"e"]),
    "fixed_size_binary": (pa.binary(2), [b"ab", b"cd", b"\0\0", b"gh", b"ij"]),
    "date32": (pa.date32(), DAYS),
    "date64": (pa.date64(), DAYS),
    "time32_s": (pa.time32("s"), TIMES),
    "time32_ms": (pa.time32("ms"), TIMES),
    "time64_us": (pa.time64("us"), TIMES),
    "time64_ns": (pa.time64("ns"), TIMES),
    **{f"timestamp_{unit}": (pa.timestamp(unit), STAMPS) for unit in ("s", "ms", "us", "ns")},
    **{f"timestamp_{unit}_utc": (pa.timestamp(unit, "UTC"), STAMPS) for unit in ("s", "ms", "us", "ns")},
    "timestamp_us_berlin": (pa.timestamp("us", "Europe/Berlin"), STAMPS),
    **{f"duration_{unit}": (pa.duration(unit), SPANS) for unit in ("s", "ms", "us", "ns")},
    "decimal128": (pa.decimal128(10, 2), [Decimal(value) for value in ("1.10", "-2.00", "0.01", "4.00", "5.00")]),
    "decimal256": (pa.decimal256(50, 2), [Decimal(value) for value in ("1.10", "-2.00", "0.01", "4.00", "5.00")]),
    "null": (pa.null(), [None] * 5),
}
NESTED = {
    "list": (pa.list_(pa.int64()), [[1], [], [2, 3], [4, None], [5]]),
    "list_of_strings": (pa.list_(pa.string()), [["a"], [], ["b", "c"], ["d", None], ["e"]]),
    "list_of_views": (pa.list_(pa.string_view()), [["a"], [], [LONG, "c"], ["d", None], ["e"]]),
    "large_list": (pa.large_list(pa.int32()), [[1], [], [2, 3], [4], [5]]),
    "fixed_size_list": (pa.list_(pa.float32(), 2), [[1, 2], [3, 4], [5, 6], [7, None], [9, 10]]),
    "matrix": (pa.list_(pa.list_(pa.int16(), 2), 2), [[[n, 2], [3, 4]] for n in range(5)]),
    "list_of_lists": (pa.list_(pa.list_(pa.int64())), [[[1, 2], [3, 4]], [[1], [2, 3]], [], [[]], [[1]]]),
    "struct": (pa.struct({"a": pa.int64(), "b": pa.string()}), [{"a": n, "b": "x" * n} for n in range(5)]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], [("b", 2), ("c", None)], [("d", 4)], [("e", 5)]]),
    "nested": (
        pa.list_(pa.struct({"k": pa.list_(pa.map_(pa.string(), pa.float64()))})),
        [[{"k": [[("a", 1.0)]]}], [], [{"k": []}, {"k": None}], [{"k": [[]]}], [None]],
    ),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a", "c", "b"]),
    "dictionary_of_ints": (pa.dictionary(pa.int32(), pa.int64()), [7, 8, 7, 9, 8]),
    "list_of_dictionary": (pa.list_(pa.dictionary(pa.int8(), pa.string())), [["a"], ["b", "a"], [], ["c"], ["a"]]),
    "struct_of_dictionary": (
        pa.struct({"d": pa.dictionary(pa.int8(), pa.string())}),
        [{"d": letter} for letter in "abaca"],
    ),
}
TYPES = SCALARS | NESTED


def table_of(kind, values):
    """Rows with a column of this type, in three batches: slices of one batch, so that none starts at offset 0."""
    column = pa.array([None, *values, None], kind)
    whole = pa.record_batch({"id": pa.array(range(-1, 6)), "v": column})
    return [whole.slice(1, 2), whole.slice(3, 1), whole.slice(4, 2)]


def with_nulls(values):
    """The values, with every third one replaced by None."""
    return [value if number % 3 != 1 else None for number, value in enumerate(values)]
