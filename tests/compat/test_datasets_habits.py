"""The same calls on a dataset of `datasets` and on ours give the same rows."""

import pickle
from copy import copy
from itertools import chain, product

import datasets
import numpy as np
import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

import midepoch as me
from hf import numbered, write_parquet
from midepoch.testing import assert_resumes, same
from worlds import ids

ROWS = 23


def ours():
    return me.from_hf(numbered(ROWS))


def theirs():
    """The dataset in memory, and the same as a stream."""
    return [numbered(ROWS), numbered(ROWS).to_iterable_dataset()]


def changed_in_place(row):
    row["id"] = [one + 1 for one in row["id"]] if isinstance(row["id"], list) else row["id"] + 1
    row["new"] = row["text"]
    return row


def made_anew(row):
    return {"new": row["text"], "text": row["text"]}


def popped(row):
    return {"new": row.pop("text")}


def popped_in_place(row):
    row["new"] = row.pop("text")
    return row


@pytest.mark.parametrize("removed", [["text"], ["text", "maybe"], ["text", "id"]])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("function", [changed_in_place, made_anew, popped, popped_in_place])
def test_removed_columns_are_gone_whatever_a_function_returns(function, batched, removed):
    mapped = list(ours().map(function, batched=batched, remove_columns=removed))
    for other in theirs():
        assert mapped == list(other.map(function, batched=batched, remove_columns=removed))


def test_removed_columns_of_arrow_batches():
    def with_more(batch):
        return batch.append_column("new", batch["id"])

    mapped = ours().with_format("arrow").map(with_more, batched=True, remove_columns=["text"]).with_format("python")
    _, stream = theirs()
    expected = stream.with_format("arrow").map(with_more, batched=True, remove_columns=["text"])
    assert list(mapped) == list(expected.with_format(None))
    single = list(ours().with_format("arrow").map(with_more, remove_columns="text"))
    assert pa.Table.from_batches(single).to_pylist() == list(mapped)


@pytest.mark.parametrize("options", [{}, {"batched": True}, {"batched": True, "one_to_one": True}])
def test_a_column_that_does_not_exist_cannot_be_removed(options):
    with pytest.raises(me.SchemaMismatchError, match="remove_columns names 'txet', which is not among"):
        list(ours().map(changed_in_place, remove_columns="txet", **options))
    with pytest.raises(me.SchemaMismatchError, match="remove_columns names 'txet', which is not among"):
        list(ours().with_format("arrow").map(lambda batch: batch, remove_columns="txet", **options))


def reversed_and_counted(columns):
    ids = columns["id"][::-1]
    return {"id": ids, "together": [len(ids)] * len(ids)}


def joined(columns):
    return {"text": [" ".join(columns["text"])]}


@pytest.mark.parametrize("drop_last_batch", [False, True])
@pytest.mark.parametrize("batch_size", [1, 5, ROWS, ROWS + 1, None, -1])
@pytest.mark.parametrize("function", [reversed_and_counted, joined])
def test_the_size_of_a_batch(function, batch_size, drop_last_batch):
    options = {"batch_size": batch_size, "drop_last_batch": drop_last_batch}
    options |= {"batched": True, "remove_columns": ["id", "text", "tokens", "maybe"]}
    mapped = ours().map(function, **options)
    _, stream = theirs()
    assert list(mapped) == list(stream.map(function, **options))
    assert_resumes(mapped)


@pytest.mark.parametrize("batch_size", [0, -2, 1.5, True])
def test_other_sizes_of_a_batch_raise(batch_size):
    with pytest.raises(ValueError, match=r"batch_size must be an integer of at least 1, got .*pass None or -1"):
        ours().map(joined, batched=True, batch_size=batch_size)
    with pytest.raises(ValueError, match=r"batch_size must be an integer of at least 1, got .*pass None or -1"):
        ours().filter(are_odd, batched=True, batch_size=batch_size)


def is_odd(row):
    return row["id"] % 2 == 1


def are_odd(columns):
    return [number % 2 == 1 for number in columns["id"]]


def are_multiples(numbers, rows, of):
    return np.array(numbers) % of == np.array(rows) % of


@pytest.mark.parametrize("batch_size", [1, 5, ROWS + 1, None])
def test_a_batched_filter(batch_size):
    options = {"batched": True, "batch_size": batch_size}
    more = {**options, "with_indices": True, "input_columns": ["id"], "fn_kwargs": {"of": 3}}
    for function, given in ((are_odd, options), (are_multiples, more)):
        kept = ours().filter(function, **given)
        for other in theirs():
            assert list(kept) == list(other.filter(function, **given))
        assert_resumes(kept)
        assert same(list(me.Loader(kept.lanes(2), num_workers=2)), list(me.Loader(kept.lanes(2))))
    assert list(ours().filter(are_odd, **options)) == list(ours().filter(is_odd, batch_size=batch_size))


def test_a_batched_filter_gets_as_many_rows_as_it_asked_for():
    sizes = []

    def noted(columns):
        sizes.append(len(columns["id"]))
        return are_odd(columns)

    for size in (5, 1000, None, -1):
        list(ours().filter(noted, batched=True, batch_size=size))
    assert sizes == [5, 5, 5, 5, 3, ROWS, ROWS, ROWS]


@pytest.mark.parametrize("num_times", [0, 1, 3])
def test_repeat(num_times):
    repeated = ours().repeat(num_times)
    assert len(repeated) == num_times * ROWS
    for other in theirs():
        assert list(repeated) == list(other.repeat(num_times))


BUILDS = {
    "plain": lambda ds: ds,
    "filter": lambda ds: ds.filter(lambda row: row["id"] % 2),
    "batches": lambda ds: ds.map(joined, batched=True, remove_columns=["id", "text", "tokens", "maybe"]),
    "mixture": lambda ds: me.concat([ds, ds]),
    "packs": lambda ds: ds.pack(4, column="tokens"),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_nothing_repeated_is_nothing(build, workers):
    nothing, again = build(ours()).repeat(0), build(ours()).repeat(0)
    assert list(nothing) == list(nothing) == []
    assert nothing.epoch == 0
    again.load_state_dict(nothing.state_dict())
    assert list(again) == []
    for loader in (me.Loader(nothing, num_workers=workers), DataLoader(nothing, None, num_workers=workers)):
        assert list(loader) == list(loader) == []
    assert same(list(again.repeat(1)), list(build(ours()))), "it is the loop that is empty, not the data"
    if nothing.counted:
        assert len(nothing) == len(me.Loader(nothing)) == 0


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize(("shards", "workers"), [(1, 0), (2, 0), (3, 2), (ROWS + 1, 0)])
def test_shards_are_runs_of_rows_or_every_nth_row(shards, contiguous, workers):
    whole = numbered(ROWS)
    for index in range(0, shards, 5 if shards > ROWS else 1):
        mine = ours().shard(shards, index, contiguous=contiguous)
        expected = [row["id"] for row in whole.shard(shards, index, contiguous=contiguous)]
        assert ids(mine) == expected
        assert len(mine) == len(expected)
        if index < 2:
            assert ids(me.Loader(mine, num_workers=workers, even=None)) == expected
            assert ids(DataLoader(mine, None, num_workers=workers)) == expected


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_shard_of_a_shard(contiguous):
    for index, inner in product(range(2), range(3)):
        mine = ours().shard(2, index, contiguous=contiguous).shard(3, inner, contiguous=False)
        expected = numbered(ROWS).shard(2, index, contiguous=contiguous).shard(3, inner, contiguous=False)
        assert ids(mine) == [row["id"] for row in expected]
        plain = ours().shard(2, index).shard(3, inner, contiguous=False)
        assert ids(plain) == ids(numbered(ROWS).shard(2, index).shard(3, inner, contiguous=False))


def test_shards_of_a_shuffle_and_of_a_filter():
    order = ids(ours().shuffle(seed=1, level="row"))
    assert ids(ours().shuffle(seed=1, level="row").shard(3, 1, contiguous=False)) == order[1::3]
    assert ids(ours().shuffle(seed=1, level="row").shard(3, 1, contiguous=True)) == order[8:16]
    assert ids(ours().filter(is_odd).shard(3, 1, contiguous=False)) == list(range(1, ROWS, 2))[1::3]
    both = [ids(ours().filter(is_odd).shard(3, index, contiguous=True)) for index in range(3)]
    assert list(chain(*both)) == list(range(1, ROWS, 2))


def test_what_does_not_fit_contiguous_shards():
    with pytest.raises(ValueError, match=r"mode is False.* write contiguous=False"):
        ours().shard(2, 0, False)
    with pytest.raises(ValueError, match=r"lanes\(4\) has\. Leave out one"):
        ours().lanes(4).shard(2, 0, contiguous=True)
    with pytest.raises(ValueError, match=r"contiguous= says which rows .*mode='file'"):
        ours().shard(2, 0, mode="file", contiguous=True)
    with pytest.raises(ValueError, match=r"of a shard is not possible.*shard\(6, index, contiguous=True\)"):
        ours().shard(2, 0).shard(3, 0, contiguous=True)
    with pytest.raises(TypeError, match="contiguous must be True or False, got 'yes'"):
        ours().shard(2, 0, contiguous="yes")


def columns_of(path, name, columns, block=4):
    """The same rows for `datasets` and for us: in a file of record batches."""
    table = pa.table(columns)
    path.mkdir(exist_ok=True)
    with pa.OSFile(str(path / f"{name}.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=block)
    return me.read(path / f"{name}.arrow"), datasets.Dataset(table)


@pytest.fixture
def differing(tmp_path):
    """Datasets that have some columns in common, and their twins of `datasets`."""
    made = [
        columns_of(tmp_path, "a", {"id": range(9), "text": [f"a{one}" for one in range(9)]}),
        columns_of(tmp_path, "b", {"score": [one / 2 for one in range(7)], "id": range(9, 16)}),
        columns_of(tmp_path, "c", {"id": range(16, 21), "tags": [["x"] * one for one in range(5)]}),
        columns_of(tmp_path, "d", {"text": [f"d{one}" for one in range(3)], "id": range(21, 24), "score": [0.5] * 3}),
    ]
    return [mine for mine, _ in made], [other for _, other in made]


def with_next(row):
    return {"next": row["id"] + 1}


CONCATENATED = {
    "as they are": lambda ds: ds,
    "map": lambda ds: ds.map(with_next),
    "batched map": lambda ds: ds.map(lambda columns: {"next": columns["id"]}, batched=True, batch_size=3),
    "filter": lambda ds: ds.filter(is_odd),
    "removed": lambda ds: ds.map(with_next, remove_columns=["id"]),
    "selected": lambda ds: ds.select_columns([name for name in ds.column_names if name != "score"]),
    "selected after a map": lambda ds: ds.map(with_next).select_columns(
        ["next", *(name for name in ("text", "tags") if name in next(iter(ds)))]
    ),
    "renamed after a map": lambda ds: ds.map(with_next).rename_column("next", "following"),
}


@pytest.mark.parametrize("change", CONCATENATED.values(), ids=CONCATENATED)
def test_concatenated_datasets_have_all_columns(differing, change):
    mine, others = [list(map(change, parts)) for parts in differing]
    joined, expected = me.concat(mine), list(datasets.concatenate_datasets(others))
    assert list(joined) == expected
    if set(expected[0]) == {"id", "text", "score", "tags"}:
        assert [list(row) for row in joined] == [list(row) for row in expected], "in the same order"
    assert list(joined.batch(4)) == list(datasets.concatenate_datasets(others).batch(4))
    assert_resumes(joined.batch(4))
    assert same(list(me.Loader(joined.lanes(2), 3, num_workers=2)), list(me.Loader(joined.lanes(2), 3)))


def test_concatenated_datasets_of_other_forms_have_all_columns(differing):
    mine, others = differing
    expected = list(datasets.concatenate_datasets(others))
    arrow = list(me.concat([part.with_format("arrow") for part in mine]))
    assert [row for batch in arrow for row in batch.to_pylist()] == expected
    assert list(me.concat(mine).with_format("numpy").with_format("python").select_columns(["id", "text"])) == [
        {"id": row["id"], "text": row["text"]} for row in expected
    ]
    batches = list(me.concat([part.batch(4) for part in mine]))
    assert [dict(zip(one, row, strict=True)) for one in batches for row in zip(*one.values(), strict=True)] == expected
    nested = me.concat([me.concat(mine[:2]), me.concat(mine[2:])])
    assert list(nested) == expected


DERIVED = {
    "map and filter": lambda ds: ds.map(with_next).filter(is_odd),
    "take and shuffle": lambda ds: ds.take(9).shuffle(seed=1),
    "shard": lambda ds: ds.shard(2, 0),
    "columns": lambda ds: ds.select_columns(["id"]).with_format("numpy"),
    "copy": copy,
    "pickled": lambda ds: pickle.loads(pickle.dumps(ds)),
}


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    """Each way to open a Hugging Face dataset, and the dataset as `datasets` opens it."""
    path = tmp_path_factory.mktemp("hf")
    source = {"path": "parquet", "data_dir": str(write_parquet(path / "data", [20, 10])), "cache_dir": str(path)}
    splits = ["train", "train[:20%]", None]
    theirs = [datasets.load_dataset(**source, split=split or "train") for split in splits]
    index = {"index_dir": path / "index"}
    mine = [me.fast_load_iterable_dataset(**source, split=split, **index) for split in splits]
    theirs[0].info.description = "numbered rows"
    theirs[0].save_to_disk(path / "saved")
    test = datasets.Dataset.from_dict({"id": [1, 2]}, split="test")
    datasets.DatasetDict({"train": theirs[0], "test": test}).save_to_disk(path / "both")
    theirs += [datasets.load_from_disk(path / "saved"), datasets.load_from_disk(path / "both")["test"], theirs[0]]
    mine += [
        me.fast_load_iterable_dataset(path / "saved", **index),
        me.fast_load_iterable_dataset(path / "both", split="test", **index),
        me.from_hf(theirs[0]),
    ]
    return list(zip(mine, theirs, strict=True))


@pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED)
def test_info_and_split(described, derive):
    for mine, other in described:
        derived = derive(mine)
        assert derived.info.features == other.info.features
        assert derived.info.dataset_name == other.info.dataset_name
        assert derived.info.splits == other.info.splits
        assert derived.split == other.split
    assert derive(described[-1][0]).info == described[-1][1].info
    assert derive(described[3][0]).info.description == "numbered rows"


def test_other_datasets_have_no_info(differing):
    mine, _ = differing
    for name in ("info", "split"):
        assert not hasattr(mine[0], name)
        with pytest.raises(AttributeError, match=f"no attribute '{name}'. only datasets of from_hf"):
            getattr(me.concat(mine), name)
