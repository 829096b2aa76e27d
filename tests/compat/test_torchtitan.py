"""torchtitan's data loader: with the interfaces that 0.3 and the main branch publish, and with the package itself.

torchtitan 0.3 needs an older `datasets` than the other tests, so it is not among the packages of development. The test
of its trainer runs where torchtitan (of a release or a checkout), torch and midepoch are installed.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import midepoch as me
from worlds import ids, write_files


def published_interface(module_name):
    """What torchtitan has in one of its modules and in config.configurable, as far as it is used."""

    class BaseDataLoader:
        @dataclass(kw_only=True, slots=True)
        class Config:
            def build(self, **given):
                return self._owner(config=self, **given)

        def __init_subclass__(cls, **given):
            cls.Config._owner = cls

    names = module_name.split(".")
    modules = {".".join(names[: end + 1]): ModuleType(names[end]) for end in range(len(names))}
    for name, module in modules.items():
        module.__path__, module.__spec__ = [], ModuleSpec(name, None, is_package=True)
    modules[module_name].BaseDataLoader = BaseDataLoader
    return modules


@pytest.fixture(params=["torchtitan.components.dataloader", "torchtitan.components.data.loader"], ids=["0.3", "main"])
def data_loader(request, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "torchtitan"]:
        monkeypatch.delitem(sys.modules, name)
    for name, module in published_interface(request.param).items():
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
    for loader in three:
        loader.close()


def test_training_ends_after_the_epochs_of_the_config_on_all_ranks_at_once(data_loader, tmp_path):
    data = write_files(tmp_path, [20, 15])

    def make_loader(*, dp_world_size, dp_rank):
        return me.Loader(me.read(data).lanes(6).shard(dp_world_size=dp_world_size, dp_rank=dp_rank), batch_size=2)

    def build(degree):
        config = data_loader.Config(make_loader=make_loader, epochs=2)
        return [config.build(dp_world_size=degree, dp_rank=rank) for rank in range(degree)]

    loaders = build(3)
    assert {len(list(loader)) for loader in loaders} == {2 * 6}
    state = loaders[1].state_dict()
    [alone] = build(1)
    alone.load_state_dict(state)
    assert list(alone) == []


@pytest.mark.skipif(find_spec("torchtitan") is None, reason="torchtitan is not installed: it needs an older datasets")
def test_its_trainer_stops_on_two_ranks_and_goes_on_with_three_and_one_to_the_end_of_the_epoch(tmp_path):
    (tmp_path / "data").mkdir()
    lengths = [(7 * number) % 13 + 1 for number in range(120)]
    tokens = [[number + 2] * length for number, length in enumerate(lengths)]
    pq.write_table(pa.table({"tokens": tokens}), tmp_path / "data" / "a.parquet")
    write_tokenizer(tmp_path / "tokenizer")

    def train(folder, ranks, steps):
        folder.mkdir(exist_ok=True)
        steps_script = Path(__file__).parents[1] / "titan_steps.py"
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        arguments = [str(steps_script), str(steps), str(folder), str(tmp_path / "data"), str(tmp_path / "tokenizer")]
        subprocess.run([*launch, *arguments], check=True, env=dict(os.environ, OMP_NUM_THREADS="1"))

    for ranks, steps in [(2, 4), (3, 6), (1, 100)]:
        train(tmp_path / "stopped", ranks, steps)
    train(tmp_path / "whole", 1, 100)
    whole = packs_of(tmp_path / "whole")
    assert packs_of(tmp_path / "stopped") == whole
    assert len({*whole}) == len(whole) > 50


def write_tokenizer(folder):
    from tokenizers import Tokenizer, models

    folder.mkdir()
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")


def packs_of(folder):
    """The packs of all steps in order: those of a step are rank by rank."""
    steps = {}
    for path in sorted(folder.glob("packs-*.jsonl")):
        for step, packs in map(json.loads, path.read_text().splitlines()):
            steps.setdefault(step, []).extend(map(tuple, packs))
    return [pack for step in sorted(steps) for pack in steps[step]]
