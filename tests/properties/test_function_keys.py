"""A function with other arguments or another version is another stage: for surveys, caches and checkpoints alike."""

import json
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from worlds import ids, write_files


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("keys"), [20, 7], kinds=["stream"])


def below(row, limit):
    return row["id"] < limit


def below_in(row, limits):
    return row["id"] < max(limits)


def below_all(rows, limit):
    return [row < limit for row in rows["id"]]


def plus(row, by):
    return {"id": row["id"] + by}


class Limit:
    """A value that no checkpoint can describe."""

    def __init__(self, limit):
        self.limit = limit

    def __gt__(self, number):
        return number < self.limit


FILTERS = {
    "fn_kwargs": lambda dataset, limit: dataset.filter(below, fn_kwargs={"limit": limit}),
    "partial": lambda dataset, limit: dataset.filter(partial(below, limit=limit)),
    "partial and fn_kwargs": lambda dataset, limit: dataset.filter(partial(below, limit=3), fn_kwargs={"limit": limit}),
    "batched": lambda dataset, limit: dataset.filter(below_all, batched=True, fn_kwargs={"limit": limit}),
    "batched partial": lambda dataset, limit: dataset.filter(partial(below_all, limit=limit), batched=True),
    "a list": lambda dataset, limit: dataset.filter(below_in, fn_kwargs={"limits": [0, limit]}),
    "a long list": lambda dataset, limit: dataset.filter(below_in, fn_kwargs={"limits": [*range(999, 0, -1)][-limit:]}),
    "an array": lambda dataset, limit: dataset.filter(below_in, fn_kwargs={"limits": np.arange(limit + 1)}),
    "a NumPy number": lambda dataset, limit: dataset.filter(below, fn_kwargs={"limit": np.int64(limit)}),
    "version": lambda dataset, limit: dataset.filter(
        below, fn_kwargs={"limit": Limit(limit)}, input_columns=None, version=limit
    ),
    "version of a closure": lambda dataset, limit: dataset.filter(lambda row: row["id"] < limit, version=f"v{limit}"),
    "version of a batched closure": lambda dataset, limit: dataset.filter(
        lambda rows: [row < limit for row in rows["id"]], batched=True, version=limit
    ),
}


@pytest.mark.parametrize("build", FILTERS.values(), ids=FILTERS)
def test_no_key_of_a_filter_fits_another_argument(data, build, tmp_path):
    dataset = me.read(data)
    for limit in (10, 5, 12):
        surveyed = build(dataset, limit).survey()
        assert ids(surveyed) == list(range(limit))
        assert len(surveyed) == limit
        assert sorted(ids(build(dataset, limit).survey().shuffle(seed=1))) == list(range(limit))
    build(dataset, 10).cache(tmp_path / "rows")
    assert ids(build(dataset, 10).cache(tmp_path / "rows")) == list(range(10))
    with pytest.raises(me.CacheMismatchError, match=r"of stage 1, filter, was .* then and is .* now"):
        build(dataset, 5).cache(tmp_path / "rows")
    build(dataset, 10).load_state_dict(build(dataset, 10).state_dict())
    with pytest.raises(me.CheckpointMismatchError, match=r"of stage 1, filter, was .* then and is .* now"):
        build(dataset, 5).load_state_dict(build(dataset, 10).state_dict())


@pytest.mark.parametrize("options", [{}, {"batched": True}, {"batched": True, "one_to_one": True}])
def test_a_map_with_other_arguments_is_refused_and_both_are_named(data, options):
    dataset = me.read(data)
    state = dataset.map(plus, fn_kwargs={"by": 1}, **options).state_dict()
    with pytest.raises(
        me.CheckpointMismatchError,
        match=r"fn_kwargs of stage 1, map, was \{'by': 1\} then and is \{'by': 'two'\} now",
    ):
        dataset.map(plus, fn_kwargs={"by": "two"}, **options).load_state_dict(state)
    state = dataset.map(partial(plus, by=1), **options).state_dict()
    with pytest.raises(
        me.CheckpointMismatchError,
        match=r"fn of stage 1, map, was 'partial\(plus, by=1\)' then and is 'partial\(plus, by=2\)' now",
    ):
        dataset.map(partial(plus, by=2), **options).load_state_dict(state)
    state = dataset.map(plus, version=0, **options).state_dict()
    with pytest.raises(me.CheckpointMismatchError, match=r"version of stage 1, map, was 0 then and is '2\.1' now"):
        dataset.map(plus, version="2.1", **options).load_state_dict(state)
    with pytest.raises(me.CheckpointMismatchError, match=r"version of stage 1, map, was 0 then and is None now"):
        dataset.map(plus, **options).load_state_dict(state)


def test_objects_are_known_by_their_class_alone(data):
    dataset = me.read(data)
    state = dataset.filter(below, fn_kwargs={"limit": Limit(10)}).state_dict()
    dataset.filter(below, fn_kwargs={"limit": Limit(5)}).load_state_dict(state)
    with pytest.raises(me.CheckpointMismatchError, match=r"was \{'limit': '<Limit>'\} then and is \{'limit': 5\} now"):
        dataset.filter(below, fn_kwargs={"limit": 5}).load_state_dict(state)


def test_a_state_stays_small_whatever_the_arguments(data):
    def size(value, *more):
        mapped = me.read(data).map(partial(plus, *more), fn_kwargs={"by": value})
        return len(json.dumps(mapped.state_dict()))

    assert size(list(range(100_000)), *range(1000)) < size(0) + 300
    assert size({str(number): number for number in range(10_000)}, "x" * 10_000) < size(0) + 300


KEYS = st.none() | st.booleans() | st.integers() | st.text(max_size=150) | st.binary(max_size=20)
SCALARS = KEYS | st.floats()
ARGUMENTS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.sets(KEYS, max_size=4)
    ),
    max_leaves=8,
)


def canonical(value):
    """What two equal arguments have in common: tuples are lists, and nan is nan."""
    if isinstance(value, list | tuple):
        return ["list", *map(canonical, value)]
    if isinstance(value, set):
        return ["set", sorted(map(canonical, value), key=repr)]
    if isinstance(value, dict):
        return ["dict", sorted(([canonical(key), canonical(one)] for key, one in value.items()), key=repr)]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return repr(int(value))  # JSON writers may write either
    return repr(value)


@settings(max_examples=100)
@given(then=ARGUMENTS, now=ARGUMENTS, through=st.sampled_from(["fn_kwargs", "partial", "positional"]))
def test_a_state_loads_if_the_arguments_are_equal_and_only_then(data, then, now, through):
    def state(value):
        dataset = me.read(data)
        if through == "fn_kwargs":
            return dataset.map(plus, fn_kwargs={"by": value})
        return dataset.map(partial(plus, by=value) if through == "partial" else partial(plus, value))

    saved = json.loads(json.dumps(state(then).state_dict()))
    state(then).load_state_dict(saved)
    if canonical(then) != canonical(now) and then != now:
        with pytest.raises(me.CheckpointMismatchError):
            state(now).load_state_dict(saved)
