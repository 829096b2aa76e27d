"""Functions may get columns in place of an item, and keyword arguments, in every kind of stage."""

import pickle

import pytest

import midepoch as me
from worlds import ids, write_files


@pytest.fixture
def dataset(tmp_path):
    return me.read(write_files(tmp_path / "data", [20, 7], kinds=["stream"]))


def add(number, by=1):
    return {"id": number + by}


def add_all(numbers, by=1):
    return {"id": [number + by for number in numbers]}


def add_some(number, rng, by=0):
    return {"id": number + by + int(rng.integers(5))}


def is_multiple(number, of):
    return number % of == 0


def are_multiples(numbers, of):
    return [number % of == 0 for number in numbers]


def test_columns_and_keywords(dataset):
    expected = [number + 3 for number in range(27)]
    options = {"input_columns": "id", "fn_kwargs": {"by": 3}}
    assert ids(dataset.map(add, **options)) == expected
    assert ids(dataset.map(add_all, batched=True, batch_size=5, **options)) == expected
    assert ids(dataset.map(add_all, batched=True, one_to_one=True, **options)) == expected
    assert ids(dataset.map(add, input_columns=["id"])) == list(range(1, 28))
    assert ids(dataset.map(lambda row, by: {"id": row["id"] + by}, fn_kwargs={"by": 3})) == expected
    threes = list(range(0, 27, 3))
    assert ids(dataset.filter(is_multiple, input_columns="id", fn_kwargs={"of": 3})) == threes
    assert ids(dataset.filter(are_multiples, batched=True, input_columns="id", fn_kwargs={"of": 3})) == threes


def test_random_numbers_come_after_the_columns(dataset):
    given = dataset.map(add_some, with_rng=True, input_columns="id", fn_kwargs={"by": 0})
    plain = dataset.map(lambda row, rng: add_some(row["id"], rng), with_rng=True)
    assert ids(given) == ids(plain)


def test_states_know_the_users_function_and_its_columns(dataset):
    mapped = dataset.map(add, input_columns="id", fn_kwargs={"by": 3})
    (stage,) = mapped.state_dict()["fingerprint"]["pipeline"]
    assert stage == {"op": "map", "fn": "add", "input_columns": ["id"], "fn_kwargs": {"by": 3}}
    me.testing.assert_resumes(mapped)
    assert ids(pickle.loads(pickle.dumps(mapped))) == [number + 3 for number in range(27)]
    with pytest.raises(me.CheckpointMismatchError, match="input_columns"):
        dataset.map(add, fn_kwargs={"by": 3}).load_state_dict(mapped.state_dict())


def test_wrong_arguments(dataset):
    with pytest.raises(
        me.SchemaMismatchError, match=r"input_columns has 'x', and the item has no such column\. It has"
    ):
        next(iter(dataset.map(add, input_columns=["x"])))
    with pytest.raises(TypeError, match="fn_kwargs must be a dict, got a list"):
        dataset.map(add, fn_kwargs=["by"])
    with pytest.raises(TypeError, match="map needs a function, got 3"):
        dataset.map(3, fn_kwargs={"by": 1})
