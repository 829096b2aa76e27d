"""Ranks compare what they read through a store: of two that differ, the later one raises."""

from dataclasses import replace

import pytest

import midepoch as me
from midepoch.checkpoint.state import State
from midepoch.dataset import plan_of, with_plan
from midepoch.delivery.agreement import check_ranks_agree
from midepoch.delivery.position import Position
from worlds import is_kept, is_late, write_files


class DictStore(dict):
    """A store in memory. It raises on a key that is not there, where a real one would wait."""

    def check(self, keys):
        return all(key in self for key in keys)

    def get(self, key):
        return self[key].encode()

    def compare_set(self, key, expected, value):
        assert expected == ""
        return self.setdefault(key, value).encode()


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", [20, 7, 33])


def begin(dataset, *, state=None, epoch=None, **options):
    """A pass of a dataset."""
    plan = plan_of(dataset.lanes(4)) if plan_of(dataset).lanes is None else plan_of(dataset)
    start_point = Position(State())
    if state is not None:
        start_point.load_state_dict(plan, state)
    if epoch is not None:
        start_point.set_epoch(epoch)
    return start_point.begin(plan)


def compare(runs, ranks=None):
    store = DictStore()
    for number, run in enumerate(runs):
        check_ranks_agree(store, run, loader=0, rank=number if ranks is None else ranks[number])


def shards(folder, ranks, change=lambda dataset, rank: dataset):
    return [change(me.read(folder).shuffle(3), rank).shard(ranks, rank) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_that_read_the_same_agree(folder, ranks):
    runs = [begin(dataset) for dataset in shards(folder, ranks)]
    compare(runs)
    compare(runs[::-1])
    compare(runs[::2] + runs[1::2])


@pytest.mark.parametrize("odd", [0, 3, 7])
@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.lanes(5), r"the number of lanes is \d on rank \d and \d on rank \d.*dataset\.lanes\(n\)"),
        (lambda d: d.shuffle(4), r"stage 2, shuffle\(.*the same seeds"),
        (lambda d: d.batch(3), r"rows per batch is \d on rank \d and \d on rank \d.*the same batch size"),
    ],
    ids=["lanes", "seed", "batch"],
)
def test_any_rank_that_differs_is_found_in_any_order(folder, odd, order, change, message):
    runs = [begin(one) for one in shards(folder, 8, lambda dataset, rank: change(dataset) if rank == odd else dataset)]
    numbers = list(range(8))[::order]
    with pytest.raises(me.RanksDisagreeError, match=message):
        compare([runs[number] for number in numbers], numbers)


def test_another_start_is_found(folder):
    first = me.read(folder).lanes(4).shard(2, 0)
    items = iter(first)
    next(items)
    with pytest.raises(me.RanksDisagreeError, match=r"the start is epoch 0, turn 0.*turn 2.*Load the same state"):
        compare([begin(me.read(folder).shard(2, 0)), begin(first, state=first.state_dict())])


def test_peers_with_one_shard_index_compare_with_each_other(folder):
    same = [begin(me.read(folder).shuffle(1).shard(2, 0)) for _ in range(2)]
    compare(same)
    with pytest.raises(me.RanksDisagreeError, match="seed"):
        compare([same[0], begin(me.read(folder).shuffle(2).shard(2, 0))])


def test_ranks_of_which_only_some_count_are_found(folder):
    plain = me.read(folder).filter(is_kept)
    runs = [begin(dataset.shard(2, rank)) for rank, dataset in enumerate((plain.survey(), plain))]
    for both, message in ((runs, "by items on rank 0 and by cursors on rank 1"), (runs[::-1], "by cursors on rank 0")):
        with pytest.raises(
            me.RanksDisagreeError, match=rf"kind of counting is {message}.*Call survey\(\) on all ranks"
        ):
            compare(both)


def test_ranks_with_other_surveys_are_found(folder):
    surveys = [me.read(folder).filter(function).survey(version=1) for function in (is_kept, is_late)]
    first = plan_of(surveys[0]).pipeline
    changed = replace(first, survey=plan_of(surveys[1]).pipeline.survey)
    runs = [
        begin(with_plan(surveys[0], replace(plan_of(surveys[0]), pipeline=pipeline)).shard(2, rank))
        for rank, pipeline in enumerate((first, changed))
    ]
    with pytest.raises(me.RanksDisagreeError, match=r"the survey is \w+ on rank 0 and \w+ on rank 1.*the same version"):
        compare(runs)
