"""What a dataset and a Loader say of themselves: every stage, and the counts that are known."""

import pytest

import midepoch as me
from files import write_numbers


def double(row):
    return {"x": 2 * row["x"]}


def is_even(row):
    return row["x"] % 2 == 0


@pytest.fixture
def dataset(tmp_path):
    return me.read([write_numbers(tmp_path / f"{number}.arrow", number * 20, number * 20 + 20) for number in range(3)])


def lines(shown):
    return [line.strip(" <>") for line in repr(shown).splitlines()]


def test_every_stage_and_every_count_is_shown(dataset):
    built = dataset.shuffle(seed=7, level="row").take(10).map(double).with_format("numpy").batch(4)
    assert lines(built.lanes(2).shard(2, 1).repeat(3)) == [
        "midepoch.Dataset of 60 rows in 3 files",
        "shuffle(level='row', seed=7)",
        "take(n=10)",
        "= 10 rows",
        "map(fn='double')",
        "with_format(type='numpy')",
        "batch(n=4)",
        "lanes(2)",
        "shard(2, 1)",
        "repeat(3)",
        "epoch 0: 6 items for rank 1 of 2",
    ]


def test_a_number_that_is_not_known_comes_with_the_reason(dataset):
    assert lines(dataset.filter(is_even))[1:] == [
        "filter(fn='is_even')",
        "epoch 0: the number of items is unknown, because how many items filter yields is only known by reading the "
        "rows: call .survey() once",
    ]


def test_the_parts_of_a_mixture_are_shown_with_their_stages(dataset):
    mixed = me.mix({"a": dataset.take(4), "b": dataset.map(double)}, weights=[1, 1], seed=5).batch(2)
    assert lines(mixed) == [
        "midepoch.Dataset of a mixture of a (1), b (1)",
        "a: 60 rows in 3 files",
        "take(n=4)",
        "= 4 rows",
        "b: 60 rows in 3 files",
        "map(fn='double')",
        "mix(seed=5, stop='first')",
        "batch(n=2)",
        "epoch 0: the number of items is known",
    ]


def test_a_loader_shows_its_batches_and_options(dataset):
    loader = me.Loader(dataset, batch_size=8, drop_last=True)
    assert lines(loader)[1:] == [
        "batch(n=8, drop_last=True)",
        "lanes(1)",
        "Loader(num_workers=0, even=None, persistent_workers=False)",
        "epoch 0: 7 items",
    ]


def test_head_shows_the_first_items_and_moves_nothing(dataset):
    batches = dataset.shuffle(seed=1).batch(4)
    expected = list(batches)
    batches.set_epoch(0)
    before = batches.state_dict()
    assert batches.head(2) == expected[:2]
    assert batches.head() == expected[:5]
    assert batches.head(0) == []
    assert batches.state_dict() == before
    assert list(batches) == expected
