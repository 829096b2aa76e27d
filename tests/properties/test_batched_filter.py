"""A batched filter judges each row alone: its batches change no item, no order and no state."""

from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from counted import are_kept, is_kept, is_odd, length_of, same_columns

SIZES = st.one_of(st.integers(1, 70), st.sampled_from([None, -1]))
AFTER = {
    "rows": lambda ds: ds,
    "another filter": lambda ds: ds.filter(is_odd),
    "batch": lambda ds: ds.batch(4),
    "batched map": lambda ds: ds.map(same_columns, batched=True, batch_size=5),
    "indices": lambda ds: ds.map(lambda row, index: {"index": index}, with_indices=True),
    "random numbers": lambda ds: ds.map(lambda row, rng: {"noise": int(rng.integers(1 << 40))}, with_rng=True),
    "windows": lambda ds: ds.pack(20, window=4),
    "stream": lambda ds: ds.pack(20, strategy="concat"),
    "mixture": lambda ds: me.mix([ds, ds], weights=[2, 1], stop="all"),
}
BEFORE = {
    "rows": lambda ds: ds,
    "map": lambda ds: ds.map(lambda row: {"length": length_of(row["id"])}),
    "batched map": lambda ds: ds.map(same_columns, batched=True, batch_size=6),
    "arrow": lambda ds: ds.with_format("arrow"),
    "numpy": lambda ds: ds.with_format("numpy"),
}


def values(columns):
    """The columns of any form as lists, so that one function judges them all."""
    return are_kept({"id": columns["id"].to_pylist() if hasattr(columns["id"], "to_pylist") else columns["id"]})


def value(row):
    number = row["id"]
    return is_kept({"id": number.to_pylist()[0] if hasattr(number, "to_pylist") else number})


def plain(items):
    """The items with lists instead of arrays, whose types depend on what they were made of."""
    return [
        {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in item.items()}
        if isinstance(item, dict)
        else item.to_pydict()
        for item in items
    ]


@given(
    before=st.sampled_from(list(BEFORE)),
    after=st.sampled_from(list(AFTER)),
    order=st.sampled_from([None, "row", "block"]),
    lanes=st.integers(1, 4),
    legs=st.lists(st.tuples(SIZES, st.integers(0, 25)), min_size=1, max_size=4),
    shards=st.integers(1, 3),
)
def test_items_do_not_depend_on_batches_nor_on_resumes_with_others(files, before, after, order, lanes, legs, shards):
    if after == "indices" and before == "batched map":
        after = "rows"  # a function of many rows has forgotten which they were
    if before in ("arrow", "numpy") and after != "rows":
        before = "rows"

    def build(keep):
        ds = me.read(files)
        ds = ds if order is None else ds.shuffle(seed=5, level=order)
        return AFTER[after](keep(BEFORE[before](ds))).lanes(lanes)

    def shard(index, size):
        return build(lambda ds: ds.filter(values, batched=True, batch_size=size)).shard(shards, index)

    for index in range(shards):
        expected = list(build(lambda ds: ds.filter(value)).shard(shards, index))
        got, state = [], None
        for size, items in legs:
            run = shard(index, size)
            if state is not None:
                run.load_state_dict(state)
            if len(got) < len(expected):
                got += islice(run, min(items, len(expected) - len(got) - 1))
            state = run.state_dict()
        last = shard(index, legs[0][0])
        last.load_state_dict(state)
        assert plain(got + list(last)) == plain(expected)
