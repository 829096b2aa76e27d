"""Rows of files as a source: lanes, cursors, what a state records, and which checkpoints fit."""

import re
from dataclasses import replace

import pyarrow as pa
import pytest

import midepoch as me
from files import write, write_numbers
from midepoch._common.checks import log_once, parse_size
from midepoch.dataset import file_rows
from midepoch.errors import CheckpointMismatchError
from midepoch.index.build import open_index
from midepoch.order.orders import Shuffle
from midepoch.order.selection import Without
from midepoch.sources.files import FileRows, without_rows
from objects import put
from worlds import write_files

SIZES = [13, 0, 40, 7]


@pytest.fixture(params=["parquet", "stream"])
def source(tmp_path, request):
    return FileRows(index=open_index(write_files(tmp_path / "data", SIZES, [request.param], block=5)))


def in_two_places(tmp_path, folder, compression=None):
    """The same Arrow files, on this machine and in a store."""
    (tmp_path / folder).mkdir()
    for number in range(3):
        table = pa.table({"id": range(3000 * number, 3000 * number + 3000)})
        path = write(
            tmp_path / folder / f"{number}.arrow", table.to_batches(max_chunksize=1000), compression=compression
        )
        put(f"/{folder}/{path.name}", path.read_bytes())
    return tmp_path / folder, f"memory://{folder}"


def advanced(dataset):
    """A state, and the rows that come after it."""
    rows = iter(dataset)
    for _ in range(2000):
        next(rows)
    return dataset.state_dict(), [row["id"] for row in rows]


@pytest.mark.parametrize(
    ("place", "compression", "options"),
    [
        ("row", None, {"level": "row"}),
        ("file", None, {"level": "file"}),
        ("packed", "zstd", {}),
    ],
)
def test_a_state_of_local_arrow_goes_on_in_a_store_where_the_order_is_the_same(tmp_path, place, compression, options):
    local, remote = (me.read(one).shuffle(1, **options) for one in in_two_places(tmp_path, place, compression))
    for before, after in ((local, remote), (remote, local)):
        state, rest = advanced(before)
        after.load_state_dict(state)
        assert [row["id"] for row in after] == rest


def test_a_shuffle_of_record_batches_in_a_store_has_another_order_and_a_state_says_so(tmp_path):
    local, remote = (me.read(one).shuffle(1, window=500, window_blocks=2) for one in in_two_places(tmp_path, "blocks"))
    orders = [[row["id"] for row in dataset] for dataset in (local, remote)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(9000))
    for before, after in ((local, remote), (remote, local)):
        for wrap in (lambda one: one, lambda one: me.mix({"a": one, "b": me.read(tmp_path / "blocks")}, seed=1)):
            state, _ = advanced(wrap(before))
            with pytest.raises(CheckpointMismatchError, match=r"whole record batches from [03] Arrow files?, and"):
                wrap(after).load_state_dict(state)


def shuffled(source, **sizes):
    step = Shuffle(seed=1, level="block", **{"window": 1, "window_blocks": 4, "window_bytes": 1 << 30} | sizes)
    return replace(source, steps=(step,)), step


@pytest.fixture
def parquet(tmp_path):
    """12 row groups of 5 rows."""
    return FileRows(index=open_index(write_files(tmp_path / "data", [60], ["parquet"], block=5)))


def log_of(source, caplog, lanes, **sizes):
    """What is logged of how an epoch of so many lanes mixes."""
    log_once.cache_clear()
    caplog.clear()
    with caplog.at_level("INFO", logger="midepoch"):
        for _ in range(2):
            rows, _ = shuffled(source, **sizes)
            rows.log_mixing(lanes)
    return [(record.levelname, record.getMessage()) for record in caplog.records]


@pytest.mark.parametrize(
    ("lanes", "sizes", "said"),
    [
        (1, {"window_blocks": 4}, ["4 blocks are mixed at a time, of 12", "there is 1 lane", "window_blocks=12)"]),
        (2, {"window_blocks": 4}, ["8 blocks are mixed at a time", "there are 2 lanes", "window_blocks=6)"]),
        (1, {"window_blocks": 4, "window_bytes": 1}, ["1 block are mixed", "window_blocks=12, window_bytes='"]),
        (3, {"window_blocks": 4}, None),
        (1, {"window_blocks": 12}, None),
        (1, {"window_blocks": 1, "window": 60}, None),
    ],
)
def test_a_log_line_says_once_that_the_windows_of_all_lanes_have_few_blocks(parquet, caplog, lanes, sizes, said):
    logged = log_of(parquet, caplog, lanes, **sizes)
    assert [level for level, _ in logged] == ([] if said is None else ["WARNING"])
    assert all(words in logged[0][1] for words in said or ())


def test_what_the_log_line_says_to_do_is_enough(parquet, caplog):
    ((_, message),) = log_of(parquet, caplog, 1, window_blocks=2, window_bytes=1)
    window_blocks, window_bytes = re.search(r"window_blocks=(\d+), window_bytes='(.+?)'", message).groups()
    sizes = {"window_blocks": int(window_blocks), "window_bytes": parse_size("window_bytes", window_bytes)}
    assert log_of(parquet, caplog, 1, **sizes) == []
    lanes = int(re.search(r"\.lanes\((\d+)\)", message).group(1))
    assert log_of(parquet, caplog, lanes, window_blocks=2, window_bytes=1) == []


def test_nothing_is_logged_of_one_window_or_of_blocks_that_can_be_divided(tmp_path, caplog):
    few = FileRows(index=open_index(write_files(tmp_path / "few", [10], ["parquet"], block=5)))
    assert log_of(few, caplog, 1, window_blocks=1, window=9) == []
    arrow = FileRows(index=open_index(write_files(tmp_path / "arrow", [60], ["stream"], block=5)))
    assert log_of(arrow, caplog, 1, window_blocks=1, window_bytes=1) == []


@pytest.fixture
def numbered(tmp_path):
    paths = [write_numbers(tmp_path / f"{number}.arrow", number * 5, number * 5 + 5) for number in range(3)]
    return file_rows(me.read(paths), "test")


def test_pairs_and_tables_name_the_same_rows(numbered):
    table = pa.table({"step": [1, 1], "file": ["2.arrow", "0.arrow"], "row": [4, 1]})
    for named in ([("2.arrow", 4), ("0.arrow", 1), ("0.arrow", 1)], table):
        [edit] = without_rows(numbered, named).steps
        assert isinstance(edit, Without)
        assert edit.rows.tolist() == [1, 14]
        assert without_rows(numbered, named).size == 13


def test_rows_that_are_out_already_change_nothing(numbered):
    once = without_rows(numbered, [("1.arrow", 0)])
    assert without_rows(once, [("1.arrow", 0)]) is once
    assert without_rows(once, []) is once
    assert without_rows(once, [("1.arrow", 0), ("1.arrow", 1)]).size == 13
    assert without_rows(once, [("1.arrow", 1)]).edits == 2
