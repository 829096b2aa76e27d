"""Weights that change: keys, ramps, and what each lane makes of them."""

import pytest

import midepoch as me
from midepoch.pipeline.weight_schedule import RAMP_PARTS, RAMP_STEPS, WeightSteps


def test_steps_are_integers_and_ramps_go_in_small_steps():
    plain = WeightSteps(at=(0, 100), weights=((0.7, 0.3), (1.0, 1.0)))
    assert plain.steps == ((0, (7, 3)), (100, (1, 1)))
    ramp = WeightSteps(at=(0, 6400), weights=((3.0, 1.0), (1.0, 3.0)), ramp=True)
    assert [begin for begin, _ in ramp.steps] == [200 * step for step in range(RAMP_STEPS + 1)]
    shares = [a / (a + b) for _, (a, b) in ramp.steps]
    assert shares == sorted(shares, reverse=True)
    for step, share in enumerate(shares):
        assert abs(share - (0.75 - 0.5 * step / RAMP_STEPS)) <= 1 / RAMP_PARTS
    assert (shares[0], shares[-1]) == (0.75, 0.25)
    assert all(sum(weights) <= RAMP_PARTS + 2 for _, weights in ramp.steps)


def test_a_ramp_over_few_items_has_a_step_for_each():
    ramp = WeightSteps(at=(0, 3), weights=((1.0, 0.0), (0.0, 1.0)), ramp=True)
    assert [begin for begin, _ in ramp.steps] == [0, 1, 2, 3]
    assert [weights[1] > 0 for _, weights in ramp.steps] == [False, True, True, True]


@pytest.mark.parametrize("lanes", [1, 2, 3, 7])
def test_the_lanes_change_together_at_the_item(lanes):
    steps = WeightSteps(at=(0, 10, 25), weights=((1.0, 1.0), (1.0, 2.0), (2.0, 1.0)))
    for number, items in enumerate(steps.at):
        starts = [steps.of_lane(lane, lanes)[number][0] for lane in range(lanes)]
        assert sum(starts) == items
        assert max(starts) - min(starts) <= 1


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ({}, TypeError, "takes a dict"),
        ([1, 2], TypeError, "takes a dict"),
        ({5: [1, 1]}, ValueError, "from item 0"),
        ({0: [1, 1], -1: [1, 2]}, ValueError, "at least 0"),
        ({0: [1, 1], 0.5: [1, 2]}, TypeError, "integer"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(weights, error, message):
    with pytest.raises(error, match=message):
        me.WeightSchedule(weights)


@pytest.mark.parametrize("later", [[1], [1, 1, 1], {"a": 1, "b": 1}])
def test_weights_of_other_datasets_raise_where_the_schedule_is_made(later):
    with pytest.raises(ValueError, match="other datasets from item 10 on"):
        me.WeightSchedule({0: [1, 1], 10: later})
    me.WeightSchedule({0: {"a": 1, "b": 2}, 10: {"b": 1, "a": 1}})
    with pytest.raises(ValueError, match="other datasets from item 10 on"):
        me.WeightSchedule({0: {"a": 1, "b": 2}, 10: {"a": 1, "c": 1}})
