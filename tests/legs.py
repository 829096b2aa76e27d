"""Parts of a run, each on its own number of ranks and workers, that start from the state of the part before."""

import json
from dataclasses import replace

import midepoch as me
from midepoch.dataset import Dataset, plan_of
from midepoch.testing import RankRun


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
    state = me.merge_states([json.loads(json.dumps(run.state_dict())) for run in runs]) if together else None
    return [value for one in delivered for _, item in one for value in values_of(item)], state
