"""Mixtures in loaders with real worker processes, theirs and ours."""

import json
from itertools import islice

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

import midepoch as me
from worlds import ids, is_kept, table, write

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]

SIZES = [30, 20, 12]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    for number, size in enumerate(SIZES):
        (folder / f"{number}").mkdir()
        write(folder / f"{number}" / "rows.arrow", table(1000 * number, size), "stream", 7)
    return folder


@pytest.fixture
def build(folder):
    def build(kind="rows", lanes=6, weights=(3, 2, 1), stop="all"):
        parts = [me.read(folder / f"{number}").shuffle(number, window=10) for number in range(len(weights))]
        if kind == "filtered":
            parts[1] = parts[1].filter(is_kept)
        mixture = me.mix(dict(zip("abc", parts, strict=False)), weights, stop=stop)
        return mixture.lanes(lanes) if lanes else mixture

    return build


def through_json(state):
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("kind", ["rows", "filtered"])
def test_a_loader_resumes_with_other_workers_wherever_it_was_cut(build, kind):
    whole = ids(build(kind))
    for cut in range(1, len(whole) - 1, 9):
        first = me.Loader(build(kind), num_workers=2)
        got = ids(islice(first, cut))
        second = me.Loader(build(kind), num_workers=3)
        second.load_state_dict(through_json(first.state_dict()))
        assert second.state_dict() == first.state_dict()
        assert got + ids(second) == whole


def test_a_loader_resumes_with_another_mixture(build):
    first = me.Loader(build(), num_workers=2)
    got = ids(islice(first, 17))
    second = me.Loader(build(weights=(1, 1)), num_workers=3)
    second.load_state_dict(through_json(first.state_dict()))
    got += ids(islice(second, 11))
    third = me.Loader(build(weights=(1, 5, 1)), num_workers=1)
    third.load_state_dict(through_json(second.state_dict()))
    got += ids(third)
    for number in (0, 1):
        part = [row for row in got if row // 1000 == number]
        assert sorted(part) == list(range(1000 * number, 1000 * number + SIZES[number]))


def stateful(dataset):
    return StatefulDataLoader(dataset, num_workers=2, batch_size=None)


@pytest.mark.parametrize("kind", ["rows", "filtered"])
def test_a_stateful_dataloader(build, kind):
    whole = ids(stateful(build(kind, lanes=None)))
    for cut in (1, 8, 25, 40):
        first = stateful(build(kind, lanes=None))
        got = ids(islice(iter(first), cut))
        state = first.state_dict()
        second = stateful(build(kind, lanes=None))
        second.load_state_dict(state)
        assert got + ids(second) == whole
        same = me.Loader(build(kind, lanes=None), num_workers=1)
        same.load_state_dict(through_json(me.from_stateful_dataloader(state)))
        free = me.Loader(build(kind, weights=(1, 2, 3)), num_workers=2)
        free.load_state_dict(through_json(same.state_dict()))
        assert sorted(got + ids(free)) == sorted(whole)
