"""Parts of a run, each on its own number of ranks and workers, that start from the state of the part before."""

from collections import Counter
from dataclasses import replace

import midepoch as me
from midepoch.dataset import Dataset, plan_of
from midepoch.testing import RankRun
from worlds import through_json


def on(dataset, ranks, rank):
    """The dataset as one of several ranks has it."""
    return Dataset(replace(plan_of(dataset), ranks=ranks, rank=rank))


def run_leg(dataset, layout, state, steps, values_of):
    """The values of all items that a part of a run delivers, and the state after it.

    There is no state if ranks have different numbers of items. ``layout`` has the ranks, and the workers of each.
    """
    ranks, workers = layout
    adopted = on(dataset, 1, 0)
    adopted.load_state_dict(state)
    state = adopted.state_dict()
    runs = [RankRun(on(dataset, ranks, rank), state, workers) for rank in range(ranks)]
    delivered = [list(run.deliver(steps)) for run in runs]
    together = len({len(one) for one in delivered}) == 1
    state = me.merge_states([through_json(run.state_dict()) for run in runs]) if together else None
    return [value for one in delivered for _, item in one for value in values_of(item)], state


def check_out_of_step(dataset, layouts, steps):
    """Each rank of each layout stops after ``steps()`` items. Their merged states lose nothing and repeat nothing."""
    whole, state, got = list(on(dataset, 1, 0)), on(dataset, 1, 0).state_dict(), []
    for ranks, workers in layouts:
        runs = [RankRun(dataset.shard(ranks, rank), state, workers) for rank in range(ranks)]
        for run in runs:
            got += [item for _, item in run.deliver(steps())]
        state = me.merge_states(through_json([run.state_dict() for run in runs]))
    got += [item for _, item in RankRun(on(dataset, 1, 0), state, 1).deliver(None)]
    assert sorted(map(repr, got)) == sorted(map(repr, whole))


def check_edits(dataset, plain, layouts, steps, edits, values_of):
    """Rows are left out after each of two parts of a run: they come no more, and all others come exactly once.

    ``plain`` has the rows that ``dataset`` makes items of; ``edits`` has the rows, as ``without`` takes them, and their
    values.
    """
    whole = Counter(value for item in plain for value in values_of(item))
    came, state = run_leg(dataset, layouts[0], dataset.state_dict(), steps[0], values_of)
    lost = set()
    for layout, count, (rows, values) in zip(layouts[1:], (*steps[1:], None), edits, strict=True):
        if state is None or state["epoch"]:
            return
        dataset, lost = dataset.without(rows), lost | values
        got, state = run_leg(dataset, layout, state, count, values_of)
        assert not set(got) & lost
        came += got
    came = Counter(came)
    assert {one: came[one] for one in whole if one not in lost} == {one: whole[one] for one in whole if one not in lost}
    assert all(came[one] <= whole[one] for one in came)
    dataset.set_epoch(1)
    expected = {one: count for one, count in whole.items() if one not in lost}
    assert Counter(value for item in dataset for value in values_of(item)) == expected
