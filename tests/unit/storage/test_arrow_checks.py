"""Offsets that point outside of their values are found before any value is read."""

import struct

import fsspec
import pyarrow as pa
import pytest

import midepoch as me
from midepoch.formats import arrow
from midepoch.formats.base import Block
from midepoch.storage.arrow_checks import check_offsets

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


def test_text_that_is_not_utf8_is_left_to_those_who_decode_it():
    column = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, 1)), pa.py_buffer(b"\xff")]
    )
    check_offsets(pa.record_batch([column], ["x"]), ["x"])


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


def test_a_block_of_a_map_is_checked_once(write, monkeypatch):
    checked = []
    monkeypatch.setattr(arrow, "check_offsets", lambda data, names: checked.append(names))
    path = str(write(OFFSETS, OFFSETS))
    found = arrow.scan(path)
    opened = arrow.open_blocks(path, found.schema, found.schema)
    for number in (1, 0, 1, 0):
        opened.read(Block(number, *found.blocks[number]))
    assert len(checked) == 2
