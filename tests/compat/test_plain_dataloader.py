"""torch's own DataLoader: right data with any workers, and never a silently wrong state."""

import logging
import os

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


@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork"), (2, "fork"), (3, "spawn"), (8, "fork")])
def test_every_row_once_with_any_workers(folder, workers, method):
    options = {"multiprocessing_context": method} if workers else {}
    for dataset in (me.read(folder).shuffle(1), me.read(folder).lanes(2).filter(is_kept), me.read(folder).batch(4)):
        assert sorted(loaded(dataset, workers, **options)) == sorted(ids(dataset))


def test_it_counts_as_an_iterable_data_set(folder):
    assert isinstance(me.read(folder), IterableDataset)
    batch = next(iter(DataLoader(me.read(folder).select_columns("id"), batch_size=4)))
    assert torch.equal(batch["id"], torch.arange(4))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
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


REPEATED = "read epoch 0 of a shuffled dataset to its end, and now read it again"


class ToStandardError(logging.Handler):
    """Writes to the file that forked workers inherit."""

    def emit(self, record):
        os.write(2, self.format(record).encode())


@pytest.fixture
def repeats(capfd):
    """How often workers have warned of a repeated epoch since the last call."""
    handler = ToStandardError()
    logging.getLogger("midepoch").addHandler(handler)
    yield lambda: capfd.readouterr().err.count(REPEATED)
    logging.getLogger("midepoch").removeHandler(handler)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize(
    ("make", "persistent", "method"),
    [
        (DataLoader, False, "fork"),
        (DataLoader, True, "fork"),
        (DataLoader, False, "spawn"),
        (StatefulDataLoader, False, "fork"),
        (StatefulDataLoader, True, "fork"),
    ],
)
def test_a_shuffled_epoch_that_repeats_is_warned_of_once(folder, repeats, make, persistent, method):
    dataset = me.read(folder).shuffle(1)
    options = {"num_workers": 2, "persistent_workers": persistent, "multiprocessing_context": method}
    loader = make(dataset, batch_size=None, collate_fn=list_ids, **options)
    epochs = [[number for item in loader for number in item]]
    assert repeats() == 0
    epochs.append([number for item in loader for number in item])
    assert repeats() == 1
    epochs.append([number for item in loader for number in item])
    assert repeats() == 0
    assert epochs[0] == epochs[1] == epochs[2]


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_that_was_chosen_or_not_finished_is_not_warned_of(folder, repeats, persistent):
    def loops(dataset, actions, batch_size=4):
        loader = DataLoader(
            dataset, num_workers=2, batch_size=batch_size, collate_fn=ids, persistent_workers=persistent
        )
        for action in actions:
            if action == "peek":
                next(iter(loader))
            elif action == "read":
                list(loader)
            else:
                dataset.set_epoch(action)

    loops(me.read(folder), ["read", "read", "read"])  # no shuffle
    loops(me.mix([me.read(folder)]).filter(is_kept), ["read", "read"])
    loops(me.read(folder).shuffle(1), ["peek", "peek", "read"])
    loops(me.read(folder).shuffle(1), ["peek", "read"], batch_size=15)  # each worker reads one more batch ahead
    loops(me.read(folder).shuffle(1), [0, "read", 1, "read", 0, "read", 0, "read", 1, "peek", "read"])
    assert repeats() == 0
    loops(me.mix([me.read(folder), me.read(folder).shuffle(1)]), ["read", "read"])
    assert repeats() == 1


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_resumed_epoch_is_not_warned_of(folder, repeats):
    dataset = me.read(folder).shuffle(1)
    loader = StatefulDataLoader(dataset, num_workers=2, batch_size=None, collate_fn=list_ids)
    whole = [number for item in loader for number in item]
    dataset.set_epoch(0)
    batches = iter(loader)
    got = [number for _ in range(7) for number in next(batches)]
    state = loader.state_dict()
    got += [number for item in batches for number in item]
    assert got == whole
    loader.load_state_dict(state)
    assert [number for item in loader for number in item] == whole[7:]
    assert repeats() == 0
    resumed = me.read(folder).shuffle(1)
    resumed.load_state_dict(me.from_stateful_dataloader(state))
    loader = DataLoader(resumed, num_workers=3, batch_size=None, collate_fn=list_ids)
    assert sorted(number for item in loader for number in item) == sorted(whole[7:])
    assert repeats() == 0
    assert sorted(number for item in loader for number in item) == sorted(whole[7:])
    assert repeats() == 1, "without set_epoch the rest of the epoch is read again"


@pytest.mark.parametrize("method", ["fork", "spawn"])
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
