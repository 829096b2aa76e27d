"""torchdata's StatefulDataLoader: exact, and its checkpoints can be resumed with other numbers of workers."""

import io
import json
from itertools import chain, islice
from pathlib import Path

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import midepoch as me
from golden.write import PIPELINES as GOLDEN_PIPELINES
from golden.write import summed
from worlds import ids, is_kept, write_files

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
]

DOORS = Path(__file__).parents[1] / "golden" / "front_doors"
PIPELINES = {
    "rows": lambda ds: ds,
    "batches": lambda ds: ds.batch(4),
    "filtered": lambda ds: ds.filter(is_kept),
    "windows": lambda ds: ds.lanes(2).pack(9, column="tokens", window=8).map(summed),
    "stream": lambda ds: ds.lanes(2).pack(5, column="tokens", strategy="concat").map(summed),
    "mixture": lambda ds: me.mix({"all": ds, "kept": ds.filter(is_kept)}, [2, 1], stop="all"),
}


def list_ids(items):
    return [number for item in items for number in ids([item])]


def flat(lists):
    return list(chain.from_iterable(lists))


def one_ids(item):
    return ids([item])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("world") / "data", [20, 0, 7, 33])


@pytest.fixture
def build(folder):
    return lambda pipeline: PIPELINES[pipeline](me.read(folder).shuffle(1, window=20))


def stateful(dataset, workers, batch_size=3, **options):
    collate = one_ids if batch_size is None else list_ids
    return StatefulDataLoader(dataset, num_workers=workers, batch_size=batch_size, collate_fn=collate, **options)


def saved(loader):
    """The loader's state, through torch.save and a weights-only torch.load."""
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def take(loader, count):
    iterator = iter(loader)
    return list(islice(iterator, count)), saved(loader)


@pytest.mark.parametrize(
    ("pipeline", "batch_size", "workers"),
    [
        *(("rows", 3, workers) for workers in (0, 1, 2, 3, 4, 8)),
        *((name, None, 2) for name in ("batches", "windows", "stream", "mixture")),
        ("filtered", 3, 0),
        ("filtered", 3, 3),
    ],
)
def test_A12_C4_cut_and_resumed_twice(build, pipeline, batch_size, workers):
    whole = list(stateful(build(pipeline), workers, batch_size))
    assert sorted(flat(whole)) == sorted(ids(build(pipeline)))
    for cut, every in ((4, 3), (len(whole) - 2, 1)):
        options = {"snapshot_every_n_steps": every}
        got, state = take(stateful(build(pipeline), workers, batch_size, **options), cut)
        second = stateful(build(pipeline), workers, batch_size, **options)
        second.load_state_dict(state)
        more, state = take(second, 1)
        third = stateful(build(pipeline), workers, batch_size, **options)
        third.load_state_dict(state)
        assert got + more + list(third) == whole


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, True), (3, False)])
def test_A14_epochs_are_complete_and_resume_in_their_own(build, workers, persistent):
    options = {"persistent_workers": persistent}
    dataset = build("rows")
    loader = stateful(dataset, workers, **options)
    epochs = []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        epochs.append(list(loader))
        assert sorted(flat(epochs[-1])) == list(range(60))
    assert len({str(epoch) for epoch in epochs}) == 3

    dataset = build("rows")
    loader = stateful(dataset, workers, **options)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        got, state = take(loader, 20 if epoch == 0 else 6)
    dataset = build("rows")
    loader = stateful(dataset, workers, **options)
    loader.load_state_dict(state)
    dataset.set_epoch(1)
    assert got + list(loader) == epochs[1]
    dataset.set_epoch(2)
    assert list(loader) == epochs[2]


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_A15_rank_zeros_checkpoint_restores_every_rank(build, workers):
    def rank(number):
        return stateful(build("rows").shard(2, number), workers)

    whole = [list(rank(number)) for number in range(2)]
    assert sorted(flat(flat(whole))) == list(range(60))
    for cut in (1, 6):
        got = [take(rank(number), cut) for number in range(2)]
        for number in range(2):
            resumed = rank(number)
            resumed.load_state_dict(got[0][1])
            assert got[number][0] + list(resumed) == whole[number]


@pytest.mark.parametrize(
    ("pipeline", "workers"), [*(("rows", workers) for workers in (0, 1, 3)), ("batches", 1), ("filtered", 2)]
)
def test_A16_a_checkpoint_goes_on_with_other_workers(build, pipeline, workers):
    everything = sorted(ids(build(pipeline)))
    for cut in (1, 5):
        got, state = take(stateful(build(pipeline), workers, None), cut)
        free = json.loads(json.dumps(me.from_stateful_dataloader(state)))
        for others in (0, 2):
            loader = me.Loader(build(pipeline), num_workers=others)
            loader.load_state_dict(free)
            assert sorted(flat(got) + ids(loader)) == everything
            dataset = build(pipeline)
            dataset.load_state_dict(free)
            assert sorted(flat(got + list(stateful(dataset, others, None)))) == everything


def test_filtering_ranks_need_all_checkpoints(build):
    def rank(number):
        return stateful(build("filtered").lanes(4).shard(2, number), 2, None)

    got = [take(rank(number), 5) for number in range(2)]
    free = me.from_stateful_dataloader(*(state for _, state in got))
    resumed = me.Loader(build("filtered"), num_workers=3)
    resumed.load_state_dict(free)
    delivered = [number for part, _ in got for one in part for number in one]
    assert sorted(delivered + ids(resumed)) == sorted(ids(build("filtered")))
    with pytest.raises(me.CheckpointMismatchError, match="missing"):
        me.from_stateful_dataloader(got[0][1])


def test_a_checkpoint_between_snapshots_needs_the_batch_size(build):
    loader = stateful(build("rows"), 2, 3, snapshot_every_n_steps=4)
    got, state = take(loader, 6)
    with pytest.raises(me.CheckpointMismatchError, match="2 steps after its last snapshot"):
        me.from_stateful_dataloader(state)
    resumed = me.Loader(build("rows"))
    resumed.load_state_dict(me.from_stateful_dataloader(state, batch_size=3))
    assert sorted(flat(got) + ids(resumed)) == list(range(60))


def test_what_is_no_checkpoint_of_a_stateful_dataloader_is_told_what_to_pass(build):
    loader = stateful(build("rows"), 2, 2)
    got, state = take(loader, 3)
    for several in ([state], (state, state)):
        with pytest.raises(me.CheckpointMismatchError, match=r"it is a .*from_stateful_dataloader\(\*checkpoints\)"):
            me.from_stateful_dataloader(several)
    with pytest.raises(me.CheckpointMismatchError, match=r"it is a StatefulDataLoader.* Pass the dict that its state_"):
        me.from_stateful_dataloader(loader)
    with pytest.raises(me.CheckpointMismatchError, match=r"state of a midepoch.* Load it as it is"):
        me.from_stateful_dataloader(me.Loader(build("rows")).state_dict())
    resumed = me.Loader(build("rows"))
    resumed.load_state_dict(me.from_stateful_dataloader(*[state]))
    assert sorted(flat(got) + ids(resumed)) == list(range(60))


@pytest.mark.parametrize(("workers", "choose"), [(2, True), (3, False)])
def test_a_checkpoint_early_in_a_later_epoch_of_persistent_workers(build, workers, choose):
    """Workers that have not delivered in this epoch yet must not be taken for ones that have delivered all."""

    def second_epoch(cut):
        dataset = build("rows")
        loader = stateful(dataset, workers, persistent_workers=True)
        list(loader)
        if choose:
            dataset.set_epoch(1)
        return take(loader, cut)

    whole, _ = second_epoch(99)
    for cut in (1, 2, 5):
        got, state = second_epoch(cut)
        assert got == whole[:cut]
        resumed = stateful(build("rows"), workers)
        resumed.load_state_dict(state)
        assert got + list(resumed) == whole
        free = me.Loader(build("rows"))
        free.load_state_dict(me.from_stateful_dataloader(state))
        assert sorted(flat(got) + ids(free)) == list(range(60))


@pytest.mark.parametrize("ranks", [1, 2])
def test_E4_workers_that_are_in_different_epochs(folder, ranks):
    """With repeat, a worker with few rows begins the next epoch while others are in the first."""
    rows = me.read(folder).take(9).filter(is_kept).lanes(4)
    whole, in_different_epochs = ids(rows) * 4, 0
    for cut in (4, 7):
        got = [take(stateful(rows.repeat().shard(ranks, rank), 2, None), cut) for rank in range(ranks)]
        for _, state in got:
            workers = state["_snapshot"]["_worker_snapshots"].values()
            in_different_epochs += len({worker["dataset_state"]["epoch"] for worker in workers}) > 1
        resumed = rows.lanes(4)
        resumed.load_state_dict(me.from_stateful_dataloader(*(state for _, state in got)))
        delivered = flat(items for per_rank, _ in got for items in per_rank)
        while resumed.epoch < 4:
            delivered += ids(resumed)
        assert sorted(delivered) == sorted(whole)
    assert in_different_epochs


@pytest.mark.parametrize("name", ["filter", "uniform"])
@pytest.mark.parametrize("taken", [1, 7])
def test_checkpoints_of_every_version_load_if_some_workers_have_not_begun(tmp_path, name, taken):
    values = json.loads((DOORS / f"v1-workers-{name}-{taken}.json").read_text())
    folder = write_files(tmp_path / "data", [20, 0, 7, 33], kinds=["stream"])
    loader = StatefulDataLoader(GOLDEN_PIPELINES[name](me.read(folder)), batch_size=None, num_workers=2)
    loader.load_state_dict(values["state"])
    assert ids(loader) == values["rest"]
    alone = GOLDEN_PIPELINES[name](me.read(folder))
    alone.load_state_dict(me.from_stateful_dataloader(values["state"]))
    assert sorted(ids(alone)) == sorted(values["rest"])  # when lanes run out, one reader has other turns than two


def test_a_rank_whose_workers_ran_out_says_nothing_of_workers_of_other_ranks(tmp_path):
    """Lanes of whole files: worker 0 of rank 0 ends after 2 rows, so its worker 1 delivers more than any of rank 1."""
    folder = write_files(tmp_path / "data", [2, 20, 20, 20])

    def build(rank):
        return me.read(folder).lanes(4).shard(2, rank, mode="file")

    for steps, fits in ((4, True), (12, False)):
        loaders = [StatefulDataLoader(build(rank), batch_size=None, num_workers=2) for rank in range(2)]
        got = [ids(islice(loader, steps)) for loader in loaders]
        state = me.from_stateful_dataloader(loaders[0].state_dict())
        datasets = [build(rank) for rank in range(2)]
        if not fits:
            with pytest.raises(me.CheckpointMismatchError, match="Resume each rank from its own checkpoint"):
                datasets[1].load_state_dict(state)
            continue
        for dataset in datasets:
            dataset.load_state_dict(state)
        assert sorted(flat(got) + flat(map(ids, datasets))) == list(range(62))
