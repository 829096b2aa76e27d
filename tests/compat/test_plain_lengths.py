"""A plain DataLoader knows how many batches it yields, with any number of workers."""

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import midepoch as me
from counted import write_files

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_files(folder)
    return folder


BUILD = {
    "batches": lambda rows: rows.batch(4),
    "packs": lambda rows: rows.pack(50).map(lambda pack: {"id": pack["input_ids"][0]}),
    "mixture": lambda rows: me.mix([rows.pack(50), rows.pack(30)], [2, 1], stop="all"),
}


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize(
    ("batch_size", "drop_last"), [(None, False), (3, False), (3, True)], ids=["items", "batched", "drop_last"]
)
def test_E1_its_length_is_what_it_yields(data, name, batch_size, drop_last):
    dataset = BUILD[name](me.read(data).shuffle(3, level="row")).shard(2, 1)
    lengths = set()
    for workers in (0, 1, 3):
        loader = DataLoader(dataset, num_workers=workers, batch_size=batch_size, drop_last=drop_last, collate_fn=list)
        assert len(loader) == sum(1 for _ in loader), workers
        lengths.add(len(loader))
    assert batch_size or len(lengths) > 1, "the example does not depend on the number of workers"


def test_lanes_that_are_fixed_and_repeats(data):
    dataset = me.read(data).pack(20, window=7).lanes(2).repeat(2)
    loader = StatefulDataLoader(dataset, num_workers=2, batch_size=None)
    assert len(loader) == sum(1 for _ in loader) == len(dataset)


def test_the_dataset_itself_has_the_length_of_this_process(data):
    dataset = me.read(data).batch(4)
    loader = DataLoader(dataset, num_workers=3, batch_size=None)
    assert len(dataset) == len(list(dataset)) == 15
    assert len(loader) == 15
    assert len(DataLoader(dataset.batch(2), num_workers=7, batch_size=None)) != len(dataset.batch(2))


def test_others_are_refused_with_the_reason(data):
    with pytest.raises(TypeError, match=r"The length is unknown: .*call .survey\(\) once"):
        len(DataLoader(me.read(data).filter(lambda row: row["id"] > 2), num_workers=2))
