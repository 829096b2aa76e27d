"""read(filters=...): which blocks and columns are read, what raises, and what a state records."""

import json
import os

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import midepoch as me
from midepoch.errors import CheckpointMismatchError, DataFormatError, SchemaMismatchError
from midepoch.formats import parquet
from midepoch.index import filters as filters_module
from midepoch.index.filters import Predicate
from midepoch.sources import ahead
from midepoch.sources.blocks import FileBlocks
from midepoch.testing import assert_resumes
from worlds import FORMATS, ids, is_kept, write_files

field = pc.field


@pytest.fixture
def folder(tmp_path):
    """Parquet in row groups of ten rows, numbered through three files."""
    return write_files(tmp_path / "data", [60, 50, 90], ["parquet"])


@pytest.fixture
def blocks_read(monkeypatch):
    """The numbers of the blocks that are read."""
    seen, read = [], FileBlocks.read

    def watched(self, numbers):
        blocks = read(self, numbers)
        seen.extend(numbers)
        return blocks

    monkeypatch.setattr(FileBlocks, "read", watched)
    return seen


@pytest.fixture
def bytes_read(monkeypatch):
    """How many bytes are read of each file."""
    seen = {}

    class Counted:
        def __init__(self, path):
            self._file, self._path = pa.OSFile(path), path

        def read(self, count=-1):
            content = self._file.read(count)
            seen[self._path] = seen.get(self._path, 0) + len(content)
            return content

        def seek(self, *place):
            return self._file.seek(*place)

        def tell(self):
            return self._file.tell()

        def close(self):
            self._file.close()

        @property
        def closed(self):
            return self._file.closed

    monkeypatch.setattr(parquet, "open_file", lambda path, mapped=False: pa.PythonFile(Counted(path), "r"))
    monkeypatch.setattr(ahead, "usable_cores", lambda: 1)  # only one thread may read such a file
    return seen


def test_only_row_groups_that_can_match_are_read(folder, blocks_read):
    dataset = me.read(folder, filters=(field("id") >= 57) & (field("id") < 72))
    assert ids(dataset) == list(range(57, 72))
    assert sorted(set(blocks_read)) == [5, 6, 7]


def test_files_in_which_no_row_can_match_are_not_opened(folder, bytes_read):
    filters = field("id") == 85
    me.read(folder, filters=filters)
    opened = len(bytes_read)
    bytes_read.clear()
    assert ids(me.read(folder, filters=filters)) == [85]
    assert (opened, [os.path.basename(path) for path in bytes_read]) == (3, ["part-0001.parquet"])


def test_one_row_group_of_twenty_costs_a_twentieth_of_the_bytes(tmp_path, bytes_read):
    rows, footer = 400_000, 2 * (64 << 10)  # Arrow reads the last 64 KiB of a file to find its footer
    table = pa.table({"id": range(rows), "x": pa.array(range(rows), pa.float64())})
    path = str(tmp_path / "a.parquet")
    pq.write_table(table, path, row_group_size=rows // 20, use_dictionary=False, compression="none")
    plain, filtered = me.read(path), me.read(path, filters=field("id") < rows // 20)
    bytes_read.clear()
    assert len(list(plain.batch(1000))) == rows / 1000
    whole = bytes_read.pop(path)
    assert ids(filtered.batch(1000)) == list(range(rows // 20))
    assert bytes_read.pop(path) <= whole / 20 + footer
    assert ids(filtered.select_columns("id").batch(1000)) == list(range(rows // 20))
    assert bytes_read[path] <= whole / 40 + footer


def test_columns_that_only_the_filter_needs_are_not_delivered(folder):
    dataset = me.read(folder, columns=["text"], filters=field("id") > 197)
    assert list(dataset) == [{"text": "row 198"}, {"text": "row 199"}]
    assert dataset.schema.names == dataset.column_names == ["text"]
    other = me.read(folder, filters=field("id") > 197).shuffle(1).select_columns(["text"])
    assert sorted(row["text"] for row in other) == ["row 198", "row 199"]
    assert next(iter(me.read(folder, filters=field("id") > 197).with_format("arrow"))).num_columns == 4


@pytest.mark.parametrize("kinds", [FORMATS, ["orc"], ["jsonl", "json"], ["csv"], ["parquet", "jsonl"]])
def test_every_format_can_be_filtered(tmp_path, kinds):
    folder = write_files(tmp_path / "data", [30, 20, 25], kinds)
    dataset = me.read(folder, filters=field("maybe") > 33)
    assert ids(dataset) == [number for number in range(34, 75) if number % 5]
    assert_resumes(dataset.shuffle(1, window=20), every=5)


def test_a_filter_that_nothing_matches_yields_nothing_and_reads_no_block(folder, blocks_read):
    dataset = me.read(folder, filters=field("id") > 1000)
    assert list(dataset) == list(dataset.shuffle(1)) == list(dataset.shuffle(1, level="row").batch(3)) == []
    assert list(dataset.shard(2, 1, mode="file")) == []
    assert blocks_read == []
    dataset.load_state_dict(dataset.state_dict())


def test_a_state_of_another_filter_raises_and_names_both(folder):
    dataset = me.read(folder, filters=field("id") > 5)
    next(iter(dataset))
    state = json.loads(json.dumps(dataset.state_dict()))
    me.read(folder, filters=field("id") > 5).load_state_dict(state)
    with pytest.raises(
        CheckpointMismatchError, match=r"filter of stage 1, where, was '\(id > 5\)' then and is '\(id > 6\)'"
    ):
        me.read(folder, filters=field("id") > 6).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match=r"where.* was removed"):
        me.read(folder).load_state_dict(state)


def test_a_state_raises_if_the_filter_now_keeps_other_blocks(folder, monkeypatch):
    state = me.read(folder, filters=field("id") > 100).state_dict()
    monkeypatch.setattr(filters_module, "blocks_that_may_match", lambda index, *_: filters_module.np.ones(20, bool))
    with pytest.raises(CheckpointMismatchError, match="blocks of stage 1, where, was 10 then and is 20 now"):
        me.read(folder, filters=field("id") > 100).load_state_dict(state)


def test_nested_columns_are_filtered_without_statistics(tmp_path):
    table = pa.table({"a": [{"b": number} for number in range(30)], "a.b": range(100, 130), "id": range(30)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    assert ids(me.read(tmp_path, filters=field("a", "b") == 3)) == [3]
    assert ids(me.read(tmp_path, filters=field("a.b") == 103, columns=["id"])) == [3]
    assert Predicate.of(field("a", "b") == 3, table.schema).columns == ("a",)


@pytest.mark.parametrize(
    ("filters", "error", "message"),
    [
        (field("nope") > 1, SchemaMismatchError, "column 'nope', which does not exist. There are: id, text, tokens"),
        (field("id", "deep") > 1, SchemaMismatchError, "column 'id.deep', which does not exist"),
        (field("id") > "a", SchemaMismatchError, "does not fit the types of these columns"),
        (field("id") + 1, TypeError, "is of type int64"),
        (field(0) > 1, ValueError, "by its number"),
        ([("id", "~", 1)], ValueError, "not a list of"),
        ([], TypeError, "pyarrow.compute expression"),
        ("id > 1", TypeError, "got 'id > 1'"),
        (is_kept, TypeError, r"use .filter\(fn\)"),
    ],
)
def test_wrong_filters_raise_when_the_dataset_is_built(folder, filters, error, message):
    with pytest.raises(error, match=message):
        me.read(folder, filters=filters)


def test_an_expression_that_fails_on_a_row_names_the_file(folder):
    dataset = me.read(folder, filters=pc.divide(pc.scalar(1), field("id") - 125) == 0)
    with pytest.raises(DataFormatError, match=r"filters .* row 15 of part-0002.parquet: divide by zero"):
        list(dataset)


def test_take_skip_and_len_raise(folder):
    dataset = me.read(folder, filters=field("id") > 5)
    with pytest.raises(ValueError, match=r"take after read\(filters=...\) is not possible"):
        dataset.take(3)
    with pytest.raises(ValueError, match=r"skip after read\(filters=...\) is not possible"):
        dataset.shuffle(1).skip(3)
    with pytest.raises(TypeError, match=r"read\(filters=...\) keeps a number of rows"):
        len(dataset)
    assert "where" in repr(dataset)
