"""What pages are once decompressed, and where their values begin."""

import numpy as np
import pyarrow as pa
import pytest

from midepoch.formats.page_content import CODECS, UncountableError, beginning_of, contents_of, values_at
from midepoch.formats.parquet_pages import DATA, DATA_V2, Page

TEXT = np.random.default_rng(0).integers(97, 105, 500_000, dtype=np.uint8).tobytes()


def page_of(stored, inflated, level_bytes=0, **fields):
    return Page(DATA_V2 if level_bytes else DATA, 3, len(stored), inflated, 9, level_bytes=level_bytes, **fields)


def compressed(compression, content=TEXT):
    return content if compression == "UNCOMPRESSED" else pa.Codec(CODECS[compression]).compress(content, asbytes=True)


@pytest.mark.parametrize("compression", ["UNCOMPRESSED", *CODECS])
@pytest.mark.parametrize("levels", [b"", b"levels"])
def test_a_page_is_decompressed_but_not_its_levels(compression, levels):
    stored = levels + compressed(compression)
    page = page_of(stored, len(levels + TEXT), len(levels))
    file = pa.BufferReader(b"abc" + stored + b"more")
    assert contents_of(file, page, compression) == [levels + TEXT]
    assert contents_of(file, page._replace(content=stored), compression) == [levels + TEXT]
    alone = page._replace(stored=len(levels), inflated=len(levels))
    if levels:
        assert contents_of(file, alone, compression) == [levels], "all values are null"


@pytest.mark.parametrize("compression", CODECS)
def test_a_page_that_is_perhaps_not_compressed_has_two_contents(compression):
    stored = b"levels" + compressed(compression)
    page, file = page_of(stored, 6 + len(TEXT), 6, is_compressed=None), pa.BufferReader(b"abc" + stored)
    assert contents_of(file, page, compression) == [stored, b"levels" + TEXT]
    assert beginning_of(file, page, compression, 10) is None
    assert contents_of(file, page._replace(is_compressed=False), compression) == [stored]
    assert beginning_of(file, page._replace(is_compressed=False), compression, 10) is None
    page = page_of(TEXT, len(TEXT), is_compressed=None)
    assert contents_of(pa.BufferReader(b"abc" + TEXT), page, compression) == [TEXT]


@pytest.mark.parametrize("compression", [*CODECS, "LZO"])
def test_what_cannot_be_decompressed_has_no_content(compression):
    file = pa.BufferReader(b"abc" + TEXT)
    assert contents_of(file, page_of(TEXT, len(TEXT)), compression) == []
    assert contents_of(file, page_of(TEXT, 5, level_bytes=9), compression) == []
    assert beginning_of(file, page_of(TEXT, len(TEXT)), compression, 10) is None


def hadoop(*parts):
    sizes = [(len(part), compressed("LZ4", part)) for part in parts]
    return b"".join(size.to_bytes(4, "big") + len(lz4).to_bytes(4, "big") + lz4 for size, lz4 in sizes)


@pytest.mark.parametrize("name", ["LZ4", "UNKNOWN"])
def test_lz4_of_hadoop_is_decompressed_too(name):
    stored = hadoop(TEXT[:100_000], TEXT[100_000:])
    file = pa.BufferReader(b"abc" + stored)
    assert contents_of(file, page_of(stored, len(TEXT)), name) == [TEXT]
    assert contents_of(file, page_of(stored, len(TEXT) + 1), name) == []
    assert contents_of(file, page_of(stored, len(TEXT) - 1), name) == []
    assert contents_of(file, page_of(stored[:-1], len(TEXT)), name) == []
    assert contents_of(pa.BufferReader(b"abc" + bytes(80)), page_of(bytes(80), 8), name) == []


def test_parts_of_lz4_have_all_the_room_that_is_left_as_arrow_gives_it():
    """The part ends with one literal, a match, and five literals: LZ4 refuses that at the very end of its room."""
    part, text = b"\x4fabca\1\0\xab" + b"\x10a\1\0" + b"\x50aaaaa", b"abca" + b"a" * 200
    stored = len(text).to_bytes(4, "big") + len(part).to_bytes(4, "big") + part + hadoop(b"b" * 50)
    file = pa.BufferReader(b"abc" + stored)
    assert contents_of(file, page_of(stored, len(text) + 50), "UNKNOWN") == [text + b"b" * 50]


@pytest.mark.parametrize("compression", ["UNCOMPRESSED", *CODECS])
@pytest.mark.parametrize("levels", [b"", b"levels"])
def test_the_beginning_is_that_of_the_content(compression, levels):
    stored = levels + compressed(compression)
    page, file = page_of(stored, len(levels + TEXT), len(levels)), pa.BufferReader(b"abc" + stored)
    for length in (10, 5_000, 200_000):
        found = beginning_of(file, page, compression, length)
        if compression in ("SNAPPY", "LZ4", "UNKNOWN"):
            assert found is None
        else:
            assert length + len(levels) <= len(found) <= length + 2 * len(levels)
            assert found == (levels + TEXT)[: len(found)]
    assert beginning_of(file, page, compression, 300_000) is None, "then all of it costs little more"


def test_values_begin_after_the_levels():
    content = (3).to_bytes(4, "little") + b"rep" + (5).to_bytes(4, "little") + b"defin" + b"values"
    page = page_of(content, len(content), encodings=(7, 3, 3))
    assert [values_at(content, page, levels) for levels in [(False, False), (True, False), (True, True)]] == [0, 7, 16]
    assert values_at(content, page._replace(kind=DATA_V2, level_bytes=8), (True, True)) == 8
    assert values_at(content, page._replace(encodings=(7, 4, 4)), (False, False)) == 0
    with pytest.raises(UncountableError):
        values_at(content, page._replace(encodings=(7, 3, 4)), (True, True))
