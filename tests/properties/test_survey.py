"""A survey says of every row what a plain pass finds, for random pipelines, formats, blocks and units."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from files import write
from midepoch.counting import survey as module
from midepoch.dataset import plan_of


def write_jsonl(path, batches):
    rows = [row for batch in batches for row in batch.to_pylist()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def dataset_of(folder, kind, files):
    """Files with blocks of these sizes. Rows have their number in the dataset and a random list."""
    rng, row = np.random.default_rng(3), 0
    for number, sizes in enumerate(files):
        batches = []
        for size in sizes:
            lists = [rng.integers(0, 9, rng.integers(0, 6)).tolist() for _ in range(size)]
            lists = pa.array(lists, pa.list_(pa.int64()))
            batches.append(pa.record_batch({"id": pa.array(range(row, row + size), pa.int64()), "input_ids": lists}))
            row += size
        if kind == "jsonl":
            write_jsonl(folder / f"{number}.jsonl", batches)
        else:
            write(folder / f"{number}.arrow", batches, kind)
    return row


def add_noise(row):
    return {"input_ids": [*row["input_ids"], *range(int(row["id"]) % 4)]}


def double(rows):
    return {"input_ids": [[*value, *value] for value in map(list, rows["input_ids"])]}


ROW_STAGES = {
    "map": lambda dataset: dataset.map(add_noise),
    "filter": lambda dataset: dataset.filter(lambda row: row["id"] % 5 != 2),
    "select": lambda dataset: dataset.select_columns(["input_ids", "id"]),
    "one-to-one": lambda dataset: dataset.map(double, batched=True, batch_size=3, one_to_one=True),
}
STAGES = ROW_STAGES | {
    "batched filter": lambda dataset: dataset.filter(lambda rows: [row % 7 < 5 for row in rows["id"]], batched=True),
    "batched map": lambda dataset: dataset.map(lambda rows: {"y": [1] * len(rows["id"])}, batched=True),
}


@given(
    kind=st.sampled_from(["stream", "file", "parquet", "jsonl"]),
    files=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=5), min_size=1, max_size=4),
    names=st.lists(st.sampled_from(list(ROW_STAGES)), max_size=4),
    where=st.sampled_from([None, pc.field("id") >= 9, (pc.field("id") < 5) | (pc.field("id") > 20)]),
    pack=st.booleans(),
    unit=st.sampled_from([1, 200, 1000]),
)
def test_a_survey_says_what_a_plain_pass_finds(tmp_path_factory, kind, files, names, where, pack, unit):
    folder = tmp_path_factory.mktemp("data")
    count = dataset_of(folder, kind, files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMALLEST_UNIT", unit)
        patch.setattr(module, "COLUMN_BYTES", unit)
        patch.setattr("midepoch._common.jobs.usable_cores", lambda: 1)
        dataset = me.read(folder, filters=where)
        for name in names:
            dataset = ROW_STAGES[name](dataset)
        plain = list(dataset.with_format("python"))
        survey = plan_of((dataset.pack(8) if pack else dataset).survey()).pipeline.survey
    filtered = where is not None or any("filter" in name for name in names)
    if not pack and not filtered:
        assert survey is None
        return
    rows = np.arange(count)
    assert np.flatnonzero(survey.kept(rows)).tolist() == [row["id"] for row in plain]
    assert survey.has_kept == filtered
    if pack:
        lengths = np.zeros(count, int)
        lengths[[row["id"] for row in plain]] = [len(row["input_ids"]) for row in plain]
        assert survey.lengths(rows).tolist() == lengths.tolist()


@given(
    kind=st.sampled_from(["stream", "file", "parquet", "jsonl"]),
    files=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=5), min_size=1, max_size=4),
    names=st.lists(st.sampled_from(list(STAGES)), max_size=4),
    where=st.sampled_from([None, pc.field("id") >= 9, (pc.field("id") < 5) | (pc.field("id") > 20)]),
    form=st.sampled_from(["python", "numpy", "arrow"]),
    unit=st.sampled_from([1, 200, 1000]),
    batch_rows=st.sampled_from([1, 4, 1000]),
    steps=st.booleans(),
)
def test_cached_rows_are_those_of_a_plain_pass(
    tmp_path_factory, kind, files, names, where, form, unit, batch_rows, steps
):
    folder = tmp_path_factory.mktemp("data")
    dataset_of(folder, kind, files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMALLEST_UNIT", unit)
        patch.setattr("midepoch.pipeline.cache.BATCH_ROWS", batch_rows)
        patch.setattr("midepoch._common.jobs.usable_cores", lambda: 1)
        dataset = me.read(folder, filters=where)
        if steps and where is None:
            dataset = dataset.skip(2).train_test_split(0.3, seed=1).train
        for name in names:
            dataset = STAGES[name](dataset)
        dataset = dataset.with_format(form)
        plain = list(dataset.with_format("python"))
        cache = tmp_path_factory.mktemp("cache")
        if not plain and plan_of(dataset).pipeline.schema is None:
            with pytest.raises(me.NoDataError, match="no row passes"):
                dataset.cache(cache)
            return
        cached = dataset.cache(cache)
    assert list(cached.with_format("python")) == plain
    assert plan_of(cached).pipeline.item_spec == (form, False)
    shuffled = cached.with_format("python").shuffle(seed=5)
    assert sorted(row["id"] for row in shuffled) == [row["id"] for row in plain]
    halves = [cached.with_format("python").shuffle(seed=5).shard(2, rank).lanes(2) for rank in range(2)]
    assert sorted(row["id"] for half in halves for row in half) == [row["id"] for row in plain]
