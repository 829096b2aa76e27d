"""A Loader can be shown at any moment, also in the traceback of its own constructor."""

import pytest

import midepoch as me
from files import write_numbers


@pytest.fixture
def dataset(tmp_path):
    return me.read(write_numbers(tmp_path / "a.arrow", 0, 10))


@pytest.mark.parametrize(
    "wrong",
    [
        {"dataset": "data"},
        {"shuffle": True},
        {"num_workers": -1},
        {"even": "odd"},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"on_metrics": 3},
        {"metrics_every": 0},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_loader_whose_constructor_raised_has_a_repr(dataset, wrong):
    loader = object.__new__(me.Loader)
    assert "Loader object at" in repr(loader)
    with pytest.raises((TypeError, ValueError)):
        loader.__init__(**{"dataset": dataset, **wrong})
    assert "Loader" in repr(loader)


def test_a_loader_shows_its_rows_and_its_options(dataset):
    shown = repr(me.Loader(dataset, batch_size=4, num_workers=2, persistent_workers=True))
    assert "10 rows" in shown
    assert "num_workers=2" in shown
    assert "persistent_workers=True" in shown
