"""Local files: a changed one is noticed, maps are shared, and offsets are checked before values are read."""

import os
import struct
import sys

import fsspec
import pyarrow as pa
import pytest

import midepoch as me
from files import values, write_numbers
from midepoch.errors import DataFormatError
from midepoch.storage import local
from midepoch.storage.local import FileStamp, check_offsets, check_unchanged
from objects import find


def test_check_unchanged_says_what_changed(tmp_path):
    path = write_numbers(tmp_path / "a.arrow", 0, 3)
    found = find(path).stamps[0]
    check_unchanged(str(path), found)
    with pytest.raises(me.DataChangedError, match=r"a\.arrow was changed while it was in use \(9 bytes then, "):
        check_unchanged(str(path), FileStamp(9, found.mtime_ns))
    with pytest.raises(me.DataChangedError, match=r"\(same size, another version\)"):
        check_unchanged(str(path), FileStamp(found.size, found.mtime_ns - 1))
    path.unlink()
    with pytest.raises(me.DataChangedError, match=r"a\.arrow cannot be read.*restore it"):
        check_unchanged(str(path), found)


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc/self/maps")


@pytest.fixture
def folder(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for number, kind in enumerate(["stream", "file", "stream"]):
        write_numbers(data / f"{number}.arrow", 20 * number, 20 * number + 20, kind)
    return data


def test_another_file_in_its_place_is_mapped_even_if_it_looks_the_same(folder):
    old = me.read(folder)
    assert values(old) == list(range(60))
    before = os.stat(folder / "1.arrow")
    write_numbers(folder / "new", 120, 140, "file")
    assert os.path.getsize(folder / "new") == before.st_size
    os.utime(folder / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(folder / "new", folder / "1.arrow")
    assert values(me.read(folder)) == [*range(20), *range(120, 140), *range(40, 60)]


def test_a_file_that_cannot_be_mapped_is_named_with_what_to_do(folder, monkeypatch):
    dataset = me.read(folder)

    def full(path):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(local.pa, "memory_map", full)
    with pytest.raises(
        DataFormatError, match=r"0\.arrow cannot be mapped: .*Cannot allocate memory.*vm\.max_map_count"
    ):
        values(dataset)


TEXT = pa.array(["one", "two", "three"])
NUMBERS = pa.array([[1], [2, 3], []])


def record_batch():
    nested = pa.array([{"a": "x", "b": [1]}, {"a": "y", "b": []}, None])
    texts = pa.array([["p"], [], ["q", "r"]])
    columns = [TEXT, NUMBERS, nested, texts, TEXT.dictionary_encode(), TEXT.cast(pa.large_string())]
    return pa.record_batch(columns, [f"column {number}" for number in range(len(columns))])


def test_sound_columns_of_all_kinds_pass():
    data = record_batch()
    check_offsets(data, data.schema.names)
    check_offsets(data, [])
    check_offsets(pa.record_batch([TEXT, NUMBERS], ["x", "x"]), ["x"])


@pytest.fixture(params=["stream", "file"])
def write(request, tmp_path):
    """Write two record batches, with bytes of the second one replaced."""
    make = pa.ipc.new_stream if request.param == "stream" else pa.ipc.new_file

    def write(old, new):
        path = tmp_path / "a.arrow"
        data = pa.record_batch({"id": [1, 2, 3], "text": TEXT, "numbers": NUMBERS})
        with make(str(path), data.schema) as writer:
            writer.write_batch(data)
            writer.write_batch(data)
        content = path.read_bytes()
        at = content.rindex(old)
        path.write_bytes(content[:at] + new + content[at + len(old) :])
        return path

    return write


OFFSETS = struct.pack("<4i", 0, 3, 6, 11)
BAD = {
    "beyond the values": struct.pack("<4i", 0, 3, 6, 3000),
    "decreasing": struct.pack("<4i", 0, 9, 6, 11),
    "negative": struct.pack("<4i", -3, 3, 6, 11),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("level", [None, "block", "row"])
def test_bad_offsets_of_text_raise_with_file_and_place(write, bad, level):
    path = write(OFFSETS, bad)
    dataset = me.read(path)
    if level:
        dataset = dataset.shuffle(seed=1, level=level)
    with pytest.raises(me.DataFormatError, match=r"a\.arrow is broken at byte \d"):
        list(dataset)


def test_bad_offsets_of_lists_raise(write):
    path = write(struct.pack("<4i", 0, 1, 3, 3), struct.pack("<4i", 0, 1, 3, 900))
    with pytest.raises(me.DataFormatError, match=r"a\.arrow is broken at byte \d"):
        list(me.read(path))
    assert [row["id"] for row in me.read(path, columns=["id", "text"])] == [1, 2, 3, 1, 2, 3], "it is not read"


def test_rows_of_a_store_are_checked_too(write):
    fsspec.filesystem("memory").pipe("/checked/a.arrow", write(OFFSETS, BAD["beyond the values"]).read_bytes())
    with pytest.raises(me.DataFormatError, match=r"a\.arrow is broken at byte \d"):
        list(me.read("memory://checked/a.arrow"))
