"""Loops that count epochs and call set_epoch: resumed at any batch, the last of an epoch too, they have each once."""

from itertools import islice

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

import midepoch as me
from worlds import ids, is_kept, write_files

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
]

EPOCHS = 3
WAYS = {
    "bare": lambda dataset: dataset,
    "Loader, 0": lambda dataset: me.Loader(dataset),
    "Loader, 2": lambda dataset: me.Loader(dataset, num_workers=2),
    "Stateful, 0": lambda dataset: StatefulDataLoader(dataset, batch_size=None, collate_fn=as_it_is),
    "Stateful, 1": lambda dataset: StatefulDataLoader(dataset, batch_size=None, num_workers=1, collate_fn=as_it_is),
    "Stateful, 2": lambda dataset: StatefulDataLoader(dataset, batch_size=None, num_workers=2, collate_fn=as_it_is),
}


def as_it_is(item):
    return item


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("world") / "data", [5, 0, 7])


def run(way, dataset, state, first_epoch, batches):
    """Train on some batches from a state; return their contents, the state after them, and its epoch."""
    loader = WAYS[way](dataset)
    if state is not None:
        loader.load_state_dict(state)
    got = []
    for epoch in range(first_epoch, EPOCHS):
        dataset.set_epoch(epoch)
        if loader is not dataset and hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        for batch in islice(iter(loader), batches - len(got)):
            got.append(ids([batch]))
            if len(got) == batches:
                return got, loader.state_dict(), epoch
    return got, loader.state_dict(), EPOCHS


@pytest.mark.parametrize("filtered", [False, True], ids=["uniform", "filtered"])
@pytest.mark.parametrize("way", WAYS)
def test_A14_a_counting_loop_has_every_epoch_once(folder, way, filtered):
    def build():
        dataset = me.read(folder).shuffle(1, window=20).lanes(2)
        return dataset.filter(is_kept) if filtered else dataset.batch(3)

    whole, _, _ = run(way, build(), None, 0, 10**6)
    assert len(whole) % EPOCHS == 0
    length = len(whole) // EPOCHS
    everything = sorted(ids(build()))
    for first in range(0, len(whole), length):
        assert sorted(row for batch in whole[first : first + length] for row in batch) == everything
    for cut in (length - 1, length, length + 1, len(whole)):
        got, state, epoch = run(way, build(), None, 0, cut)
        assert got == whole[:cut]
        more, _, _ = run(way, build(), state, epoch, 10**6)
        assert got + more == whole
