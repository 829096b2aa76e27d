"""A schedule whose weights change: its closed form is what drawing one by one gives."""

from itertools import accumulate

import numpy as np
import pytest

from midepoch.pipeline.changing_schedule import NEVER, ChangingSchedule

STEPS = {
    "steps": [(0, (7, 3)), (23, (1, 1)), (24, (1, 4)), (60, (2, 1))],
    "a part that comes": [(0, (1, 0)), (10, (1, 3))],
    "a part that goes": [(0, (1, 3)), (10, (1, 0))],
    "an empty step": [(0, (1, 3)), (10, (5, 1)), (10, (1, 1))],
    "three": [(0, (1, 2, 3)), (17, (3, 2, 1))],
}


@pytest.fixture(params=STEPS)
def steps(request):
    return STEPS[request.param]


def one_by_one(schedule, count, parts):
    drawn, found = [0] * parts, []
    for _ in range(count):
        part = schedule.draw(drawn)
        assert schedule.can_have_drawn(drawn)
        drawn[part] += 1
        found.append(part)
    return found


def test_the_closed_form_is_what_is_drawn_one_by_one(steps):
    parts = len(steps[0][1])
    found = one_by_one(ChangingSchedule(steps, 1, 2), 120, parts)
    schedule = ChangingSchedule(steps, 1, 2)
    counts = [np.bincount(found[:draws], minlength=parts).tolist() for draws in range(121)]
    assert [schedule.drawn(draws).tolist() for draws in range(121)] == counts
    for first in range(0, 120, 7):
        assert schedule.parts(first, 120).tolist() == found[first:]
    for part in range(parts):
        own = [draw for draw, one in enumerate(found) if one == part]
        assert [schedule.draw_of(part, number) for number in range(len(own))] == own
        assert schedule.draws_from(part) == bool(own)


def test_many_draws_at_a_time_stop_at_a_step_and_at_what_is_available(steps):
    parts = len(steps[0][1])
    found = one_by_one(ChangingSchedule(steps, 5), 100, parts)
    schedule = ChangingSchedule(steps, 5)
    got, drawn = [], [0] * parts
    while len(got) < 100:
        some = schedule.draws(drawn, [9] * parts, 40).tolist()
        assert some
        got += some
        drawn = np.bincount(got, minlength=parts).tolist()
    assert got[:100] == found


def test_every_step_keeps_its_shares_within_one_item(steps):
    parts = len(steps[0][1])
    found = one_by_one(ChangingSchedule(steps, 3), 200, parts)
    for (begin, weights), (end, _) in zip(steps, [*steps[1:], (200, ())], strict=True):
        for part in range(parts):
            share = weights[part] / sum(weights)
            for draws, count in enumerate(accumulate(one == part for one in found[begin:end]), start=1):
                assert abs(count - share * draws) < 1


def test_a_part_that_is_not_drawn_from_any_more_never_comes_and_other_counts_are_refused():
    schedule = ChangingSchedule(STEPS["a part that goes"], 1)
    drawn = schedule.drawn(10).tolist()
    assert schedule.draw_of(1, drawn[1]) == NEVER
    assert not schedule.can_have_drawn([drawn[0] + 3, drawn[1] - 3])
    assert schedule.can_have_drawn([drawn[0] + 3, drawn[1]])
