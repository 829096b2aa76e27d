"""A flow in its three forms, and the rule by which groups resume."""

import numpy as np
import pytest

import midepoch as me
from in_memory import CONTEXT, flow_of, run_of
from midepoch.stages.flow import (
    Context,
    Flow,
    Group,
    ItemRun,
    RowRun,
    check_delivered,
    noting,
    resume_groups,
)
from midepoch.values.rows import Rows


def test_the_same_rows_in_each_form_are_the_same_single_items():
    runs = flow_of([3, 1, 2])
    items = Flow(item_runs=flow_of([3, 1, 2]).as_item_runs())
    single = flow_of([3, 1, 2], single=True)
    due = [({"id": number, "text": f"t{number}"}, (number + 1,), number) for number in range(6)]
    assert [list(flow.as_single_items()) for flow in (runs, items, single)] == [due] * 3


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("sizes", [[7], [1] * 7, [2, 5], [3, 4], [4, 3], [6, 1]])
def test_row_runs_have_a_multiple_of_the_size(sizes, single):
    runs = list(flow_of(sizes, single=single).as_row_runs(3))
    assert [len(run) % 3 for run in runs] == [0] * (len(runs) - 1) + [1]
    assert [number for run in runs for number in run.keys.tolist()] == list(range(7))
    assert [len(group) for group in flow_of(sizes, single=single).groups(3)] == [3, 3, 1]


def test_items_that_are_no_dicts_make_no_columns():
    flow = Flow(single_items=iter([("text", (1,), 0)]))
    with pytest.raises(TypeError, match="needs dict items to make columns of, but got str items"):
        list(flow.as_row_runs(2))


def test_only_the_first_group_has_delivered_outputs():
    runs = iter([run_of([4, 5]), run_of([6]), run_of([7])])
    groups = resume_groups(runs, (4, 2), skips=False, stage=1, context=CONTEXT)
    assert [(start, delivered) for _, start, delivered, _ in groups] == [((4,), 2), ((6,), 0), ((7,), 0)]


def test_the_cursors_of_a_groups_outputs():
    cursors, keys = Group(run_of([4, 5]), (4,), delivered=0, skips=False).cursors_and_keys(3)
    assert cursors.tolist() == [[4, 1], [4, 2], [6, 0]], "the last output ends the group"
    assert len(set(keys.tolist())) == 3
    _, other_keys = Group(run_of([5]), (5,), delivered=0, skips=False).cursors_and_keys(3)
    assert not set(keys.tolist()) & set(other_keys.tolist()), "keys depend on the group"


def test_the_cursors_of_a_group_have_a_check_of_its_inputs_where_inputs_may_be_skipped():
    def cursors_of(*numbers):
        return Group(run_of(numbers), (4,), delivered=0, skips=True).cursors_and_keys(2)[0].tolist()

    [first, second, check], last = cursors_of(4, 5)
    assert (first, second, last) == (4, 1, [6, 0, 0])
    assert check > 0
    for others in ([4, 6], [4], [4, 5, 6], [5, 4]):
        assert cursors_of(*others)[0][2] not in (0, check)
        with pytest.raises(me.CheckpointMismatchError, match=r"It begins at row \d of memory now"):
            list(resume_groups(iter([run_of(others)]), (4, 1, check), skips=True, stage=1, context=CONTEXT))
    for groups in ([], [run_of([])]):
        with pytest.raises(me.CheckpointMismatchError, match="other samples are skipped"):
            list(resume_groups(iter(groups), (4, 1, check), skips=True, stage=1, context=CONTEXT))
    [group] = resume_groups(iter([run_of([4, 5])]), (4, 1, check), skips=True, stage=1, context=CONTEXT)
    assert (group.start, group.delivered) == ((4,), 1)


@pytest.mark.parametrize(("delivered", "outputs"), [(1, 1), (3, 2), (1, 0)])
def test_more_delivered_outputs_than_there_are_raise(delivered, outputs):
    with pytest.raises(me.CheckpointMismatchError, match=f"{delivered} outputs .* now has {outputs} output"):
        check_delivered(delivered, outputs)


def test_a_row_is_named_until_a_stage_makes_groups():
    context = Context(seed=0, epoch=0, rows_until=2, locate=lambda key: ("a.arrow", key))
    assert context.name_row(1, 1234) == ", at row 1,234 of a.arrow"
    assert context.name_row(2, 5) == ", in the group from row 5 of a.arrow"
    assert context.name_row(2, 5, single=True) == ", at row 5 of a.arrow"
    assert context.name_row(3, 5) == ""


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
    passing = noting(flows()[kind], noted.extend)
    assert [key for _, _, key in passing.as_single_items()] == KEYS
    assert noted == KEYS
