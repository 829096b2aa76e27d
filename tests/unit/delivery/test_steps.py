"""Steps of a session, against all turns taken one by one."""

from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from counted import write_files
from midepoch.checkpoint.state import State
from midepoch.dataset import plan_of
from midepoch.delivery.plan import begin
from surveys import surveyed


def is_first(row):
    return row["id"] < 25


@settings(max_examples=40)
@given(st.sampled_from(["uniform", "filter"]), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
def test_every_item_is_where_the_turns_bring_it(tmp_path_factory, kind, lanes, ranks, batch):
    folder = tmp_path_factory.mktemp("steps")
    write_files(folder)
    dataset = me.read(folder)
    dataset = (surveyed(dataset.filter(is_first)) if kind == "filter" else dataset).batch(batch)
    options = {"reader": 0, "readers": ranks, "workers": 1, "lanes": lanes, "mode": "example"}
    session = begin(plan_of(dataset).pipeline, State(), **options).session
    totals = [session.total(lane) for lane in range(lanes)]
    in_order = [(lane, round_) for round_ in range(max(totals)) for lane in range(lanes) if round_ < totals[lane]]
    expected = {rank: [] for rank in range(ranks)}
    for number, item in enumerate(in_order):
        expected[number % ranks].append(item)
    for rank, items in expected.items():
        assert [session.item(rank, step) for step in range(len(items) + 1)] == [*items, None]
        for step, item in enumerate(items):
            assert session.delivery_of(*item) == (rank, step, in_order.index(item))
    for turns in range(max(totals) * lanes + 2):
        taken = [item for item in in_order if item[1] * lanes + item[0] < turns]
        assert session.items_in(turns) == len(taken)
        assert [session.items_of_reader(rank, turns) for rank in range(ranks)] == [
            sum(item in taken for item in items) for items in expected.values()
        ]
