"""Megatron-Bridge's external data loader, against the interface that it publishes: the package itself needs CUDA.

With ``dataloader_type="external"`` Megatron-Bridge takes what the provider returns as it is, calls next() for each
micro-batch, and saves the state of each data-parallel rank in the folder of an iteration. The tests do the same.
"""

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest
import torch

import midepoch as me
from worlds import ids, write_files


@dataclass(kw_only=True)
class DataloaderConfig:
    dataloader_type: str | None = None
    num_workers: int = 2


@dataclass
class DatasetProvider(DataloaderConfig, ABC):
    @abstractmethod
    def build_datasets(self, context): ...


@pytest.fixture
def bridge(monkeypatch):
    names = ["megatron", "megatron.bridge", "megatron.bridge.data", "megatron.bridge.data.utils"]
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[names[-1]].DatasetProvider = DatasetProvider
    monkeypatch.delitem(sys.modules, "midepoch.integrations.megatron_bridge", raising=False)
    from midepoch.integrations import megatron_bridge

    yield megatron_bridge
    sys.modules.pop("midepoch.integrations.megatron_bridge", None)


def iterators(provider, size):
    """What the ranks of a run train on."""

    def group(rank):
        return SimpleNamespace(dp=SimpleNamespace(size=lambda: size, rank=lambda: rank))

    assert provider.dataloader_type == "external"
    built = [provider.build_datasets(SimpleNamespace(pg_collection=group(rank))) for rank in range(size)]
    assert all(built_for_rank[1:] == (None, None) for built_for_rank in built)
    return [built_for_rank[0] for built_for_rank in built]


def train(loaders, steps, micro_batches):
    """The rows of each step: Megatron takes so many micro-batches of each rank."""
    return [
        [row for _ in range(micro_batches // len(loaders)) for loader in loaders for row in ids([next(loader)])]
        for _ in range(steps)
    ]


def save(loaders, folder, iteration):
    folder = folder / f"iter_{iteration:07d}"
    folder.mkdir()
    for rank, loader in enumerate(loaders):
        torch.save({"dataloader_state_dict": loader.save_state()}, folder / f"train_dataloader_dprank{rank:03d}.pt")
    return str(folder)


def provider_of(bridge, data, **given):
    def make_loader(*, dp_world_size, dp_rank):
        shard = me.read(data).shuffle(1, window=20).shard(dp_world_size=dp_world_size, dp_rank=dp_rank)
        return me.Loader(shard, global_batch_size=12, micro_batch_size=2)

    return bridge.LoaderProvider(make_loader=make_loader, num_workers=0, **given)


def test_steps_have_the_same_rows_on_every_data_parallel_size_after_a_resume(bridge, tmp_path):
    data = write_files(tmp_path / "data", [40, 32])
    whole = train(iterators(provider_of(bridge, data), 1), 14, 6)  # an epoch has 6 steps
    assert sorted(row for step in whole[:6] for row in step) == list(range(72))
    assert whole[6:12] != whole[:6]
    got, folder = [], None
    for size, steps in [(2, 4), (3, 2), (1, 1), (6, 5), (2, 2)]:  # two stops are at the end of an epoch
        loaders = iterators(provider_of(bridge, data, dataloader_save=str(tmp_path), resume_from=folder), size)
        got += train(loaders, steps, 6)
        folder = save(loaders, tmp_path, len(got))
    assert got == whole


def test_a_state_can_be_restored_in_the_middle_of_a_run(bridge, tmp_path):
    [loader] = iterators(provider_of(bridge, write_files(tmp_path, [40, 32])), 1)
    first = train([loader], 3, 6)
    state = loader.save_state()
    later = train([loader], 5, 6)
    loader.restore_state(state)
    assert train([loader], 5, 6) == later != first
    assert iter(loader) is loader
    loader.close()
    assert loader.save_state() != state


def test_pipelines_whose_items_are_not_counted_are_refused_on_several_ranks(bridge, tmp_path):
    data = write_files(tmp_path, [10])

    def make_loader(*, dp_world_size, dp_rank):
        return me.Loader(me.read(data).filter(lambda row: True).shard(dp_world_size=dp_world_size, dp_rank=dp_rank))

    provider = bridge.LoaderProvider(make_loader=make_loader)
    assert len(train(iterators(provider, 1), 10, 1)) == 10
    with pytest.raises(ValueError, match="number of items is known"):
        iterators(provider, 2)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "megatron", None)
    monkeypatch.delitem(sys.modules, "midepoch.integrations.megatron_bridge", raising=False)
    with pytest.raises(me.MissingExtraError, match="megatron-bridge"):
        import midepoch.integrations.megatron_bridge  # noqa: F401
