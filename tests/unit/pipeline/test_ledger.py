"""Ledgers: the sums of items, from the keys of what they are made of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch._common.hashing import hash_keys
from midepoch.pipeline.ledger import Grouping, Ledger, SharedLedger, units_in_items
from midepoch.stages.flow import Flow, ItemRun


def grouped(units, groupings):
    """The units of each item, made one grouping after the other."""
    items = [[unit] for unit in units]
    for size, drop_last in groupings:
        groups = [items[begin : begin + size] for begin in range(0, len(items), size)]
        groups = [group for group in groups if len(group) == size or not drop_last]
        items = [[unit for one in group for unit in one] for group in groups]
    return items


def total(units):
    return sum(hash_keys(np.array(units, np.int64)).tolist()) % (1 << 64)


@given(
    groupings=st.lists(st.builds(Grouping, st.integers(2, 4), st.booleans()), max_size=3),
    runs=st.lists(st.integers(0, 9), max_size=6),
    takes=st.lists(st.integers(0, 4), min_size=30, max_size=30),
)
def test_sums_are_those_of_the_items_that_the_groupings_make(groupings, runs, takes):
    ledger, number = Ledger(groupings), 0
    flow = ledger.record(Flow(item_runs=(ItemRun([], np.empty((0, 1), np.int64), np.arange(run)) for run in runs)))
    keys = [key for run in runs for key in range(run)]
    assert list(flow.as_item_runs() or ()) is not None
    items = grouped(keys, groupings)
    assert sum(map(len, items)) == units_in_items(len(keys), groupings)
    for count in takes:
        here = items[number : number + count]
        assert ledger.take(len(here)).tolist() == list(map(total, here))
        number += len(here)


def test_only_the_wanted_items_of_a_shared_lane_are_summed():
    ledger = Ledger((Grouping(2, drop_last=False),))
    ledger.note(np.arange(7))
    items = iter([("a", (1,), 0), ("b", (2,), 1), ("c", (3,), 2), ("d", (4,), 3)])
    shared = SharedLedger(ledger)
    wanted = shared.choose(items, iter([False, True, False, True]))
    assert next(wanted)[0] == "b"
    assert shared.take(1).tolist() == [total([2, 3])]
    assert [item for item, _, _ in wanted] == ["d"]
    assert shared.take(2).tolist() == [total([6])]
    assert shared.take(1).tolist() == []


def test_single_items_are_noted_as_they_pass():
    ledger = Ledger(())
    flow = ledger.record(Flow(single_items=iter([("a", (1,), 7), ("b", (2,), 5)])))
    singles = flow.as_single_items()
    assert next(singles)[0] == "a"
    assert ledger.take(1).tolist() == [total([7])]
    assert next(singles)[0] == "b"
    assert ledger.take(1).tolist() == [total([5])]


@pytest.mark.parametrize("key", [0, 1, (1 << 62) + 1])
def test_no_key_counts_as_nothing(key):
    assert total([key]) != 0
