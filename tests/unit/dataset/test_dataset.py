"""The dataset itself: what each method returns, what it refuses, and the position of the iteration."""

import pickle

import pytest

import midepoch as me
from midepoch.dataset import with_launched_shard
from midepoch.sources.blocks import FileBlocks
from worlds import ids, is_kept, plus_one, spread, write_files


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
