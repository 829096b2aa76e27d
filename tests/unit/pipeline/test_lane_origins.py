"""The rows of items through batches and parts of mixtures."""

import numpy as np
import pytest

from midepoch.pipeline.draws import LOW_BITS, part_salt
from midepoch.pipeline.lane_origins import BatchMembers, DrawOrigins, LaneOrigins
from midepoch.stages.flow import Flow, ItemRun, RowRun
from midepoch.stages.traced import TracedRows
from midepoch.values.rows import Rows


class Numbered:
    """Rows of one file."""

    def trace(self, numbers):
        return TracedRows.of_rows(["a.arrow"] * len(numbers), numbers)


def flows(keys):
    numbers = np.array(keys, np.int64)
    yield Flow(row_runs=iter([RowRun(Rows({"id": list(keys)}), numbers[:, None], numbers)]))
    yield Flow(item_runs=iter([ItemRun(list(keys), numbers[:, None], numbers)]))
    yield Flow(single_items=iter([(key, (key,), key) for key in keys]))


def test_a_batch_is_its_first_input_and_those_after_it():
    members = BatchMembers(3)
    for keys in ([4, 5], [6, 7, 8], [9, 10]):
        members.note(np.array(keys))
    pieces = members.of(np.array([10, 4]))
    assert pieces.inputs.tolist() == [10, 4, 5, 6]
    assert pieces.outputs.tolist() == [0, 1, 1, 1]
    assert pieces.places.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("kind", range(3))
def test_an_item_of_a_mixture_is_traced_to_its_part_and_pass(kind):
    drawn = DrawOrigins()
    passes = [("a", 0, [1, 2]), ("b", 0, [1, 5]), ("a", 1, [2])]
    keys = []
    for part, times_ended, numbers in passes:
        flow = list(flows(numbers))[kind]
        list(drawn.record(part, times_ended, LaneOrigins(Numbered()), flow).as_single_items())
        keys += [(number ^ part_salt(part, times_ended)) & LOW_BITS for number in numbers]
    order = [3, 0, 4, 2, 1]
    rows = drawn.trace(np.array(keys)[order])
    assert rows.items.tolist() == [0, 1, 2, 3, 4]
    assert list(zip(rows.parts, rows.rows.tolist(), strict=True)) == [("b", 5), ("a", 1), ("a", 2), ("b", 1), ("a", 2)]
