"""Small files that say that they become large are refused before they are decompressed."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import orc

import midepoch as me
from files import write
from midepoch.formats.base import check_inflation

ZEROS = pa.record_batch({"x": np.zeros(2 << 20, np.int64)})  # 16 MiB that become some kB
CODES = pa.record_batch({"x": pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), ["a" * (8 << 20), "b"])})
TOO_LARGE = r"bytes become \d\d?,\d{3},\d{3} bytes once decompressed, more than max_record_bytes \(1,048,576\)"


def test_a_stripe_of_orc_with_numbers_that_repeat_is_refused_when_it_is_opened(tmp_path):
    orc.write_table(pa.Table.from_batches([ZEROS]), tmp_path / "a.orc", stripe_size=1 << 30, compression="zstd")
    with pytest.raises(me.DataFormatError, match=rf"a\.orc, stripe 0: .*{TOO_LARGE}"):
        me.read(tmp_path / "a.orc", max_record_bytes="1MiB")
    assert len(me.read(tmp_path / "a.orc")) == len(ZEROS)


@pytest.mark.parametrize("batch", [ZEROS, CODES], ids=["values", "dictionary"])
def test_a_row_group_that_grows_a_hundredfold_beyond_the_limit_is_refused_when_it_is_opened(tmp_path, batch):
    path = write(tmp_path / "a", batch, "parquet", compression="zstd")
    assert path.stat().st_size < 100_000
    with pytest.raises(me.DataFormatError, match=rf"a, row group 0: .*{TOO_LARGE}"):
        me.read(path, max_record_bytes="1MiB")
    assert len(me.read(path)) == len(me.read(path, max_record_bytes=None)) == batch.num_rows
    with pytest.raises(me.DataFormatError, match=TOO_LARGE):  # though an index of this file is saved now
        me.read(path, max_record_bytes="1MiB")


@pytest.mark.parametrize("kind", ["stream", "parquet"])
def test_blocks_that_grow_little_have_no_limit(tmp_path, kind):
    noise = pa.record_batch({"x": np.random.default_rng(0).integers(0, 1 << 20, 1 << 16)})
    path = write(tmp_path / "a", noise, kind, compression="zstd")
    assert len(me.read(path, max_record_bytes=1000)) == 1 << 16
    assert len(me.read(write(tmp_path / "b", ZEROS), max_record_bytes=1000)) == len(ZEROS)


def test_a_record_of_a_compressed_text_has_the_same_limit(tmp_path):
    for name, text in {"a.jsonl.gz": json.dumps({"a": "x" * 5000}), "a.csv.gz": "a\n" + "x" * 5000}.items():
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
        with pytest.raises(me.DataFormatError, match=r"has a record of more than max_record_bytes \(4,096\)"):
            me.read(tmp_path / name, max_record_bytes="4KiB")
        assert len(me.read(tmp_path / name, max_record_bytes="8KiB")) == 1


def test_the_limit_itself_is_allowed():
    check_inflation("a, block 7", 1, 1000, 1000)
    check_inflation("a, block 7", 10, 1000, 999)
    with pytest.raises(me.DataFormatError, match="a, block 7: 9 bytes become 1,000 bytes"):
        check_inflation("a, block 7", 9, 1000, 999)
