"""A flow in its three forms, and the rule by which groups resume."""

import pytest

import midepoch as me
from in_memory import CONTEXT, run_of
from midepoch.stages.flow import (
    Context,
    Flow,
    Group,
    check_delivered,
    resume_groups,
)


def test_items_that_are_no_dicts_make_no_columns():
    flow = Flow(single_items=iter([("text", (1,), 0)]))
    with pytest.raises(TypeError, match="needs dict items to make columns of, but got str items"):
        list(flow.as_row_runs(2))


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
