"""Index bytes: what was scanned comes back, whatever the files are."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from midepoch.formats import EMPTY, Block, Scan
from midepoch.index.encode import index_bytes, scans_of
from midepoch.index.index import IndexView
from midepoch.storage.listing import Listing
from midepoch.storage.local import FileStamp

SCHEMAS = [pa.schema([("x", "int64")]), pa.schema([("x", "int64"), ("y", "string")], {"a": "b"})]
NUMBERS = st.integers(0, 2**60)
SCANS = st.one_of(
    st.just(Scan(EMPTY, None, [])),
    st.builds(
        Scan,
        st.sampled_from(["arrow", "csv"]),
        st.sampled_from(SCHEMAS),
        st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 2**40)), max_size=4),
        st.booleans(),
        st.sampled_from(["", "etag"]),
    ),
)


def viewed(scans):
    names = tuple(f"folder/ü {number}" for number in range(len(scans)))
    stamps = tuple(FileStamp(2**50 + number, 10**18 + number) for number in range(len(scans)))
    listing = Listing("", "/data", names, stamps)
    return listing, IndexView("/data", index_bytes(listing, scans))


@given(st.lists(SCANS, min_size=1, max_size=5))
def test_scans_come_back_as_they_were(scans):
    listing, view = viewed(scans)
    assert scans_of(view) == dict(zip(zip(listing.names, listing.stamps, strict=True), scans, strict=True))


@given(st.lists(SCANS, min_size=1, max_size=5))
def test_blocks_are_numbered_over_all_files(scans):
    _, view = viewed(scans)
    expected = [
        (file, Block(number, *block)) for file, scan in enumerate(scans) for number, block in enumerate(scan.blocks)
    ]
    assert [view.block(number) for number in range(len(expected))] == expected
    assert view.rows == sum(block[2] for scan in scans for block in scan.blocks)


def test_a_schema_that_many_files_share_is_stored_once():
    few, many = (index_bytes(*_files(count)).size for count in (1, 1000))
    _, view = viewed([Scan("arrow", SCHEMAS[0], [])] * 50)
    assert len(view.distinct_schemas) == 1
    assert many < few + 1000 * 60


def _files(count):
    wide = pa.schema([(f"column {number}", "int64") for number in range(100)])
    names = tuple(map(str, range(count)))
    return Listing("", "", names, (FileStamp(1, 1),) * count), [Scan("arrow", wide, [])] * count


def test_the_same_files_make_the_same_bytes():
    scans = [Scan("arrow", SCHEMAS[1], [(0, 10, 2)])]
    listing, view = viewed(scans)
    assert index_bytes(listing, scans).equals(index_bytes(listing, scans))
    assert view.checksum == IndexView("/elsewhere", index_bytes(listing, scans)).checksum
