"""A promoted type holds every value of both types unchanged."""

import pyarrow as pa
import pytest

from midepoch.index.promotion import promoted

SIZED = pa.list_(pa.int8(), 2)
PAIRS = [
    (pa.null(), pa.list_(pa.string()), pa.list_(pa.string())),
    (pa.int8(), pa.int64(), pa.int64()),
    (pa.uint8(), pa.uint32(), pa.uint32()),
    (pa.int8(), pa.uint8(), pa.int16()),
    (pa.int64(), pa.uint32(), pa.int64()),
    (pa.int64(), pa.uint64(), None),
    (pa.float16(), pa.float64(), pa.float64()),
    (pa.float32(), pa.float64(), pa.float64()),
    (pa.int32(), pa.float64(), None),
    (pa.string(), pa.large_string(), pa.large_string()),
    (pa.string(), pa.string_view(), pa.string()),
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), pa.string()),
    (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string()), pa.large_string()),
    (pa.dictionary(pa.int8(), pa.int32()), pa.int64(), pa.int64()),
    (pa.binary(), pa.large_binary(), pa.large_binary()),
    (pa.string(), pa.binary(), None),
    (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
    (pa.list_(pa.int32()), pa.large_list(pa.int16()), pa.large_list(pa.int32())),
    (SIZED, pa.list_(pa.int16(), 2), pa.list_(pa.int16(), 2)),
    (SIZED, pa.list_(pa.int8(), 3), None),
    (SIZED, pa.list_(pa.int8()), None),
    (pa.list_(pa.int32()), pa.list_(pa.string()), None),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int32())])),
    (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())]), None),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())]), None),
    (pa.timestamp("s"), pa.timestamp("ms"), None),
    (pa.bool_(), pa.int8(), None),
]


@pytest.mark.parametrize(("one", "other", "both"), PAIRS, ids=str)
def test_both_orders_give_the_same_type(one, other, both):
    assert promoted(one, other) == promoted(other, one) == both
    assert promoted(one, one) == one
    if both is not None:
        assert promoted(one, both) == promoted(both, other) == both


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64()])
def test_no_integer_is_lost(kind):
    ends = [0, 2**kind.bit_width - 1]
    if pa.types.is_signed_integer(kind):
        ends = [-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1]
    for other in (pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64()):
        both = promoted(kind, other)
        assert both is not None
        assert pa.array(ends, kind).cast(both).to_pylist() == ends
