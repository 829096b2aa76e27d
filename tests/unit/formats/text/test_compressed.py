"""Compressed text: read like plain text, decompressed once a pass."""

import gzip
import logging

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from midepoch.formats.text import compressed
from texts import (
    ROWS,
    lines,
    rows_of,
    text_file,
    zstd,
)


@pytest.fixture
def opened(monkeypatch):
    """How often a compressed file was begun."""
    begun = []
    whole = pa.CompressedInputStream

    def note(file, codec):
        begun.append(codec)
        return whole(file, codec)

    monkeypatch.setattr(compressed.pa, "CompressedInputStream", note)
    return begun


@pytest.mark.usefixtures("_small_blocks")
def test_a_compressed_file_is_decompressed_once_a_pass(tmp_path, opened):
    path = text_file(tmp_path / "a.jsonl.gz", ROWS, gzip.compress)
    dataset = me.read(path)
    assert len(dataset._plan.pipeline.source.index.view.block_starts) > 10
    opened.clear()
    assert list(dataset) == ROWS
    assert opened == ["gzip"]
    assert list(dataset) == ROWS
    assert opened == ["gzip", "gzip"]


def test_one_warning_says_that_compressed_files_cannot_seek_and_what_to_do(tmp_path, caplog):
    for name in "abc":
        text_file(tmp_path / f"{name}.jsonl.gz", ROWS, gzip.compress)
    text_file(tmp_path / "d.jsonl", ROWS)
    with caplog.at_level(logging.WARNING, "midepoch"):
        assert len(rows_of(tmp_path)) == 200
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("3 of 4 files, such as a.jsonl.gz, cannot seek: compressed as a whole")
    assert "convert them to Parquet" in message
    caplog.clear()
    assert rows_of(tmp_path / "d.jsonl") == ROWS
    assert not caplog.records


def test_several_members_of_a_gzip_file_are_one_text(tmp_path):
    content = [lines([row]) for row in ROWS]
    (tmp_path / "a.jsonl.gz").write_bytes(b"".join(map(gzip.compress, content)))
    (tmp_path / "b.jsonl.zst").write_bytes(b"".join(map(zstd, content)))
    assert rows_of(tmp_path) == ROWS * 2


def test_decompressed_bytes_at_any_offset(tmp_path):
    content = np.random.default_rng(0).bytes(5000)
    (tmp_path / "a").write_bytes(gzip.compress(content))
    file = compressed.open_text(str(tmp_path / "a"))
    for offset, count in [(0, 10), (4000, 900), (100, 5), (105, 5), (4990, 100), (6000, 5), (0, 5000)]:
        assert file.read_at(count, offset) == content[offset : offset + count]
