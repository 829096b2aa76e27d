"""The view of index bytes: rows and blocks by number, and pickling."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from files import numbers, write, write_numbers
from midepoch._common.files import framed, unframed
from midepoch.formats import EMPTY, Block, Scan
from midepoch.index.build import open_index
from midepoch.index.index import MAGIC, IndexView, index_bytes
from midepoch.storage.listing import Listing
from midepoch.storage.local import FileStamp


def index_file(kept):
    (path,) = kept.glob("*.index")
    return path


def test_a_pickled_index_is_not_taken_for_another(folder, kept):
    pickled = pickle.dumps(open_index(folder, index_dir=kept).view)
    path = index_file(kept)
    write_numbers(folder / "9.arrow", 0, 99)
    open_index(folder, index_dir=kept)
    newest = max(kept.glob("*.index"), key=lambda one: one.stat().st_mtime_ns)
    newest.replace(path)
    again = pickle.loads(pickled)
    with pytest.raises(me.DataChangedError, match="changed and were indexed again"):
        _ = again.rows


def test_a_worker_that_starts_after_the_index_was_removed_says_why(folder, kept):
    loader = me.Loader(me.read(folder, index_dir=kept), num_workers=1, multiprocessing_context="forkserver")
    index_file(kept).unlink()
    with pytest.raises(me.DataChangedError, match=r"The index of .*data is gone from .*\.index"):
        next(iter(loader))


def test_the_row_after_empty_files_and_blocks_is_located_in_the_file_that_has_it(tmp_path, kept):
    (tmp_path / "a.arrow").touch()
    write(tmp_path / "b.arrow", [numbers(0, 0), numbers(0, 2), numbers(0, 0)])
    (tmp_path / "c.arrow").touch()
    write(tmp_path / "d.arrow", [numbers(0, 0), numbers(2, 3)])
    view = open_index(tmp_path, index_dir=kept).view
    assert [view.locate(row) for row in range(3)] == [("b.arrow", 0), ("b.arrow", 1), ("d.arrow", 0)]
    rows = np.arange(3)
    blocks = np.searchsorted(view.block_starts, rows, "right") - 1
    assert [view.block(int(block))[0] for block in blocks] == [1, 1, 3]


FORGED = {
    "a format that does not exist": (b"arrow", b"\0\0row"),
    "no names": (b"name", b"nome"),
    "no rows": (b"rows", b"ruws"),
    "no second stream": (b"offset", None),
}


@pytest.mark.parametrize(("old", "new"), FORGED.values(), ids=FORGED)
def test_a_forged_index_with_a_right_checksum_is_damaged_and_made_again(folder, kept, old, new):
    expected = list(me.read(folder, index_dir=kept))
    path = index_file(kept)
    body = bytes(unframed(path.read_bytes(), MAGIC)[0])
    assert old in body
    second = body.index(b"\xff\xff\xff\xff", body.index(b"\xff\xff\xff\xff\0\0\0\0") + 4)
    path.write_bytes(framed(body[:second] if new is None else body.replace(old, new), MAGIC))
    with pytest.raises(ValueError, match="it "):
        IndexView.load(str(folder), str(path))
    assert list(me.read(folder, index_dir=kept)) == expected


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
    assert view.scans == dict(zip(zip(listing.names, listing.stamps, strict=True), scans, strict=True))


@given(st.lists(SCANS, min_size=1, max_size=5))
def test_blocks_are_numbered_over_all_files(scans):
    _, view = viewed(scans)
    expected = [
        (file, Block(number, *block)) for file, scan in enumerate(scans) for number, block in enumerate(scan.blocks)
    ]
    assert [view.block(number) for number in range(len(expected))] == expected
    assert view.rows == sum(block[2] for scan in scans for block in scan.blocks)
