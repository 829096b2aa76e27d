"""torch's own DataLoader: right data with any workers, and never a silently wrong state."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import midepoch as me
from worlds import ids, is_kept, write_files

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("world") / "data", [20, 0, 7, 33])


def loaded(dataset, workers, **options):
    loader = DataLoader(dataset, num_workers=workers, batch_size=None, collate_fn=list_ids, **options)
    return [number for item in loader for number in item]


def list_ids(item):
    return ids([item])


@pytest.mark.parametrize(("workers", "method"), [(0, None), (3, "fork"), (1, "spawn"), (8, "fork")])
def test_every_row_once_with_any_workers(folder, workers, method):
    options = {"multiprocessing_context": method} if workers else {}
    rows = me.read(folder)
    for dataset in (rows.lanes(2).filter(is_kept), rows.shuffle(1), rows.batch(4))[: 1 if method == "spawn" else 3]:
        assert sorted(loaded(dataset, workers, **options)) == sorted(ids(dataset))


def test_it_counts_as_an_iterable_data_set(folder):
    assert isinstance(me.read(folder), IterableDataset)
    batch = next(iter(DataLoader(me.read(folder).select_columns("id"), batch_size=4)))
    assert torch.equal(batch["id"], torch.arange(4))


@pytest.mark.parametrize(("persistent", "method"), [(False, "fork"), (True, "forkserver")])
def test_set_epoch_reaches_the_workers(folder, persistent, method):
    dataset = me.read(folder).shuffle(1)
    loader = DataLoader(
        dataset,
        num_workers=2,
        batch_size=None,
        collate_fn=list_ids,
        persistent_workers=persistent,
        multiprocessing_context=method,
    )
    epochs = []
    for epoch in (0, 1, 0, 0):
        dataset.set_epoch(epoch)
        epochs.append([number for item in loader for number in item])
    assert all(sorted(epoch) == list(range(60)) for epoch in epochs)
    assert epochs[0] == epochs[2] == epochs[3] != epochs[1]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_an_unknown_state_is_refused(folder, method):
    dataset = me.read(folder)
    loader = DataLoader(dataset, num_workers=1, batch_size=None, collate_fn=list_ids, multiprocessing_context=method)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(me.UnknownStateError, match=r"any state would be wrong. Use midepoch\.Loader"):
        dataset.state_dict()
    del iterator
    dataset.set_epoch(0)
    assert dataset.state_dict()["epoch"] == 0


def test_a_state_that_cannot_reach_running_workers_is_refused(folder):
    dataset = me.read(folder)
    state = dataset.state_dict()
    loader = DataLoader(dataset, num_workers=1, batch_size=None, collate_fn=list_ids, persistent_workers=True)
    next(iter(loader))
    dataset.load_state_dict(state)
    with pytest.raises(me.CheckpointMismatchError, match="cannot reach them"):
        next(iter(loader))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("make", [me.Loader, DataLoader, StatefulDataLoader])
def test_arrow_batches_are_sent_without_the_block_they_were_cut_from(tmp_path, make):
    words = [f"word {row}" * 50 for row in range(2000)]
    table = pa.table({"id": range(2000), "word": words, "kind": pa.array(words).dictionary_encode()})
    pq.write_table(table.slice(0, 1000), tmp_path / "a.parquet")
    pq.write_table(table.slice(1000), tmp_path / "b.parquet")
    dataset = me.read(tmp_path, columns=["id", "word"]).with_format("arrow").batch(7)
    batches = list(make(dataset, batch_size=None, num_workers=1))
    assert all(batch.get_total_buffer_size() < 2 * 7 * 600 for batch in batches)
    assert pa.Table.from_batches(batches) == table.select(["id", "word"])
    kinds = list(make(me.read(tmp_path).with_format("arrow").batch(7), batch_size=None, num_workers=1))
    assert [kind for batch in kinds for kind in batch["kind"].to_pylist()] == words
