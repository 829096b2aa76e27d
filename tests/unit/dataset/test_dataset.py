"""The dataset itself: what each method returns, what it refuses, and the position of the iteration."""

import copy
import json
import logging
import pickle
from itertools import islice

import pytest

import midepoch as me
from midepoch._common.checks import log_once
from midepoch.dataset import with_launched_shard
from midepoch.sources.blocks import FileBlocks
from worlds import ids, is_kept, plus_one, spread, write_files


def test_one_process_reads_file_after_file_row_after_row(folder):
    assert ids(me.read(folder)) == list(range(60))


def test_a_loop_that_was_left_starts_again_unless_its_state_is_loaded(folder):
    dataset = me.read(folder)
    for _ in range(2):
        for row in dataset:
            if row["id"] == 9:
                break
        assert row["id"] == 9
    dataset.load_state_dict(dataset.state_dict())
    assert ids(dataset) == list(range(10, 60))
    assert dataset.epoch == 1


def test_E5_a_peek_inside_a_loop_changes_no_checkpoint(folder):
    dataset = me.read(folder).shuffle(1).map(plus_one).batch(4)
    whole = [ids([batch]) for batch in copy.copy(dataset)]
    for cut, _ in enumerate(dataset, start=1):
        next(iter(dataset))
        state = dataset.state_dict()
        resumed = copy.copy(dataset)
        resumed.load_state_dict(state)
        assert [ids([batch]) for batch in resumed] == whole[cut:]
        assert resumed.epoch == 1


@pytest.mark.parametrize("level", [None, "file", "block", "row"])
def test_D4_an_old_iterator_delivers_nothing_more(folder, level):
    dataset = me.read(folder) if level is None else me.read(folder).shuffle(1, level=level)
    state = dataset.state_dict()
    for outdate in (lambda: dataset.load_state_dict(state), lambda: dataset.set_epoch(7)):
        rows = iter(dataset)
        next(rows)
        before = rows.state_dict()
        outdate()
        with pytest.raises(me.StaleIteratorError):
            next(rows)
        assert rows.state_dict() == before


def test_E5_each_iterator_has_a_state_of_its_own(folder):
    dataset = me.read(folder).shuffle(1)
    whole = ids(copy.copy(dataset))
    first, second = iter(dataset), iter(dataset)
    got = ids([*islice(first, 7)]), ids([*islice(second, 21)])
    for iterator, rows in zip((first, second), got, strict=True):
        resumed = copy.copy(dataset)
        resumed.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
        assert rows + ids(resumed) == whole
    assert not hasattr(first, "load_state_dict")


@pytest.mark.parametrize("size", [None, 4])
def test_an_iterator_that_raised_has_ended_and_keeps_its_position(folder, size):
    def fail_at_30(row):
        if row["id"] == 30:
            raise ValueError("bad row")
        return row

    dataset = me.read(folder).map(fail_at_30)
    dataset = dataset if size is None else dataset.batch(size)
    iterator, got = iter(dataset), []
    with pytest.raises(ValueError, match="bad row"):
        got.extend(iterator)
    state = dataset.state_dict()
    assert (state["epoch"], state["turn"]) == (0, len(got))
    assert list(iterator) == []
    assert dataset.state_dict() == state
    dataset.load_state_dict(state)  # no loop is under way, though the iterator is still there


def test_repeat_without_a_number_never_ends(folder):
    endless = iter(me.read(folder).take(3).repeat())
    assert [next(endless)["id"] for _ in range(10)] == [0, 1, 2] * 3 + [0]


def test_lengths_are_known_without_reading(folder, monkeypatch):
    monkeypatch.setattr("midepoch.sources.ahead.make_rows", None)
    dataset = me.read(folder)
    assert len(dataset) == 60
    assert len(dataset.map(plus_one).take(50).skip(8)) == 42
    assert len(dataset.batch(7)) == 9
    assert len(dataset.batch(7, drop_last_batch=True)) == 8
    assert len(dataset.lanes(4).batch(7)) == 12
    assert len(dataset.repeat(3)) == 180
    assert [len(dataset.shard(7, rank)) for rank in range(7)] == [9, 9, 9, 9, 8, 8, 8]


def test_a_length_that_is_only_known_by_reading_raises(folder):
    for dataset, reason in (
        (me.read(folder).filter(is_kept), "how many items filter yields is only known by reading"),
        (me.read(folder).map(spread, batched=True), r"map\(batched=True\) may return any number of rows"),
    ):
        with pytest.raises(TypeError, match=f"unknown: {reason}"):
            len(dataset)
    with pytest.raises(TypeError, match="never ends"):
        len(me.read(folder).repeat())


def test_file_mode_opens_no_file_twice(folder):
    parts = [set(ids(me.read(folder).shuffle(3, window=5).shard(2, rank, "file"))) for rank in range(2)]
    for first, last in ((0, 20), (20, 27), (27, 60)):
        assert sum(bool(part & set(range(first, last))) for part in parts) == 1


def test_a_shard_of_a_shard(folder):
    parts = [me.read(folder).shard(2, one).shard(3, other) for one in range(2) for other in range(3)]
    assert sorted(number for part in parts for number in ids(part)) == list(range(60))


def test_shard_without_a_launcher_is_the_whole_dataset(folder):
    whole = list(me.read(folder).shuffle(3).batch(7))
    first = iter(me.read(folder).shuffle(3).batch(7).shard())
    got = [next(first), next(first)]
    again = me.read(folder).shuffle(3).batch(7).shard(1, 0)
    again.load_state_dict(first.state_dict())
    assert got + list(again) == got + list(first) == whole
    assert ids(me.read(folder).shard(2, 1).shard()) == ids(me.read(folder).shard(2, 1))


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "0"), ("WORLD_SIZE", "3"), ("SLURM_PROCID", "0"), ("OMPI_COMM_WORLD_SIZE", "2"), ("PMI_SIZE", "2")],
)
def test_shard_raises_if_a_launcher_left_something_out(folder, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=rf"{name} is .*torchrun.*pass num_shards and index"):
        me.read(folder).shard()
    assert ids(me.read(folder).shard(1, 0)) == list(range(60))


def test_a_shard_that_the_launcher_chose_is_replaced_by_one_of_the_user(folder, monkeypatch):
    assert ids(with_launched_shard(me.read(folder))) == list(range(60)), "nothing was launched"
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    launched = with_launched_shard(me.read(folder))
    assert ids(launched) == ids(me.read(folder).shard(3, 1))
    assert ids(launched.shard()) == ids(launched)
    assert ids(launched.batch(2).shard(2, 0)) == ids(me.read(folder).batch(2).shard(2, 0))
    assert ids(launched.shard(1, 0)) == list(range(60))
    assert ids(launched.shard(2, 0).shard(2, 1)) == ids(me.read(folder).shard(2, 0).shard(2, 1))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda ds: ds.shuffle(level="rows"), ValueError, "'rows'; it can be 'file', 'block' or 'row'"),
        (lambda ds: ds.shuffle(seed=1.5), TypeError, "seed must be an integer, got 1.5"),
        (lambda ds: ds.lanes(0), ValueError, "n is 0; it must be at least 1"),
        (lambda ds: ds.take(-1), ValueError, "n is -1; it must be at least 0"),
        (lambda ds: ds.train_test_split(1.5), ValueError, "test_size is 1.5; pass a fraction between 0 and 1"),
        (lambda ds: ds.train_test_split(61), ValueError, "test_size is 61, but the dataset has only 60 rows"),
        (lambda ds: ds.train_test_split(-1), ValueError, "test_size is -1; it must be at least 0"),
        (lambda ds: ds.train_test_split("10%"), TypeError, "test_size must be an integer, got '10%'"),
        (lambda ds: ds.train_test_split(0.1, seed=0.5), TypeError, "seed must be an integer"),
        (lambda ds: ds.batch(0), ValueError, "batch_size is 0; it must be at least 1"),
        (lambda ds: ds.map(plus_one, batched=True, batch_size=0), ValueError, "at least 1, got 0"),
        (lambda ds: ds.map(3), TypeError, "map needs a function, got 3"),
        (lambda ds: ds.shard(2, 2), ValueError, "index is 2 of 2 shards"),
        (lambda ds: ds.shard(2), ValueError, "both num_shards and index"),
        (lambda ds: ds.shard(2, 0, "rows"), ValueError, "mode is 'rows'"),
        (lambda ds: ds.with_format("tf"), ValueError, "'tf'; it can be 'python', 'numpy', 'torch', 'arrow'"),
        (lambda ds: ds.repeat(-1), ValueError, "num_times is -1"),
        (lambda ds: ds.set_epoch(-1), ValueError, "epoch is -1"),
        (lambda ds: ds.select_columns(["nope"]), me.SchemaMismatchError, "no column 'nope'. There are: id, text"),
        (
            lambda ds: list(ds.map(plus_one, remove_columns="nope")),
            me.SchemaMismatchError,
            "'nope', which is not among",
        ),
    ],
)
def test_wrong_arguments_raise_where_they_are_passed(folder, call, error, message):
    with pytest.raises(error, match=message):
        call(me.read(folder))


def test_columns_that_are_not_asked_for_are_not_read(folder):
    assert next(iter(me.read(folder, columns=["text", "id"]))) == {"text": "row 0", "id": 0}
    assert next(iter(me.read(folder).select_columns("id"))) == {"id": 0}
    assert me.read(folder).select_columns("id").schema.names == ["id"]


def test_shared_lanes_are_warned_of_once_with_the_factor(folder, caplog):
    log_once.cache_clear()
    with caplog.at_level(logging.WARNING, "midepoch"):
        for rank in range(3):
            list(me.read(folder).lanes(2).filter(is_kept).shard(3, rank))
    assert [record.message for record in caplog.records if "keep one item in 3" in record.message]
    assert len(caplog.records) == 1


def test_a_dataset_survives_pickling_with_its_start_point(folder):
    dataset = me.read(folder).shuffle(1).map(plus_one)
    got = [row["id"] for row in islice(dataset, 10)]
    dataset.load_state_dict(dataset.state_dict())
    next(iter(dataset))
    copied = pickle.loads(pickle.dumps(dataset))
    assert got + ids(copied) == ids(me.read(folder).shuffle(1))


def test_blocks_of_other_readers_are_not_read(tmp_path, monkeypatch):
    """Eight readers share one lane of Parquet. Each reads only the blocks that have its own rows."""
    folder = write_files(tmp_path / "many", [8000], kinds=["parquet"], block=4)
    read, right = [], FileBlocks.read
    monkeypatch.setattr(FileBlocks, "read", lambda self, numbers: (read.extend(numbers), right(self, numbers))[1])
    got = ids(me.read(folder).lanes(1).batch(16).shard(8, 0))
    assert len(got) == 1008
    assert sorted(read) == sorted({number // 4 for number in got})


def test_columns_that_were_left_out_do_not_come_back(folder):
    with pytest.raises(me.SchemaMismatchError, match="There are: id"):
        me.read(folder, columns=["id"]).select_columns("text")
    with pytest.raises(ValueError, match="a column twice"):
        me.read(folder).select_columns(["id", "id"])


def test_a_relative_index_folder_survives_a_change_of_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(me.read(folder, index_dir="kept"))
    monkeypatch.chdir("/")
    assert ids(pickle.loads(pickled)) == list(range(60))


@pytest.mark.parametrize("kind", [me.StructuredDataset, me.SimpleArrowIterableDataset, me.MultiModalIterableDataset])
def test_a_dataset_whose_constructor_raised_has_a_repr(kind):
    dataset = object.__new__(kind)
    with pytest.raises((TypeError, ValueError)):
        dataset.__init__(no_such_option=1)
    assert f"{kind.__name__} object at" in repr(dataset)
