"""The schedule that a lane draws by, given how often each part has ended."""

import pytest

from midepoch.pipeline.changing_schedule import ChangingSchedule
from midepoch.pipeline.in_turn import InTurn
from midepoch.pipeline.lane_schedules import LaneSchedules
from midepoch.pipeline.period import Period
from midepoch.pipeline.schedule import Schedule
from midepoch.pipeline.weight_schedule import WeightSteps


def schedules(**options):
    defaults = {"weights": (2, 1), "seed": 5, "stop": "all", "steps": None, "in_turn": False, "epoch": 3, "lanes": 2}
    return LaneSchedules(**(defaults | options))


def test_parts_that_have_ended_are_left_out_until_none_is_left():
    of = schedules()
    both, second = of.of_lane(1, [0, 0]), of.of_lane(1, [1, 0])
    assert both.period().tolist() == Schedule([2, 1], 5, 3, 1).period().tolist()
    assert second.period().tolist() == [1]
    assert of.of_lane(1, [1, 1]) is None
    assert of.period(1, [1, 1]) is None


@pytest.mark.parametrize("stop", ["first", "never"])
def test_parts_that_start_over_keep_their_weights(stop):
    assert sorted(schedules(stop=stop).of_lane(0, [7, 2]).period().tolist()) == [0, 0, 1]


@pytest.mark.parametrize("lane", [0, 1])
@pytest.mark.parametrize("ended", [[0, 0], [0, 1]])
def test_a_period_is_that_of_the_schedule(lane, ended):
    of = schedules()
    period = of.period(lane, ended)
    assert isinstance(period, Period)
    assert period.parts(0, 9).tolist() == of.of_lane(lane, ended).draws([0, 0], [9, 9], 9).tolist()


def test_lanes_seeds_and_epochs_have_phases_of_their_own():
    weights = tuple(range(1, 9))
    made = [
        tuple(schedules(weights=weights, **other).of_lane(lane, [0] * 8).period().tolist())
        for lane, other in ((0, {}), (1, {}), (0, {"seed": 6}), (0, {"epoch": 4}))
    ]
    assert len(set(made)) == 4


def test_weights_that_change_have_one_schedule_a_lane():
    of = schedules(steps=WeightSteps(at=(0, 10), weights=((1, 0), (0, 1))))
    first = of.of_lane(0, [0, 0])
    assert isinstance(first, ChangingSchedule)
    assert of.of_lane(0, [1, 0]) is first
    assert of.period(0, [0, 0]) is first
    assert of.of_lane(1, [0, 0]) is not first
    assert first.parts(0, 8).tolist() == [0, 0, 0, 0, 0, 1, 1, 1]


def test_datasets_in_turn():
    of = schedules(in_turn=True)
    assert of.of_lane(0, [0, 0]) == InTurn(2, 0)
    assert of.period(0, [1, 0]) == InTurn(2, 1)
    assert of.of_lane(0, [1, 1]) is None
