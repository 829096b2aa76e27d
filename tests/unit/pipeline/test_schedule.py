"""The schedule of a mixture: exact shares at every draw, by integers, and weights that change."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch.pipeline.schedule import (
    NEVER,
    PERIOD,
    RAMP_PARTS,
    RAMP_STEPS,
    ROUNDED,
    DrawTable,
    Shares,
    Weights,
    _parts_of_quotients,
    integer_weights,
)
from schedules import OneByOne

positive = st.one_of(
    st.just(1.0),
    st.floats(0.001, 1000),
    st.floats(1e-12, 1e-6),
    st.floats(1e6, 1e300),
    st.integers(1, 20).map(float),
    st.integers(1, 99).map(lambda percent: percent / 100),
)
weights = st.lists(st.one_of(positive, positive, st.just(0.0)), min_size=1, max_size=12).filter(any)
many_weights = st.one_of(weights, st.integers(13, 80).map(lambda count: [1.0] * count))
keys = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 9))
quick = settings(max_examples=60, deadline=None)


def table(weights, *key):
    return DrawTable([(0, Shares(weights, *key))])


@quick
@given(many_weights, keys)
def test_after_any_number_of_draws_every_source_is_within_one_of_its_exact_share(weights, key):
    whole = integer_weights(weights)
    total, counts = sum(whole), [0] * len(whole)
    deviations = []
    for draws, number in enumerate(table(whole, *key).parts(0, 400).tolist(), start=1):
        counts[number] += 1
        off = [count - Fraction(draws * weight, total) for count, weight in zip(counts, whole, strict=True)]
        assert all(abs(one) < 1 for one in off)
        deviations.append(off)
    assert all(count == 0 for count, weight in zip(counts, whole, strict=True) if weight == 0)
    for per_source in zip(*deviations, strict=True):  # over any consecutive draws: the difference of two prefixes
        assert max([0, *per_source]) - min([0, *per_source]) < 2


alike = st.lists(st.sampled_from([1, 2**17 - 1, 2**17, 2**17 + 1]), min_size=2, max_size=5)
rare = st.lists(st.sampled_from([1e-6, 3e-6, 1.0, 2.0]), min_size=2, max_size=30)


@quick
@given(st.one_of(many_weights, alike, rare), keys, st.integers(0, 2**40))
def test_draws_are_those_drawn_one_by_one_from_anywhere(weights, key, draws):
    """Also where items of parts with tiny weights are due, and where parts tie."""
    of_lane = table(integer_weights(weights), *key)
    expected = OneByOne(integer_weights(weights), *key).parts(90, of_lane.drawn(draws).tolist())
    assert of_lane.parts(draws, draws + 90).tolist() == expected


@quick
@given(st.integers(2, PERIOD // 2 - 1), st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=20))
def test_quotients_are_in_the_order_of_exact_fractions(divisor, numbers):
    """Of two neighbouring divisors, so that fractions differ by as little as they can."""
    divisors = [divisor, divisor + 1]
    exact = [Fraction(number, by) for by in divisors for number in [*numbers, 1, divisor - 1]]
    rows = [_parts_of_quotients(np.array([*numbers, 1, divisor - 1]), by) for by in divisors]
    assert np.lexsort(np.hstack(rows)).tolist() == sorted(range(len(exact)), key=exact.__getitem__)


@pytest.mark.parametrize("whole", [(7, 3), (1, 1, 1), (50, 30, 15, 5), (1, 99, 0, 400), (1024, 0, 3), (4,)])
def test_a_table_says_what_is_drawn_one_by_one_and_repeats(whole):
    total = sum(whole)
    for lane in range(3):
        of_lane, expected = table(whole, lane), OneByOne(whole, lane).parts(2 * total)
        assert expected[:total] == expected[total:]
        assert of_lane.parts(0, 2 * total).tolist() == expected
        assert of_lane.drawn(total).tolist() == list(whole)
        for draws in range(0, 2 * total, 1 + total // 40):
            drawn = of_lane.drawn(draws).tolist()
            assert drawn == [expected[:draws].count(part) for part in range(len(whole))]
            assert of_lane.parts(draws, draws + 9).tolist() == (expected * 50)[draws : draws + 9]
        for part in range(len(whole)):
            own = [draw for draw, one in enumerate(expected) if one == part]
            assert [of_lane.draw_of(part, number) for number in range(len(own))] == own


def test_lanes_begin_at_different_phases():
    for whole in ((1, 1), (7, 3), (5, 3, 2), (1,) * 9):
        begins = {tuple(table(whole, 0, 0, lane).parts(0, 20).tolist()) for lane in range(64)}
        assert len(begins) > 1
        assert len({begin[0] for begin in begins}) > 1


STEPS = {
    "steps": [(0, (7, 3)), (23, (1, 1)), (24, (1, 4)), (60, (2, 1))],
    "a part that comes": [(0, (1, 0)), (10, (1, 3))],
    "a part that goes": [(0, (1, 3)), (10, (1, 0))],
    "an empty step": [(0, (1, 3)), (10, (5, 1)), (10, (1, 1))],
    "three": [(0, (1, 2, 3)), (17, (3, 2, 1))],
}


def changing(steps, key):
    return DrawTable([(begin, Shares(weights, key, step)) for step, (begin, weights) in enumerate(steps)])


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_every_step_has_the_draws_of_its_weights_from_its_own_beginning(steps):
    ends = [*(begin for begin, _ in steps[1:]), 120]
    expected = []
    for step, (begin, weights) in enumerate(steps):
        expected += OneByOne(weights, 3, step).parts(ends[step] - begin)
    of_lane, parts = changing(steps, 3), len(steps[0][1])
    counts = [[expected[:draws].count(part) for part in range(parts)] for draws in range(121)]
    assert [of_lane.drawn(draws).tolist() for draws in range(121)] == counts
    for first in range(0, 120, 7):
        assert of_lane.parts(first, 120).tolist() == expected[first:]
    for part in range(parts):
        own = [draw for draw, one in enumerate(expected) if one == part]
        assert [of_lane.draw_of(part, number) for number in range(len(own))] == own


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_a_table_continues_with_another_from_its_beginning(steps):
    whole, other = table((7, 3, 0)[: len(steps[0][1])], 1), changing(steps, 3)
    drawn, parts = whole.drawn(13), whole.parts(0, 13).tolist() + other.parts(0, 80).tolist()
    whole.continue_with(other, 13)
    assert whole.parts(0, 93).tolist() == parts
    assert (whole.drawn(93) - drawn).tolist() == other.drawn(80).tolist()
    assert whole.drawn_before(1).tolist() == drawn.tolist()
    assert [whole.step(draw) for draw in (0, 12, 13)] == [0, 0, 1]


def test_a_part_that_is_not_drawn_from_any_more_never_comes():
    of_lane = changing(STEPS["a part that goes"], 1)
    drawn = of_lane.drawn(10).tolist()
    assert of_lane.draw_of(1, drawn[1]) == NEVER


@quick
@given(many_weights)
def test_integer_weights_keep_proportions_and_lose_none(weights):
    whole = integer_weights(weights)
    assert all((one > 0) == (weight > 0) for one, weight in zip(whole, weights, strict=True))
    exact = [Fraction(weight) for weight in weights]
    for one, weight in zip(whole, exact, strict=True):
        assert abs(Fraction(one, sum(whole)) - weight / sum(exact)) < Fraction(len(whole), ROUNDED)
    assert sum(whole) <= PERIOD


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ([0.7, 0.3], (7, 3)),
        ([1, 1, 1], (1, 1, 1)),
        ([1 / 3, 2 / 3], (1, 2)),
        ([0.5, 0.25, 0.125, 0.125], (4, 2, 1, 1)),
        ([0, 2.5], (0, 1)),
        ([1e308, 1e308], (1, 1)),
        ([5e-324, 5e-324], (1, 1)),
        ([1e-300, 1], (1, ROUNDED)),
    ],
)
def test_weights_are_taken_as_they_are_written(weights, whole):
    assert integer_weights(weights) == whole


def test_steps_are_integers_and_ramps_go_in_small_steps():
    plain = Weights(at=(0, 100), weights=((0.7, 0.3), (1.0, 1.0)))
    assert plain.steps == ((0, (7, 3)), (100, (1, 1)))
    ramp = Weights(at=(0, 6400), weights=((3.0, 1.0), (1.0, 3.0)), ramp=True)
    assert [begin for begin, _ in ramp.steps] == [200 * step for step in range(RAMP_STEPS + 1)]
    shares = [a / (a + b) for _, (a, b) in ramp.steps]
    assert shares == sorted(shares, reverse=True)
    for step, share in enumerate(shares):
        assert abs(share - (0.75 - 0.5 * step / RAMP_STEPS)) <= 1 / RAMP_PARTS
    assert (shares[0], shares[-1]) == (0.75, 0.25)
    assert all(sum(weights) <= RAMP_PARTS + 2 for _, weights in ramp.steps)


def test_a_ramp_over_few_items_has_a_step_for_each():
    ramp = Weights(at=(0, 3), weights=((1.0, 0.0), (0.0, 1.0)), ramp=True)
    assert [begin for begin, _ in ramp.steps] == [0, 1, 2, 3]
    assert [weights[1] > 0 for _, weights in ramp.steps] == [False, True, True, True]


@pytest.mark.parametrize("lanes", [1, 2, 3, 7])
def test_the_lanes_change_together_at_the_item(lanes):
    steps = Weights(at=(0, 10, 25), weights=((1.0, 1.0), (1.0, 2.0), (2.0, 1.0)))
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


@pytest.mark.parametrize("weights", [3, "12", None])
def test_the_weights_at_a_key_of_a_schedule_are_a_list_or_a_dict(weights):
    with pytest.raises(TypeError, match=r"needs a list or a dict of weights at every key, but at 5 it has "):
        me.WeightSchedule({0: [1, 1], 5: weights})
