"""Counted pipelines in real loaders: one rank's state restores any ranks and workers, and no turn is empty."""

import random
from dataclasses import replace
from itertools import chain, islice

import numpy as np
import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

import midepoch as me
from counted_pipelines import ids_of_packs, is_changed, is_no_seventh, longer, pipelines
from midepoch.dataset import plan_of, with_plan
from midepoch.sources.ahead import LaneRows
from worlds import through_json, write_documents

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
]

OVERLONG = 40
PIPELINES = ["filter", "one to one", "best_fit", "concat", "mixture"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # Documents of the first files are long, so that some lanes have many more packs than others.
    generator = np.random.default_rng(9)
    lengths = [*generator.integers(10, 30, 60), *generator.integers(0, 6, 90)]
    lengths[OVERLONG] = 100
    return write_documents(tmp_path_factory.mktemp("world") / "data", [int(each) for each in lengths], block=10)


@pytest.fixture(scope="module")
def surveys(tmp_path_factory):
    return tmp_path_factory.mktemp("surveys")


@pytest.fixture
def build(folder, surveys):
    def build(name, *, lanes=4, survey=True, shuffled=True):
        dataset = pipelines(name, folder, shuffled=shuffled)
        dataset = dataset.survey(folder=surveys) if survey else dataset
        return dataset if lanes is None else dataset.lanes(lanes)

    return build


def with_function(dataset, number, function):
    """The dataset with another function in a stage, of which its survey knows nothing."""
    stages = list(plan_of(dataset).pipeline.stages)
    stages[number] = replace(stages[number], call=replace(stages[number].call, function=function))
    pipeline = replace(plan_of(dataset).pipeline, stages=tuple(stages))
    return with_plan(dataset, replace(plan_of(dataset), pipeline=pipeline))


def in_order(ranks):
    """The items of all ranks, step by step."""
    missing = object()
    length = max(map(len, ranks))
    padded = [[*items, *[missing] * (length - len(items))] for items in ranks]
    return [item for step in zip(*padded, strict=True) for item in step if item is not missing]


def loaders(dataset, ranks, workers, **options):
    options = {"even": None, "collate_fn": ids_of_packs, **options}
    return [me.Loader(dataset.shard(ranks, rank), num_workers=workers, **options) for rank in range(ranks)]


LAYOUTS = [
    (2, 2, {"multiprocessing_context": "fork"}),
    (3, 0, {}),
    (1, 3, {"persistent_workers": True}),
    (2, 1, {"prefetch_factor": 4}),
    (3, 1, {}),
]


@pytest.mark.parametrize(
    ("name", "last"),
    [*((name, LAYOUTS[-1]) for name in PIPELINES), ("best_fit", (1, 1, {"multiprocessing_context": "spawn"}))],
)
def test_E1_the_state_of_one_rank_restores_other_ranks_and_workers(build, name, last):
    choice = random.Random(name)
    dataset = build(name)
    assert dataset.counted
    whole = list(me.Loader(dataset, collate_fn=ids_of_packs))
    got, state = [], None
    layouts = [*LAYOUTS[:-1], last]
    for number, (ranks, workers, options) in enumerate(layouts):
        running = loaders(build(name), ranks, workers, **options)
        for loader in running:
            if state is not None:
                loader.load_state_dict(state)
                assert through_json(loader.state_dict()) == state
        is_last = number == len(layouts) - 1
        steps = None if is_last else choice.randrange(1, (len(whole) - len(got)) // (2 * ranks))
        iterators = [iter(loader) for loader in running]
        items = [list(islice(iterator, steps)) for iterator in iterators]
        lengths = sorted(map(len, items))
        assert lengths[-1] - lengths[0] <= 1
        got += in_order(items)
        if not is_last:
            states = [through_json(loader.state_dict()) for loader in running]
            assert all(each == states[0] for each in states)
            state = choice.choice(states)
        del iterators
    assert got == whole


@pytest.mark.parametrize(("even", "epochs"), [("auto", 1), ("drop", 1), (None, 1), ("auto", 3), ("drop", 3)])
def test_the_length_of_a_loader_is_the_number_of_its_steps(build, even, epochs):
    ranks = 3
    dataset = build("best_fit").repeat(epochs)
    whole = list(me.Loader(dataset.shard(1, 0), collate_fn=ids_of_packs))
    running = loaders(dataset, ranks, 0, even=even)
    steps = []
    for loader in running:
        length = len(loader)
        own = [(item, loader.is_padding) for item in loader]
        assert len(own) == length
        steps.append(own)
    if even is not None:
        assert len({len(own) for own in steps}) == 1
    got = in_order([[item for item, is_padding in own if not is_padding] for own in steps])
    if epochs == 1:
        kept = len(whole) // ranks * ranks if even == "drop" else len(whole)
        assert got == whole[:kept]
    elif even == "auto":
        assert sorted(got) == sorted(whole)
    assert any(is_padding for own in steps for _, is_padding in own) == (even == "auto" and len(got) % ranks != 0)


def one_by_one(dataset, workers, kind):
    return kind(dataset, batch_size=None, num_workers=workers, collate_fn=ids_of_packs)


@pytest.mark.parametrize(("workers", "name"), [(0, "best_fit"), (2, "mixture"), (3, "one to one")])
def test_a_stateful_dataloader_resumes_and_so_do_other_workers(build, workers, name):
    whole = list(map(ids_of_packs, build(name)))
    first = one_by_one(build(name), workers, StatefulDataLoader)
    got = list(islice(iter(first), 17))
    state = first.state_dict()
    assert got == whole[:17]
    second = one_by_one(build(name), workers, StatefulDataLoader)
    second.load_state_dict(state)
    got += islice(iter(second), 4)
    complete = through_json(me.from_stateful_dataloader(second.state_dict()))
    others = loaders(build(name), 2, 0)
    for loader in others:
        loader.load_state_dict(complete)
    more = in_order([list(loader) for loader in others])
    assert got + more == whole
    dataset = build(name)
    dataset.load_state_dict(complete)
    third = one_by_one(dataset, 1 if workers == 2 else 2, StatefulDataLoader)
    assert got + list(third) == whole


@pytest.mark.parametrize("name", PIPELINES)
def test_merged_states_of_ranks_that_did_not_count_are_counted(build, name):
    """Their readers shared lanes and were at different steps, so that items are delivered ahead of cursors."""
    whole = list(map(ids_of_packs, build(name, survey=False)))
    first = loaders(build(name, survey=False), 3, 0)
    got = list(chain.from_iterable(islice(loader, steps) for loader, steps in zip(first, (5, 9, 3), strict=True)))
    state = me.merge_states([through_json(loader.state_dict()) for loader in first])
    assert any(isinstance(position, dict) for _, position in state["cursors"]), "no items are ahead of a cursor"
    second = loaders(build(name), 2, 0)
    for loader in second:
        loader.load_state_dict(state)
    got += chain.from_iterable([list(islice(loader, 3)) for loader in second])
    plain, counted = build(name, survey=False), build(name)
    rests = []
    for dataset in (plain, counted):
        dataset.load_state_dict(through_json(second[1].state_dict()))
        rests.append(list(map(ids_of_packs, dataset)))
    assert rests[0] == rests[1]
    assert sorted(got + rests[0]) == sorted(whole)


@pytest.mark.parametrize("strategy", ["best_fit", "first_fit", "balanced"])
def test_E3_readers_that_share_lanes_take_each_row_once(build, strategy, monkeypatch):
    dataset = build(strategy, lanes=2)
    taken = []
    right = LaneRows.runs

    def runs(self, *arguments):
        for run in right(self, *arguments):
            taken.extend(run.keys.tolist())
            yield run

    monkeypatch.setattr(LaneRows, "runs", runs)
    for loader in loaders(dataset, 3, 0):
        list(loader)
    kept = [row for row in taken if is_no_seventh({"id": row})]  # the others are a sample that checks the filter
    assert {row for row in kept if kept.count(row) > 1} <= {OVERLONG}, "only this one lies in several packs"
    assert set(kept) == {number for number in range(150) if is_no_seventh({"id": number})}


def test_E3_a_filter_is_not_called_for_rows_of_other_readers(build):
    calls = []

    def counting(row):
        calls.append(row["id"])
        return is_no_seventh(row)

    dataset = build("filter", lanes=2)
    dataset = with_function(dataset, 0, counting)
    got = in_order([list(loader) for loader in loaders(dataset, 3, 0)])
    assert sorted(got) == sorted([row] for row in calls if is_no_seventh({"id": row}))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("filter", is_changed, r"survey says that filter keeps row 20 of part-0000.arrow, and now it does not"),
        ("best_fit", is_changed, r"survey says that filter keeps row 20 of part-0000.arrow, and now it does not"),
        (
            "best_fit",
            longer,
            r"pack: a document has \d+ tokens, and the survey says \d+, at row \d+ of part-0000.arrow",
        ),
        ("concat", longer, r"a document has \d+ tokens, and the survey says \d+, at row 20 of part-0000.arrow"),
    ],
)
def test_a_changed_function_is_named_and_never_hangs(build, name, function, message, workers):
    dataset = build(name)
    number = 1 if function is is_changed and name != "filter" else 0
    dataset = with_function(dataset, number, function)
    loader = me.Loader(dataset, num_workers=workers, collate_fn=ids_of_packs)
    with pytest.raises(me.SurveyMismatchError, match=message):
        list(loader)


@pytest.mark.parametrize("even", ["auto", "drop"])
def test_an_endless_mixture_goes_on_over_ranks_and_with_repeat(folder, surveys, even):
    def build():
        rows = me.read(folder).shuffle(1)
        return me.mix([rows.filter(is_no_seventh), me.read(folder).take(9)], [3, 1], stop="never").survey(
            folder=surveys
        )

    whole = list(map(ids_of_packs, islice(build().lanes(2), 400)))
    first = loaders(build().lanes(2).repeat(), 2, 0, even=even)
    got = in_order([list(islice(loader, 100)) for loader in first])
    second = me.Loader(build().lanes(2).repeat(), num_workers=2, collate_fn=ids_of_packs)
    second.load_state_dict(through_json(first[1].state_dict()))
    assert got + list(islice(second, 200)) == whole
