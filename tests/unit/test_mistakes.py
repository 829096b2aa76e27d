"""Common mistakes: each message says what is wrong and what to write instead."""

import asyncio
from functools import partial, wraps

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import midepoch as me
from worlds import write_files


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", [20, 7], kinds=["stream"])


@pytest.fixture
def dataset(folder):
    return me.read(folder)


def no_return(item):
    item["more"] = 1


def chat(row):
    return {"messages": [{"role": "user", "content": row["text"]}]}


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda ds: ds.map(no_return), r"map returned None for row 0 of part-0000\.arrow.* without a return"),
        (lambda ds: ds.map(no_return, batched=True), "returned None. Does it end without a return statement"),
        (lambda ds: ds.filter(no_return), r"filter returned None for row 0 of part-0000\.arrow\. It must return True"),
        (
            lambda ds: me.MultiModalIterableDataset(ds.map(chat), processor=lambda sample: None),
            "processor returned None. It must return a dict of arrays with input_ids",
        ),
    ],
)
def test_a_function_without_a_return(dataset, use, message):
    for loop in (use(dataset), me.Loader(use(dataset), batch_size=2)):
        with pytest.raises(TypeError, match=message):
            next(iter(loop))


async def awaited(item, *more):
    return item


class Awaited:
    async def __call__(self, item):
        return item


async def generated(item):
    yield item


@pytest.mark.parametrize("function", [awaited, generated, partial(Awaited())])
@pytest.mark.parametrize(
    ("use", "stage"),
    [
        (lambda ds, fn: ds.map(fn), "map"),
        (lambda ds, fn: ds.map(fn, batched=True, input_columns="id"), "map"),
        (lambda ds, fn: ds.filter(fn), "filter"),
        (lambda ds, fn: ds.filter(fn, batched=True, fn_kwargs={"k": 1}), "filter"),
        (lambda ds, fn: me.Loader(ds, collate_fn=fn), "collate_fn"),
    ],
)
def test_an_async_function(dataset, use, stage, function):
    with pytest.raises(TypeError, match=rf"{stage} needs a plain function, and \w+ is async.*asyncio\.run"):
        use(dataset, function)


def test_a_plain_function_around_an_async_one_is_called(dataset):
    @wraps(awaited)
    def plain(row):
        return asyncio.run(awaited(row))

    assert list(dataset.map(plain)) == list(dataset)


def test_a_filter_may_return_any_true_or_false_value(dataset):
    kept = [row["id"] for row in dataset.filter(lambda row: row["id"] % 3)]
    assert kept == [number for number in range(27) if number % 3]
    assert list(dataset.filter(lambda row: [])) == []


HF = datasets.Dataset.from_dict({"a": [1]})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (pd.DataFrame({"a": [1]}), r"is a DataFrame; it must be a path.* frame\.to_parquet\('data\.parquet'\)"),
        ({"a": [1]}, "is a dict; it must be a path"),
        ([{"a": 1}], "is a list with a dict in it; it must be a path"),
        (pa.table({"a": [1]}), "is a Table; it must be a path"),
        (None, "is a NoneType; it must be a path"),
        (["a.parquet", None], "is a list with a NoneType in it; it must be a path"),
        (HF, r"Open it with midepoch\.from_hf\(dataset\)"),
        (datasets.DatasetDict({"train": HF}), r"one split of several: midepoch\.from_hf\(dataset\['train'\]\)"),
        (HF.to_iterable_dataset(), r"is a IterableDataset, not a path.* A stream .* midepoch\.read\(files\)"),
        (torch.utils.data.TensorDataset(torch.arange(3)), r"Open it with midepoch\.from_indexable\(dataset\)"),
    ],
)
def test_what_is_no_path(source, message):
    with pytest.raises(TypeError, match=message):
        me.read(source)


def test_an_open_dataset_is_no_path(dataset):
    with pytest.raises(TypeError, match="open midepoch dataset, not a path"):
        me.read(dataset)


def test_a_whole_checkpoint_a_path_and_a_list_of_states(dataset):
    state = dataset.state_dict()
    for wrong, message in (
        (
            {"model": {}, "step": 3, "loader": state},
            r"under the key 'loader'.*load_state_dict\(checkpoint\['loader'\]\)",
        ),
        ("run/checkpoint.pt", r"Load the file first: load_state_dict\(torch\.load\(path, weights_only=True\)\)"),
        ([state, state], r"load_state_dict\(midepoch\.merge_states\(states\)\)"),
        ({"model": {}}, r"Pass what state_dict\(\) returned"),
        ([], r"Pass what state_dict\(\) returned"),
    ):
        for target in (dataset.take(5), me.Loader(dataset, batch_size=2)):
            with pytest.raises(me.CheckpointMismatchError, match=message):
                target.load_state_dict(wrong)


@pytest.mark.parametrize(
    "use",
    [
        lambda ds: me.Loader(ds, batch_size="8"),
        lambda ds: me.Loader(ds, "8"),
        lambda ds: ds.batch("8"),
        lambda ds: me.Loader(ds, num_workers="8"),
    ],
)
def test_a_number_as_text(dataset, use):
    with pytest.raises(TypeError, match=r"must be an integer, got '8'\. Pass 8\."):
        use(dataset)


def test_names_of_columns_as_one_text(folder):
    for opened in (me.read, me.StructuredDataset, me.StructuredDataset.create_dataloader):
        with pytest.raises(TypeError, match=r"columns must be a list of names, got .*; pass \['id', 'x'\]"):
            opened(folder, columns="id, x")


def test_a_file_that_changed_does_not_advise_to_resume_a_run_that_has_not_begun(folder):
    opened = me.read(folder)
    file = next(folder.iterdir())
    file.write_bytes(file.read_bytes() + b"more")
    with pytest.raises(
        me.DataChangedError, match=r"open the dataset again and start over\. To resume from a checkpoint"
    ):
        next(iter(opened))


def test_files_of_tokens_that_need_a_dtype_beside_others_that_say_another(tmp_path):
    np.arange(20, dtype="uint16").tofile(tmp_path / "a.bin")
    np.save(tmp_path / "b.npy", np.arange(20, 40, dtype="int32"))
    with pytest.raises(ValueError, match="pass dtype="):
        me.tokens(tmp_path / "*", length=10)
    with pytest.raises(
        ValueError, match=r"b\.npy .* int32.* open them on their own, and join the datasets with midepoch\.concat"
    ):
        me.tokens(tmp_path / "*", length=10, dtype="uint16")
    apart = [me.tokens(tmp_path / "a.bin", length=10, dtype="uint16"), me.tokens(tmp_path / "b.npy", length=10)]
    assert [row["input_ids"][0] for row in me.concat(apart)] == [0, 10, 20, 30]


@pytest.mark.parametrize("url", ["s3://bucket/a//b/", "s3://bucket/a//b/*.parquet", "gs://bucket//a/b/x.parquet"])
def test_a_url_with_an_empty_part(url):
    with pytest.raises(me.StoreError, match=r"two slashes in a row.*Write (s3|gs)://bucket/a/b"):
        me.read(url)


def test_rows_of_a_run_end_encoded_column_are_not_picked(tmp_path):
    ends = list(range(100, 2001, 100))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), pa.array([str(end) for end in ends]))
    table = pa.table({"id": list(range(2000)), "runs": runs})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    dataset = me.read(tmp_path)
    assert [row["runs"] for row in dataset] == table["runs"].to_pylist()
    message = r"rows of 'runs' \(run_end_encoded.*read\(\.\.\., columns=\[\.\.\.\]\).*run_end_decode"
    with pytest.raises(me.DataFormatError, match=message):
        list(dataset.with_format("arrow").shuffle(seed=1))
    with pytest.raises(me.DataFormatError, match=message):
        list(dataset.filter(lambda columns: [number % 2 for number in columns["id"]], batched=True))
    assert sorted(row["id"] for row in me.read(tmp_path, columns=["id"]).shuffle(seed=1)) == list(range(2000))
