"""A `datasets.Dataset` that is already open, read where it is: its rows, its order, and exact resumes."""

import json
from itertools import islice

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import midepoch as me
from hf import fresh, numbered, write_parquet
from midepoch.testing import assert_elastic, assert_resumes, same
from worlds import ids, is_kept, plus_one, table


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """A dataset in files of the cache, of several record batches."""
    path = tmp_path_factory.mktemp("hf")
    write_parquet(path / "data", [30, 20, 10])
    loaded = datasets.load_dataset("parquet", data_dir=str(path / "data"), cache_dir=str(path / "cache"), split="train")
    return loaded.map(plus_one, writer_batch_size=7)


def even(row):
    return row["id"] % 2 == 0


VIEWS = {
    "as it is": lambda ds: ds,
    "select a range": lambda ds: ds.select(range(7, 31)),
    "select": lambda ds: ds.select([5, 3, 59, 3, 3, 17, 18, 19]),
    "select of a select": lambda ds: ds.select([5, 3, 59, 3, 17, 18, 19]).select([6, 0, 1]),
    "shuffle": lambda ds: ds.shuffle(seed=1),
    "filter of a shuffle": lambda ds: ds.shuffle(seed=1).filter(even),
    "sort": lambda ds: ds.sort("maybe"),
    "split": lambda ds: ds.train_test_split(test_size=0.25, seed=2)["test"],
    "shard": lambda ds: ds.shard(3, 1),
    "concatenate": lambda ds: datasets.concatenate_datasets([ds.select(range(5)), ds, ds.select(range(50, 60))]),
    "concatenate selections": lambda ds: datasets.concatenate_datasets([ds.shuffle(seed=3), ds.select([1, 1])]),
    "concatenate columns": lambda ds: datasets.concatenate_datasets(
        [ds, datasets.Dataset.from_dict({"other": list(range(60))})], axis=1
    ),
    "rename": lambda ds: ds.rename_column("text", "words"),
    "remove": lambda ds: ds.remove_columns(["text", "tokens"]),
    "cast": lambda ds: ds.cast_column("id", datasets.Value("int32")),
    "add_column": lambda ds: ds.add_column("new", list(range(60))),
    "flatten_indices": lambda ds: ds.shuffle(seed=1).flatten_indices(),
    "map": lambda ds: ds.map(lambda row: {"twice": 2 * row["id"]}, writer_batch_size=11),
    "empty": lambda ds: ds.select([]),
}


@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")
@pytest.mark.parametrize("where", ["in memory", "in files"])
@pytest.mark.parametrize("view", VIEWS)
def test_rows_are_those_of_datasets_and_resume(mapped, where, view):
    source = mapped if where == "in files" else numbered(60)
    theirs = VIEWS[view](source)
    ours = me.from_hf(theirs)
    assert list(ours) == list(theirs)
    assert len(ours) == len(theirs)
    assert ours.column_names == theirs.column_names
    for level in ("block", "row"):
        shuffled = me.from_hf(theirs).shuffle(1, level=level, window=9)
        assert sorted(ids(shuffled)) == sorted(theirs["id"])
        assert_resumes(shuffled.batch(3), every=9)
    parts = [me.from_hf(theirs).shuffle(1, level="row").shard(3, rank) for rank in range(3)]
    assert sorted(row for part in parts for row in ids(part)) == sorted(theirs["id"])


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 59), max_size=70) | st.lists(st.integers(0, 5), max_size=8),
    st.sampled_from([None, "block", "row"]),
)
@example([0, 0, 2], None)  # as many rows as lie between the first and the last, but not those
@example([7, 7, 9, 9, 9, 10, 13], "row")
def test_any_list_of_rows(chosen, level):
    ours = me.from_hf(numbered(60).select(chosen))
    if level is None:
        assert ids(ours) == chosen
    else:
        assert sorted(ids(ours.shuffle(2, level=level, window=8))) == sorted(chosen)


def test_nothing_is_lost_on_other_readers(mapped):
    for view in ("select", "shuffle", "concatenate", "add_column"):
        dataset = me.from_hf(VIEWS[view](mapped)).shuffle(3, window=16).lanes(4)
        assert_resumes(dataset.filter(is_kept), every=5)
        assert_elastic(dataset.batch(2), [(2, 1), (3, 1), (1, 2)], steps=1)


@pytest.mark.parametrize("form", ["numpy", "torch", "arrow"])
@pytest.mark.parametrize("columns", [None, ["id"], ["maybe", "id"]])
def test_the_format_is_kept(form, columns):
    theirs = numbered(20).select([4, 9, 2, 2]).with_format(form, columns=columns)
    for one, other in zip(me.from_hf(theirs), theirs, strict=True):
        if form == "arrow":
            assert one.to_pydict() == other.to_pydict()
            continue
        assert list(one) == list(other)
        assert type(one["id"]) is type(other["id"])
        assert int(one["id"]) == int(other["id"])
    if form == "torch" and columns == ["id"]:
        assert same(next(iter(me.from_hf(theirs).batch(4))), {"id": torch.tensor([4, 9, 2, 2])})


def test_other_formats_are_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"format 'custom', which midepoch does not have. Call dataset.reset_format"):
        me.from_hf(numbered(3).with_transform(lambda batch: batch))
    with pytest.raises(ValueError, match=r"format 'pandas', which midepoch does not have. Call dataset.reset_format"):
        me.from_hf(numbered(3).with_format("pandas"))
    with pytest.raises(ValueError, match=r"set_transform to \.map\(fn\) instead"):
        me.from_hf(numbered(3).with_transform(lambda batch: batch))
    with pytest.raises(ValueError, match=r"arguments {'dtype': .*float32.*Call dataset.with_format\('numpy'\)"):
        me.from_hf(numbered(3).with_format("numpy", dtype=np.float32))


def test_only_one_split_that_can_be_jumped_in_is_taken():
    with pytest.raises(ValueError, match=r"needs one split, got a DatasetDict of train, test. Pass dataset\['train'\]"):
        me.from_hf(datasets.DatasetDict({"train": numbered(3), "test": numbered(2)}))
    with pytest.raises(TypeError, match=r"needs a datasets.Dataset, got IterableDataset"):
        me.from_hf(numbered(3).to_iterable_dataset())
    with pytest.raises(ValueError, match="got a IterableDatasetDict"):
        me.from_hf(datasets.IterableDatasetDict({"train": numbered(3).to_iterable_dataset()}))
    for other in (None, [1], table(0, 3), "data"):
        with pytest.raises(TypeError, match=r"from_hf needs a datasets.Dataset, got"):
            me.from_hf(other)


def test_nothing_is_copied(mapped):
    before = pa.total_allocated_bytes()
    batches = me.from_hf(mapped.select(range(10, 50))).with_format("arrow").batch(5)
    for batch in batches:
        assert batch.num_rows <= 5
    del batch
    assert pa.total_allocated_bytes() - before < 4096


def test_features_are_kept():
    kinds = datasets.Features({"id": datasets.Value("int64"), "label": datasets.ClassLabel(names=["no", "yes"])})
    dataset = me.from_hf(datasets.Dataset.from_dict({"id": [1], "label": [1]}, features=kinds))
    assert dataset.features["label"].int2str(1) == "yes"
    assert dataset.select_columns("label").features.keys() == {"label"}


def test_workers_that_are_spawned_get_the_tables(mapped):
    both = datasets.concatenate_datasets([numbered(9, first=500), mapped.remove_columns("next")])
    theirs = both.shuffle(seed=5).select(range(3, 40))
    loader = me.Loader(me.from_hf(theirs), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    assert ids(loader) == list(theirs["id"])


REBUILD = """
    import sys, json, datasets, midepoch as me
    theirs = datasets.load_from_disk(sys.argv[1]).shuffle(seed=4).filter(lambda row: row["id"] % 3 > 0)
    dataset = me.from_hf(theirs).shuffle(2, level="row")
    dataset.load_state_dict(json.loads(sys.argv[2]))
    print(json.dumps([row["id"] for row in dataset]))
"""


def test_a_new_process_that_builds_the_same_resumes(tmp_path):
    numbered(60).save_to_disk(tmp_path / "saved", num_shards=3)

    def build():
        theirs = datasets.load_from_disk(tmp_path / "saved").shuffle(seed=4).filter(lambda row: row["id"] % 3 > 0)
        return me.from_hf(theirs).shuffle(2, level="row")

    dataset = build()
    iterator = iter(dataset)
    got = ids(islice(iterator, 11))
    rest = fresh(REBUILD, tmp_path / "saved", json.dumps(dataset.state_dict()))
    assert got + rest == ids(build())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda ds: ds.shuffle(seed=2), "digest of stage 1, select, was"),
        (lambda ds: ds.shuffle(seed=1).select(range(50)), "rows of stage 1, select, was 60 then and is 50 now"),
        (lambda ds: ds, "stage 1, select"),
        (lambda ds: ds.shuffle(seed=1).flatten_indices(), "is new"),
        (lambda ds: numbered(61).shuffle(seed=1), "rows"),
    ],
)
def test_another_selection_or_table_raises(other, message):
    dataset = me.from_hf(numbered(60).shuffle(seed=1))
    next(iter(dataset))
    with pytest.raises(me.CheckpointMismatchError, match=message):
        me.from_hf(other(numbered(60))).load_state_dict(dataset.state_dict())


@pytest.mark.parametrize("row", [0, 30, 59])
def test_another_table_of_the_same_size_raises(row):
    values = list(range(60))
    dataset = me.from_hf(datasets.Dataset.from_dict({"id": values}))
    state = dataset.state_dict()
    for other in (values[::-1], [*values[:row], 1000, *values[row + 1 :]] if row != 30 else [0, *values[2:], 59]):
        with pytest.raises(me.CheckpointMismatchError, match="table-0-"):
            me.from_hf(datasets.Dataset.from_dict({"id": other})).load_state_dict(state)


def test_a_table_in_other_batches_raises():
    """The order of a shuffle by blocks depends on them."""
    state = me.from_hf(datasets.Dataset(table(0, 60))).shuffle(1).state_dict()
    cut = pa.concat_tables([table(0, 25), table(25, 35)])
    with pytest.raises(me.CheckpointMismatchError, match="table-0-"):
        me.from_hf(datasets.Dataset(cut)).shuffle(1).load_state_dict(state)


@pytest.mark.parametrize("join", [me.mix, me.concat])
def test_datasets_of_hugging_face_are_not_mixed_as_they_are(join):
    prepared = datasets.Dataset.from_dict({"x": [1]})
    with pytest.raises(TypeError, match=r"got Dataset\. Open it with midepoch\.from_hf\(dataset\)"):
        join([prepared])
    with pytest.raises(TypeError, match=r"got IterableDataset.*A stream has no files to resume in"):
        join([prepared.to_iterable_dataset()])
