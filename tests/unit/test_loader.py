"""A Loader's batches have tensors, unless a format or a collate_fn says otherwise; it shows itself at any moment."""

import logging

import numpy as np
import pyarrow as pa
import pytest
import torch

import midepoch as me
from files import write
from midepoch._common.checks import log_once
from midepoch.testing import same

COLUMNS = {
    "id": pa.array(range(8)),
    "x": pa.array([n / 2 for n in range(8)], pa.float32()),
    "text": pa.array([f"row {n}" for n in range(8)]),
    "pair": pa.array([[n, n] for n in range(8)]),
    "tokens": pa.array([[1] * (n % 3) for n in range(8)], pa.list_(pa.int32())),
}


@pytest.fixture
def dataset(tmp_path):
    table = pa.record_batch(COLUMNS)
    write(tmp_path / "data" / "a.arrow", [table.slice(0, 3), table.slice(3)])
    return me.read(tmp_path / "data", index_dir=tmp_path / "index")


@pytest.fixture
def warnings(caplog):
    log_once.cache_clear()
    caplog.set_level(logging.WARNING, "midepoch")
    yield caplog
    log_once.cache_clear()


def test_a_format_that_was_chosen_stays(dataset):
    def types(dataset):
        (batch,) = me.Loader(dataset, batch_size=8)
        return {type(column) for column in batch.values()}

    numbers = dataset.select_columns(["id", "x"])
    assert types(numbers) == {torch.Tensor}
    assert types(numbers.with_format("python")) == {list}
    assert types(numbers.with_format(None)) == {list}
    assert types(numbers.with_format("numpy")) == {np.ndarray}
    assert types(numbers.with_format("python").map(dict)) == {list}
    assert types(me.mix([numbers.with_format("python").take(4), numbers.skip(4)], [1, 1], stop="all")) == {list}
    (table,) = me.Loader(numbers.with_format("arrow"), batch_size=8)
    assert isinstance(table, pa.RecordBatch)


def test_a_collate_fn_gets_rows_as_the_dataset_yields_them(dataset):
    (batch,) = me.Loader(dataset, batch_size=8, collate_fn=list)
    assert batch == list(dataset)
    (batch,) = me.Loader(dataset.batch(8), collate_fn=dict)
    assert batch["id"] == list(range(8))


def test_single_rows_and_a_loop_over_the_dataset_have_python_values(dataset):
    assert list(me.Loader(dataset)) == list(dataset) == pa.record_batch(COLUMNS).to_pylist()
    assert [type(column) for column in next(iter(dataset.batch(4))).values()] == [list] * 5
    assert list(me.Loader(dataset.map(len))) == [5] * 8


def test_packs_have_tensors(dataset):
    packs = dataset.select_columns("pair").pack(4, column="pair")
    pack = next(iter(me.Loader(packs)))
    assert same(pack["pair"], torch.tensor([0, 0, 1, 1]))
    assert {type(value) for value in pack.values()} == {torch.Tensor}
    padded = dataset.select_columns("pair").pack(5, column="pair", pad=0)
    assert next(iter(me.Loader(padded, batch_size=2)))["pair"].tolist() == [[0, 0, 1, 1, 0], [2, 2, 3, 3, 0]]
    assert isinstance(next(iter(me.Loader(packs.with_format("numpy"))))["pair"], np.ndarray)


def test_empty_lists_that_a_function_returns_are_empty_tensors_of_the_same_type(dataset):
    ragged = dataset.map(lambda row: {"tokens": [7] * (row["id"] % 3)}).select_columns("tokens")
    for column in (batch["tokens"] for batch in me.Loader(ragged, batch_size=4)):
        assert [tensor.dtype for tensor in column] == [torch.int64] * 4
        assert [tensor.shape for tensor in column if not len(tensor)] == [(0,)] * sum(not len(one) for one in column)
    arrays = dataset.map(lambda row: {"tokens": np.ones(1, np.int16) if row["id"] % 2 else []}).select_columns("tokens")
    (batch,) = me.Loader(arrays, batch_size=8)
    assert {tensor.dtype for tensor in batch["tokens"]} == {torch.int16}
    mixed = dataset.map(lambda row: {"tokens": torch.ones(1) if row["id"] % 2 else []}).with_format("torch")
    (batch,) = me.Loader(mixed.select_columns("tokens"), batch_size=8)
    assert [type(tensor) for tensor in batch["tokens"]] == [torch.Tensor] * 8


def test_arrays_that_may_not_be_written_to_are_copied_without_a_warning(dataset):
    frozen = np.arange(6).reshape(2, 3)
    frozen.flags.writeable = False

    def arrays(row):
        return {"same": frozen, "mirrored": frozen[:, ::-1], "ragged": frozen[0, : row["id"] % 3]}

    (batch,) = me.Loader(dataset.map(arrays), batch_size=8)
    assert same(batch["same"][0], torch.arange(6).reshape(2, 3))
    assert batch["mirrored"][0].tolist() == [[2, 1, 0], [5, 4, 3]]
    batch["ragged"][2] += 1
    assert frozen.tolist() == [[0, 1, 2], [3, 4, 5]]
    for row in dataset.map(arrays).with_format("torch"):
        row["same"] += 1
    assert frozen.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_column_that_changes_between_tensor_and_list_warns_once(dataset, warnings, workers):
    loader = me.Loader(dataset, batch_size=1 if workers else 3, num_workers=workers)
    list(loader)
    assert not warnings.records  # lists of different lengths in every batch, or a matrix in every batch
    sometimes = dataset.map(lambda row: {"y": None if row["id"] == 5 else 1.5})
    loader = me.Loader(sometimes, batch_size=2, num_workers=workers)
    for _ in range(2):
        list(loader)
    (record,) = warnings.records
    for word in ("'y'", "collate_fn", "with_format", "pack"):
        assert word in record.message


def test_a_format_of_python_values_does_not_warn(dataset, warnings):
    list(me.Loader(dataset.with_format("python"), batch_size=2))
    list(me.Loader(dataset, batch_size=2, collate_fn=lambda rows: {"x": rows if rows[0]["id"] else torch.ones(1)}))
    assert not warnings.records


def test_a_state_knows_nothing_of_the_conversion(dataset):
    shuffled = dataset.shuffle(seed=2)
    tensors, lists = me.Loader(shuffled, batch_size=3), me.Loader(shuffled.with_format("python"), batch_size=3)
    whole = [number for batch in lists for number in batch["id"]]
    lists.set_epoch(0)
    for first, second in ((tensors, lists), (lists, tensors)):
        first.set_epoch(0)
        batch = next(iter(first))
        second.load_state_dict(first.state_dict())
        assert first.state_dict() == second.state_dict()
        got = list(np.asarray(batch["id"]))
        for batch in second:
            got += list(np.asarray(batch["id"]))
        assert got == whole


def test_structured_datasets_have_tensors_unless_their_output_format_is_another(dataset, tmp_path):
    def kind(**options):
        structured = me.StructuredDataset(tmp_path / "data", index_dir=tmp_path / "index", **options)
        return type(next(iter(me.Loader(structured, batch_size=4)))["id"])

    assert kind() is torch.Tensor
    assert kind(output_format="dict") is list
    assert kind(output_format="numpy") is np.ndarray
    loader, rows = me.StructuredDataset.create_dataloader(tmp_path / "data", output_format="dict", batch_size=4)
    assert next(iter(loader))["id"] == next(iter(rows))["id"] == [0, 1, 2, 3]


def test_empty_lists_of_text_stay_lists_after_a_function(tmp_path):
    tags = [["a"], [], ["b", "c"], []]
    write(tmp_path / "data" / "a.arrow", [pa.record_batch({"tags": tags, "n": [[1], [], [2, 3], []]})])
    dataset = me.read(tmp_path / "data").map(dict)
    assert [row["tags"] for row in dataset.with_format("torch")] == tags
    for batches in (dataset.with_format("torch").batch(4), me.Loader(dataset, batch_size=4)):
        (batch,) = batches
        assert batch["tags"] == tags
        assert [(one.dtype, one.tolist()) for one in batch["n"]] == [
            (torch.int64, one) for one in ([1], [], [2, 3], [])
        ]


def test_a_loader_whose_constructor_raised_has_a_repr(dataset):
    loader = object.__new__(me.Loader)
    assert "Loader object at" in repr(loader)
    with pytest.raises(ValueError, match="num_workers is -1"):
        loader.__init__(dataset, num_workers=-1)
    assert "Loader" in repr(loader)


def test_what_keeps_ranks_in_step_is_on_the_device_too(dataset, monkeypatch):
    others = iter([True] * 3 + [False])
    monkeypatch.setattr("midepoch.distributed._any_rank", lambda _: next(others))
    loader = me.Loader(dataset.lanes(1).filter(lambda row: row["id"] < 4), batch_size=4, device="meta")
    batches = list(me.distributed.in_step(loader))
    assert [batch["id"].device.type for batch in batches] == ["meta"] * 3
