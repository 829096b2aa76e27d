"""torchtitan's data loader: with the real package if it is installed, else with the interface that it publishes.

torchtitan 0.3 needs an older `datasets` than the other tests, so it is not among the packages of development.
"""

import sys
from dataclasses import dataclass
from itertools import islice
from types import ModuleType

import pytest
import torch

import midepoch as me
from worlds import ids, write_files


def published_interface():
    """What torchtitan 0.3 has in its modules components.dataloader and config.configurable, as far as it is used."""

    class BaseDataLoader:
        @dataclass(kw_only=True, slots=True)
        class Config:
            dataset: str = ""
            dataset_path: str | None = None

            def build(self, **given):
                return self._owner(config=self, **given)

        def __init_subclass__(cls, **given):
            cls.Config._owner = cls

    module = ModuleType("torchtitan.components.dataloader")
    module.BaseDataLoader = BaseDataLoader
    return {
        "torchtitan": ModuleType("torchtitan"),
        "torchtitan.components": ModuleType("torchtitan.components"),
        "torchtitan.components.dataloader": module,
    }


@pytest.fixture
def data_loader(monkeypatch):
    try:
        import torchtitan.components.dataloader  # noqa: F401
    except ImportError:
        for name, module in published_interface().items():
            monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "midepoch.integrations.torchtitan", raising=False)
    from midepoch.integrations.torchtitan import LoaderDataLoader

    yield LoaderDataLoader
    sys.modules.pop("midepoch.integrations.torchtitan", None)


def as_titan(items):
    return {"input": torch.tensor([item["id"] for item in items])}, torch.tensor([item["id"] for item in items])


def test_the_state_of_one_rank_fits_another_degree(data_loader, tmp_path):
    data = write_files(tmp_path, [40, 32])

    def make_loader(*, dp_world_size, dp_rank, local_batch_size, **_):
        dataset = me.read(data).shuffle(1, window=20).lanes(6).shard(dp_world_size=dp_world_size, dp_rank=dp_rank)
        return me.Loader(dataset, batch_size=local_batch_size, collate_fn=as_titan)

    def build(degree):
        config = data_loader.Config(make_loader=make_loader)
        given = {"tokenizer": None, "seq_len": 8, "local_batch_size": 2, "snapshot_every_n_steps": 1}
        return [config.build(dp_world_size=degree, dp_rank=rank, **given) for rank in range(degree)]

    def steps(loaders, count):
        loops = [islice(iter(loader), count) for loader in loaders]
        return [ids([{"id": labels}]) for step in zip(*loops, strict=True) for _, labels in step]

    whole = steps(build(1), 50)
    two = build(2)
    got = steps(two, 5)
    state = two[1].state_dict()
    three = build(3)
    for loader in three:
        loader.load_state_dict({})
        loader.load_state_dict(state)
    got += steps(three, 13)  # through the end of the epoch, which has 36 batches
    assert len(got) > 36
    kept = [row for batch in got for row in batch]
    assert kept[:72] == [row for batch in whole for row in batch][:72]

    two = build(2)
    got = steps(two, 18)  # the last batch of the epoch
    state = two[0].state_dict()
    three = build(3)
    for loader in three:
        loader.load_state_dict(state)
    assert got + steps(three, 4) == whole[:48]
