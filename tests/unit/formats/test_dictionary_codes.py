"""How often texts of a dictionary are used, against what pyarrow writes and against forged pages."""

import io
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from midepoch.formats import dictionary_codes
from midepoch.formats.dictionary_codes import PADDING, most_uses
from midepoch.formats.parquet_pages import DATA, Page, pages_of


def counted(values, kind=None, **options):
    """What is counted of a column that pyarrow writes."""
    sink = io.BytesIO()
    table = pa.table({"x": pa.array(values, kind)})
    pq.write_table(table, sink, compression="none", dictionary_pagesize_limit=1 << 26, **options)
    metadata = pq.read_metadata(sink)
    chunk, column = metadata.row_group(0).column(0), metadata.schema.column(0)
    file, begin = pa.BufferReader(sink.getvalue()), chunk.dictionary_page_offset
    pages = pages_of(file, begin, begin + chunk.total_compressed_size, chunk.num_values)
    levels = column.max_definition_level > 0, column.max_repetition_level > 0
    return most_uses(pages.data, pages.dictionary.values, levels, lambda page: file.read_at(page.stored, page.begin))


@pytest.mark.parametrize("distinct", [1, 2, 3, 5, 200, 1_000, 70_000])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 3_000, 100_000])
@pytest.mark.parametrize("data_page_size", [1_000, 1 << 20])
def test_uses_are_never_counted_too_few_and_hardly_too_many(distinct, rows, data_page_size):
    texts = np.random.default_rng(distinct).integers(0, distinct, rows).astype(str).tolist()
    most = max(Counter(texts).values())
    found = counted(texts, data_page_size=data_page_size)
    pages = -(-rows * 17 // 8 // data_page_size) + 1024
    assert most <= found <= most + PADDING * pages


@pytest.mark.parametrize("rows", [1, 9, 1_000])
def test_texts_that_differ_are_used_once(rows):
    assert 1 <= counted([str(row) for row in range(rows)]) <= 1 + PADDING


def test_runs_of_one_text_are_counted():
    assert 5_000 <= counted(["a"] * 1_000 + ["b"] * 5_000 + ["c"] * 1_000) <= 5_000 + PADDING


@pytest.mark.parametrize("nulls", [0, 1, 500, 998])
def test_nulls_and_lists_are_passed_over(nulls):
    texts = [None] * nulls + [str(row) for row in range(1_000 - nulls)]
    assert counted(texts, pa.string()) <= 1 + PADDING
    assert 2 <= counted([[text, "same"] for text in texts[-2:]], pa.list_(pa.string())) <= 2 + PADDING


def test_pages_of_another_version_are_not_counted():
    assert counted(["a", "b"], data_page_version="2.0") is None


def uses(content, values=100, texts=4, encodings=(8, 3, 3), levels=(False, False), inflated=None):
    """What is counted of a forged page."""
    page = Page(DATA, 0, len(content), len(content) if inflated is None else inflated, values, encodings)
    return most_uses([page], texts, levels, lambda _: content)


FORGED = {
    "a code that no text has": bytes([8, 2 << 1, 200]),
    "packed codes that no text has": bytes([8, 3, *range(8, 16)]),
    "a packed code that would need much memory to count": bytes([32, 3]) + b"\xff" * 32,
    "codes of more than 32 bits": bytes([33, 2 << 1, 0, 0, 0, 0, 0]),
    "a number without an end": bytes([8, 0xFF, 0xFF]),
    "many runs": bytes([8]) + bytes([2, 0]) * 5_000,
}


@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED)
def test_nothing_is_said_of_forged_codes(content):
    assert uses(content) is None


def test_nothing_is_said_of_what_would_take_too_long_or_has_another_layout(monkeypatch):
    run = bytes([8, 5 << 1, 1])
    assert uses(run) == 5
    assert uses(bytes([0, 5 << 1])) >= 100
    assert uses(b"") <= 1 + PADDING
    assert uses(run, values=dictionary_codes.MOST_CODES + 1) is None
    assert uses(run, texts=dictionary_codes.MOST_TEXTS + 1) is None
    assert uses(run, inflated=1 << 30) is None
    assert uses(run, encodings=(7, 3, 3)) is None, "texts that repeat the beginning of those before them"
    assert uses(run, encodings=(0, 3, 3)) == 0, "texts as they are"
    assert uses(run, encodings=(8, 3, 4)) == 5, "the encoding of levels that do not exist says nothing"
    assert uses(run, encodings=(8, 4, 3), levels=(True, False)) is None
    assert uses(run, encodings=()) is None
    assert uses(b"\xff\xff\xff\xff", levels=(True, False)) <= 1 + PADDING, "levels that end after the page"
    assert uses(b"\xff", levels=(True, False)) is None


@pytest.mark.parametrize("changed", [0, 1, 500, 999])
def test_texts_that_are_not_all_different_are_counted(changed):
    codes = [row if row < 1_000 else changed for row in range(1_008)]
    texts = [str(code) for code in codes]
    assert 9 <= counted(texts) <= 9 + PADDING
    assert 3 <= counted([*texts[:1_000], texts[changed], texts[changed]]) <= 3 + PADDING


def test_a_run_is_counted_no_longer_than_its_page():
    assert uses(bytes([8, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F, 1]), values=9) == 9
