"""The keys of everything that passes are noted, and it passes unchanged."""

import numpy as np
import pytest

from midepoch.stages.flow import Flow, ItemRun, RowRun, noting
from midepoch.values.rows import Rows

KEYS = [3, 1, 2]


def flows():
    numbers = np.array(KEYS, np.int64)
    return {
        "rows": Flow(row_runs=iter([RowRun(Rows({"id": KEYS}), numbers[:, None], numbers)])),
        "items": Flow(item_runs=iter([ItemRun(KEYS, numbers[:, None], numbers)])),
        "single items": Flow(single_items=iter([(key, (key,), key) for key in KEYS])),
    }


@pytest.mark.parametrize("kind", list(flows()))
def test_the_keys_of_every_kind_of_flow_are_noted(kind):
    noted = []
    passing = noting(flows()[kind], lambda keys: noted.extend(keys.tolist()))
    assert [key for _, _, key in passing.as_single_items()] == KEYS
    assert noted == KEYS
