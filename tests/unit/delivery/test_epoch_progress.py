"""Progress counts the steps of an epoch, over resumes on other ranks and with other batch sizes."""

import pytest

import midepoch as me
from files import write_numbers


@pytest.fixture
def dataset(tmp_path):
    return me.read([write_numbers(tmp_path / f"{number}.arrow", number * 20, number * 20 + 20) for number in range(3)])


def advanced(loader, steps):
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    return loader.state_dict()


def test_steps_before_a_resume_count(dataset):
    loader = me.Loader(dataset, batch_size=4)
    assert loader.progress() == (0, 0, 15)
    assert loader.progress().fraction == 0
    state = advanced(loader, 5)
    assert str(loader.progress()) == "epoch 0, step 5 of 15 (33.3%)"
    again = me.Loader(dataset, batch_size=4)
    again.load_state_dict(state)
    assert again.progress() == (0, 5, 15)
    state = advanced(again, 2)
    resized = me.Loader(dataset.shard(2, 1), batch_size=2)
    resized.load_state_dict(state)
    assert resized.progress() == (0, 7, 7 + 8)
    state = advanced(resized, 3)
    larger = me.Loader(dataset, batch_size=10)
    larger.load_state_dict(state)
    assert larger.progress() == (0, 10, 12)
    seen = [larger.progress().step for _ in larger]
    assert seen == [11, 12]
    assert larger.progress() == (1, 0, 6)


def test_steps_that_are_not_counted_have_no_total(dataset):
    loader = me.Loader(dataset.filter(lambda row: True))
    advanced(loader, 3)
    assert loader.progress() == (0, 3, None)
    assert loader.progress().fraction is None
    assert str(loader.progress()) == "epoch 0, 3 steps"


def test_padding_counts_as_steps(dataset):
    loader = me.Loader(dataset.take(20).batch(4).lanes(1).shard(2, 1), even="pad")
    assert [loader.progress().step for _ in loader] == [1, 2, 3]
