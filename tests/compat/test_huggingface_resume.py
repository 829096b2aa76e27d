"""Hugging Face datasets in training loops: order, shards, maps, states, and resuming on the same and other readers."""

import io
import json
import pickle
from dataclasses import replace
from itertools import chain, islice

import datasets
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import midepoch as me
from files import plain
from hf import named, numbered, rows_of
from midepoch.dataset import with_plan
from midepoch.delivery.plan import Plan
from midepoch.formats import FORMATS, Scan, arrow
from midepoch.index.build import FileIndex
from midepoch.index.index import IndexView, index_bytes
from midepoch.index.tables import MadeBlocks
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.files import FileRows
from midepoch.storage.listing import Listing
from midepoch.storage.local import FileStamp
from midepoch.testing import assert_elastic, assert_resumes
from worlds import ids, is_kept, plus_one, spread, table, write_files

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
]

SIZES = [14, 9, 1, 16]
ROWS = sum(SIZES)
LEVELS = [None, "file", "block", "row"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Arrow streams as in a cache, of several record batches each."""
    return write_files(tmp_path_factory.mktemp("cache") / "data", SIZES, ["stream"], block=5)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A dataset that `datasets` saved."""
    path = tmp_path_factory.mktemp("saved") / "data"
    datasets.DatasetDict({"train": numbered(60)}).save_to_disk(path, num_shards={"train": 4})
    return path


@pytest.fixture
def build(folder):
    def build(level=None, seed=3):
        dataset = me.SimpleArrowIterableDataset(folder)
        return dataset if level is None else dataset.shuffle(seed, level=level, window=7)

    return build


def test_A5_a_shuffle_of_files_permutes_them_alone(saved):
    def shuffled():
        return me.fast_load_iterable_dataset(saved, split="train").shuffle(seed=4, level="file")

    dataset = shuffled()
    assert dataset.shuffled_files != dataset.arrow_files
    assert sorted(dataset.shuffled_files) == sorted(dataset.arrow_files)
    expected = [row for file in dataset.shuffled_files for row in rows_of(file)]
    assert ids(dataset) == expected
    second = dataset.shuffled_files
    assert ids(dataset) == [row for file in second for row in rows_of(file)]
    assert second != shuffled().shuffled_files
    assert me.fast_load_iterable_dataset(saved, split="train").shuffle().state_dict()["shuffle_seed"] == 0


@pytest.mark.parametrize("mode", ["auto", "file", "example"])
@pytest.mark.parametrize("ranks", [1, 3, 50])
def test_A6_shards_are_disjoint_and_complete(build, mode, ranks):
    for level in ("file", "row"):
        parts = [build(level).shard(num_shards=ranks, index=rank, mode=mode) for rank in range(ranks)]
        assert sorted(chain.from_iterable(map(ids, parts))) == list(range(ROWS))
        assert [part.state_dict()["shard_config"] for part in parts] == [(ranks, rank) for rank in range(ranks)]


def test_A7_maps_are_lazy_keep_the_length_and_survive_a_resume(build):
    called = []

    def noted(row):
        called.append(row["id"])
        return {"next": row["id"] + 1}

    dataset = build("file").map(noted)
    assert (len(dataset), called) == (ROWS, [])
    first = next(iter(dataset))
    assert first["next"] == first["id"] + 1
    assert called == [first["id"]]
    assert_resumes(build("file").map(plus_one))
    for options in ({"batch_size": 4}, {"batch_size": 1000}):
        mapped = build("file").map(spread, batched=True, remove_columns=["text", "tokens", "maybe"], **options)
        assert_resumes(mapped, every=3)
        assert ids(mapped) == [row for row in ids(build("file")) for _ in range(row % 3)]


def test_A8_the_length_is_known_without_reading(build, monkeypatch):
    monkeypatch.setitem(FORMATS, "arrow", replace(arrow.FORMAT, open_blocks=None))
    assert len(build("row").map(plus_one)) == ROWS
    assert sum(len(build().shard(3, rank)) for rank in range(3)) == ROWS


def test_A9_the_state_has_the_promised_keys(build):
    dataset = build("file").shard(3, 1)
    state = dataset.state_dict()
    assert state["shuffle_seed"] == 3
    assert state["shard_config"] == (3, 1)
    assert state["arrow_files"]["count"] == state["shuffled_files"]["count"] == len(SIZES)
    assert state["arrow_files"]["digest"] != state["shuffled_files"]["digest"]
    assert build().state_dict()["shuffle_seed"] is None
    assert len(dataset.arrow_files) == len(dataset.shuffled_files) == len(SIZES)
    assert json.loads(json.dumps(state)) == {**state, "shard_config": [3, 1]}
    assert saved_by_torch(state) == state


def next_of(items):
    return ids([items[0]])[0]


def cuts(make):
    """For each cut of an epoch: a dataset at that position, what is left, and what the next epoch begins with."""
    once = make()
    whole = list(once)
    following = list(once)
    for cut in range(len(whole) + 1):
        dataset = make()
        iterator = iter(dataset)
        list(islice(iterator, cut))
        left = whole[cut:] or following
        yield dataset, left
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
        assert resumed.state_dict() == dataset.state_dict()
        yield resumed, left
        copied = pickle.loads(pickle.dumps(resumed))
        assert copied.state_dict() == resumed.state_dict()
        if cut == len(whole):
            assert list(resumed) == []
        if left and cut % 4 == 0:
            next(iter(resumed))
            if len(left) > 1:
                yield resumed, left[1:]


UNIFORM = {
    "rows": lambda ds: ds,
    "map": lambda ds: ds.map(plus_one),
    "batch": lambda ds: ds.batch(4),
    "drop_last": lambda ds: ds.batch(4, drop_last_batch=True),
    "lanes": lambda ds: ds.lanes(3),
    "lanes of batches": lambda ds: ds.lanes(3).batch(3),
    "rank 0 of 3": lambda ds: ds.shard(3, 0),
    "rank 2 of 3": lambda ds: ds.shard(3, 2),
    "whole files": lambda ds: ds.shard(2, 1, mode="file"),
    "shared lanes": lambda ds: ds.lanes(2).shard(3, 1).batch(2),
    "cut": lambda ds: ds.skip(3).take(20),
}


@pytest.mark.parametrize(
    ("level", "pipeline"), [*zip(LEVELS * 3, UNIFORM, strict=False), *((level, "rows") for level in LEVELS[1:])]
)
def test_A9_the_next_example_is_named_at_every_cut(build, level, pipeline):
    for dataset, left in cuts(lambda: UNIFORM[pipeline](build(level))):
        assert named(dataset, dataset.state_dict()) == next_of(left)


@pytest.mark.parametrize(("level", "shard"), [(None, (1, 0)), ("file", (2, 1)), ("block", (1, 0)), ("row", (2, 1))])
def test_A9_after_a_filter_the_state_names_the_row_at_which_reading_continues(build, level, shard):
    order = build(level).shard(*shard)
    raw = [ids(order), ids(order)]
    whole = [[row for row in rows if is_kept({"id": row})] for rows in raw]
    for cut in range(len(whole[0]) + 1):
        dataset = build(level).filter(is_kept).shard(*shard)
        iterator = iter(dataset)
        list(islice(iterator, cut))
        place = named(dataset, dataset.state_dict())
        if cut < len(whole[0]) or place in raw[0][raw[0].index(whole[0][-1]) + 1 :]:
            at = raw[0].index(place)
            assert [row for row in raw[0][at:] if is_kept({"id": row})] == whole[0][cut:]
        else:
            assert place == raw[1][0]
    assert list(islice(iterator, 1)) == []
    assert named(dataset, dataset.state_dict()) == raw[1][0]


def test_A9_split_expressions_name_files_and_rows_of_the_whole_split(saved):
    for split in ("train[7:40]", "train[50:]+train[:9]"):

        def make(split=split):
            return me.fast_load_iterable_dataset(saved, split=split).shuffle(2, level="file")

        for dataset, left in cuts(make):
            assert named(dataset, dataset.state_dict()) == next_of(left)


def test_A9_the_state_stays_small(build, monkeypatch):
    def size(dataset):
        return len(json.dumps(dataset.state_dict()))

    few = build("file").shard(8, 3)
    next(iter(few))
    assert size(few) < 1300
    count = 100_000
    names = tuple(f"data-{number:06d}-of-100000.arrow" for number in range(count))
    block, stamps = table(0, 2).to_batches()[0], (FileStamp(900, 1),) * count
    scans = [Scan("arrow", block.schema, [(0, 900, 2)])] * count
    monkeypatch.setattr(FileIndex, "check", lambda *_: None)
    monkeypatch.setattr(
        FileIndex, "open", lambda _self, _file, wanted: MadeBlocks(lambda _: block.select(wanted.names))
    )
    index = FileIndex(IndexView("/data", index_bytes(Listing("", "/data", names, stamps), scans)))
    pipeline = Pipeline(source=FileRows(index=index))
    many = with_plan(few, Plan(pipeline=pipeline)).shuffle(seed=9, level="file").map(plus_one).shard(8, 3)
    next(iter(many))
    assert many.state_dict()["turn"] == 8
    assert size(many) < 1300
    assert len(many.shuffled_files) == count


def test_A10_a_jump_opens_one_file_and_reads_one_block(tmp_path, monkeypatch):
    folder = write_files(tmp_path / "data", [600] * 50, ["stream"], block=100)
    opened, read = [], []
    open_blocks, read_block = arrow.ArrowBlocks, arrow.ArrowBlocks.read
    watched = replace(arrow.FORMAT, open_blocks=lambda *at: opened.append(at[0]) or open_blocks(*at))
    monkeypatch.setitem(FORMATS, "arrow", watched)
    monkeypatch.setattr(arrow.ArrowBlocks, "read", lambda *at: read.append(at[1]) or read_block(*at))
    for make in (
        lambda: me.SimpleArrowIterableDataset(folder),
        lambda: me.SimpleArrowIterableDataset(folder).shuffle(1, level="file"),
        lambda: me.SimpleArrowIterableDataset(folder).map(plus_one),
        lambda: me.SimpleArrowIterableDataset(folder).filter(is_kept),
    ):
        first = make()
        iterator = iter(first)
        list(islice(iterator, 42 * 400 + 378 if "filter" in repr(first) else 42 * 600 + 567))
        state = first.state_dict()
        expected = next(iterator)
        second = make()
        opened.clear()
        read.clear()
        second.load_state_dict(state)
        assert (opened, read) == ([], [])
        assert next(iter(second)) == expected
        assert opened == [second.shuffled_files[42]]
        assert [block.number for block in read] == [5]
        assert state["current_file_index"] == 42


@pytest.mark.parametrize("level", LEVELS)
def test_A11_a_bare_loop(build, level):
    assert_resumes(build(level))
    assert_resumes(build(level).batch(3))
    assert_resumes(build(level).filter(is_kept).shard(2, 1))


def list_ids(items):
    return ids(items)


def stateful(dataset, workers, **options):
    return StatefulDataLoader(dataset, num_workers=workers, batch_size=3, collate_fn=list_ids, **options)


def saved_by_torch(state):
    """A state through torch.save and a weights-only torch.load."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("workers", [0, 2, 3, 8])
def test_A12_a_stateful_dataloader_epoch_after_epoch(build, workers):
    def make(epoch=0):
        dataset = build("file").map(plus_one)
        dataset.set_epoch(epoch)
        return stateful(dataset, workers)

    epochs = [list(make(epoch)) for epoch in range(2)]
    for epoch in epochs:
        assert sorted(chain.from_iterable(epoch)) == list(range(ROWS))
    assert epochs[0] != epochs[1]
    for epoch, cut in ((0, 5), (1, 1))[: 1 + (workers < 3)]:
        loader = make(epoch)
        iterator = iter(loader)
        got = list(islice(iterator, cut))
        state = saved_by_torch(loader.state_dict())
        del iterator
        resumed = make()
        resumed.load_state_dict(state)
        assert got + list(resumed) == epochs[epoch]


def test_A13_torch_carries_the_state(build):
    dataset = build("block").batch(2)
    iterator = iter(dataset)
    got = ids(islice(iterator, 5))
    state = saved_by_torch({"data": dataset.state_dict()})["data"]
    assert state == dataset.state_dict()
    resumed = build("block").batch(2)
    resumed.load_state_dict(state)
    assert got + ids(resumed) == ids(build("block"))


def test_A14_a_checkpoint_of_epoch_1_resumes_there(build):
    loader = me.Loader(build("file"), batch_size=4, num_workers=1)
    epochs = [[plain(batch["id"]) for batch in loader] for _ in range(3)]
    for epoch in epochs:
        assert sorted(chain.from_iterable(epoch)) == list(range(ROWS))
    loader = me.Loader(build("file"), batch_size=4)
    list(loader)
    got = [plain(batch["id"]) for batch in islice(iter(loader), 3)]
    state = loader.state_dict()
    assert state["epoch"] == 1
    resumed = me.Loader(build("file"), batch_size=4, num_workers=1)
    resumed.load_state_dict(state)
    assert got + [plain(batch["id"]) for batch in resumed] == epochs[1]
    assert [plain(batch["id"]) for batch in resumed] == epochs[2]


@pytest.mark.parametrize("level", LEVELS)
def test_A15_the_state_of_rank_0_restores_all(build, level):
    def rank(number):
        return build(level).shard(2, number).batch(3)

    whole = [ids(rank(number)) for number in range(2)]
    assert sorted(chain.from_iterable(whole)) == list(range(ROWS))
    for cut in range(7):
        ranks = [rank(number) for number in range(2)]
        got = [ids(islice(iter(one), cut)) for one in ranks]
        state = saved_by_torch(ranks[0].state_dict())
        for number in range(2):
            resumed = rank(number)
            resumed.load_state_dict(state)
            assert got[number] + ids(resumed) == whole[number]
            assert resumed.state_dict()["shard_config"] == (2, number)


@pytest.mark.parametrize("level", LEVELS)
def test_A16_other_ranks_and_workers(build, level):
    layouts = [(2, 1), (3, 2), (1, 4), (5, 1)]
    assert_elastic(build(level).lanes(6).batch(2), layouts, steps=2)
    assert_elastic(build(level).filter(is_kept).lanes(4), layouts, steps=3)


def test_A5_a_shuffle_of_a_single_file_says_that_it_moves_nothing(tmp_path, caplog):
    one = me.SimpleArrowIterableDataset(write_files(tmp_path / "one", [30], ["stream"]))
    two = me.SimpleArrowIterableDataset(write_files(tmp_path / "two", [30, 3], ["stream"]))
    two.shuffle(1, level="file")
    one.shuffle(1)
    assert not caplog.records
    assert ids(one.shuffle(1, level="file")) == ids(one)
    assert "Pass level='block'" in caplog.text
