"""A Dataset is generic for type checkers, and at run time what it was before."""

import copy
import pickle
from typing import Any

import pytest

import midepoch as me
from files import values, write_numbers
from midepoch.dataset import from_source, plan_of
from midepoch.extending import FrontDoor


class Door(FrontDoor):
    def own_keys(self, run):
        return {"manifest": self.version}


@pytest.fixture
def rows(tmp_path):
    write_numbers(tmp_path / "a.arrow", 0, 12)
    return me.read(tmp_path, index_dir=tmp_path / "index")


def test_parameters_are_for_type_checkers_alone(rows):
    assert isinstance(rows, me.Dataset)
    assert me.Dataset[dict[str, Any]].__origin__ is me.Dataset
    assert me.Loader[int].__origin__ is me.Loader
    with pytest.raises(TypeError):
        isinstance(rows, me.Dataset[int])
    opened = me.Dataset[int](plan_of(rows))
    assert type(opened) is me.Dataset
    assert values(opened) == list(range(12))


def test_front_doors_are_datasets_with_keys_of_their_own(rows):
    door = from_source(plan_of(rows).pipeline.source, Door)
    door.version = 7
    for derived in (door.batch(4).map(dict), copy.copy(door.shuffle(seed=1)), pickle.loads(pickle.dumps(door))):
        assert type(derived) is Door
        assert derived.state_dict()["manifest"] == 7
        passed = iter(derived)
        next(passed)
        assert passed.state_dict()["manifest"] == 7
