"""The schedule of a mixture: exact shares at every draw, by integers."""

from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midepoch.pipeline.schedule import EXACT, REMEMBERED, Schedule, _parts_of_quotients, integer_weights

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


def drawn_one_by_one(schedule, sources):
    counts = [0] * sources
    while True:
        number = schedule.draw(counts)
        counts[number] += 1
        yield number


@quick
@given(many_weights, keys)
def test_after_any_number_of_draws_every_source_is_within_one_of_its_exact_share(weights, key):
    whole = integer_weights(weights)
    total, counts = sum(whole), [0] * len(whole)
    deviations = []
    for draws, number in enumerate(islice(drawn_one_by_one(Schedule(whole, *key), len(whole)), 400), start=1):
        assert number >= 0
        counts[number] += 1
        off = [count - Fraction(draws * weight, total) for count, weight in zip(counts, whole, strict=True)]
        assert all(abs(one) < 1 for one in off)
        deviations.append(off)
    assert all(count == 0 for count, weight in zip(counts, whole, strict=True) if weight == 0)
    for per_source in zip(*deviations, strict=True):  # over any consecutive draws: the difference of two prefixes
        assert max([0, *per_source]) - min([0, *per_source]) < 2


@quick
@given(weights, keys, st.integers(0, 300))
def test_a_draw_is_a_pure_function_of_the_counts(weights, key, cut):
    whole = integer_weights(weights)
    sequence = list(islice(drawn_one_by_one(Schedule(whole, *key), len(whole)), cut + 50))
    counts = [sequence[:cut].count(number) for number in range(len(whole))]
    fresh = Schedule(whole, *key)
    for number in sequence[cut:]:
        assert fresh.draw(counts) == number
        counts[number] += 1


@quick
@given(weights, keys, st.data())
def test_many_draws_at_a_time_are_those_drawn_one_by_one(weights, key, data):
    whole = integer_weights(weights)
    expected = list(islice(drawn_one_by_one(Schedule(whole, *key), len(whole)), 400))
    schedule, counts, at = Schedule(whole, *key), [0] * len(whole), 0
    while at < 300:
        have = data.draw(st.lists(st.integers(0, 40), min_size=len(whole), max_size=len(whole)))
        most = data.draw(st.integers(1, 60))
        drawn = schedule.draws(counts, have, most).tolist()
        assert drawn == expected[at : at + len(drawn)]
        assert all(drawn.count(number) <= have[number] for number in range(len(whole)))
        if len(drawn) < most:
            dry = expected[at + len(drawn)]
            assert drawn.count(dry) == have[dry]
            drawn.append(dry)
        for number in drawn:
            counts[number] += 1
        at += len(drawn)


alike = st.lists(st.sampled_from([1, 2**31 - 1, 2**31, 2**31 + 1]), min_size=2, max_size=5)
rare = st.lists(st.sampled_from([1e-12, 3e-12, 1.0, 2.0]), min_size=2, max_size=30)


@settings(max_examples=150, deadline=None)
@given(st.one_of(many_weights, alike, rare), keys, st.integers(0, 2**40), st.integers(1, 90), st.randoms())
def test_many_draws_are_those_drawn_one_by_one_from_any_counts(weights, key, draws, most, random):
    """Also where items of parts with tiny weights are due, which is once in millions of draws, and where parts tie."""
    whole = integer_weights(weights)
    drawn = [weight * draws // sum(whole) for weight in whole]
    weighted = [part for part, weight in enumerate(whole) if weight]
    for part in random.choices(weighted, k=draws - sum(drawn)):
        drawn[part] += 1
    schedule, counts = Schedule(whole, *key), list(drawn)
    for part in Schedule(whole, *key).draws(drawn, [most] * len(whole), most).tolist():
        assert part == schedule.draw(counts)
        counts[part] += 1
    assert sum(counts) == sum(drawn) + most


def test_more_draws_than_are_found_together_are_the_same():
    whole = integer_weights([0.31837, 0.2, 0.44881, 0.0, 0.03282])
    expected = list(islice(drawn_one_by_one(Schedule(whole, 1), 5), 3000))
    assert Schedule(whole, 1).draws([0] * 5, [3000] * 5, 3000).tolist() == expected


@quick
@given(st.integers(2, EXACT // 2 - 1), st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=20))
def test_quotients_are_in_the_order_of_exact_fractions(divisor, numbers):
    """Of two neighbouring divisors, so that fractions differ by as little as they can."""
    divisors = [divisor, divisor + 1]
    exact = [Fraction(number, by) for by in divisors for number in [*numbers, 1, divisor - 1]]
    rows = [_parts_of_quotients(np.array([*numbers, 1, divisor - 1]), by) for by in divisors]
    assert np.lexsort(np.hstack(rows)).tolist() == sorted(range(len(exact)), key=exact.__getitem__)


def test_a_period_gives_every_source_its_weight_exactly_and_repeats():
    for whole in ((7, 3), (1, 1, 1), (50, 30, 15, 5), (1, 99, 0, 400)):
        total = sum(whole)
        for lane in range(3):
            sequence = list(islice(drawn_one_by_one(Schedule(whole, lane), len(whole)), 3 * total))
            assert [sequence[:total].count(number) for number in range(len(whole))] == list(whole)
            assert sequence == sequence[:total] * 3


def test_a_long_period_is_not_remembered_and_still_the_same():
    whole = (REMEMBERED, 7, 1)
    expected = list(islice(drawn_one_by_one(Schedule(whole, 1), 3), 200))
    assert Schedule(whole, 1).draws([0, 0, 0], [200, 200, 200], 200).tolist() == expected


def test_counts_off_the_schedule_do_not_trust_what_is_remembered():
    schedule = Schedule((5, 2, 1), 0)
    schedule.draws([0, 0, 0], [99] * 3, 50)
    for wrong in ([1, 0, 0], [0, 1, 0], [0, 0, 1], [3, 1, 1]):
        first = schedule.draw(wrong)
        have = [int(number == first) for number in range(3)]
        assert schedule.draws(wrong, have, 50).tolist()[:1] == [first]


def test_lanes_begin_at_different_phases():
    for whole in ((1, 1), (7, 3), (5, 3, 2), (1,) * 9):
        begins = {tuple(islice(drawn_one_by_one(Schedule(whole, 0, 0, lane), len(whole)), 20)) for lane in range(64)}
        assert len(begins) > 1
        firsts = [next(drawn_one_by_one(Schedule(whole, 0, 0, lane), len(whole))) for lane in range(400)]
        assert len(set(firsts)) > 1


@quick
@given(many_weights)
def test_integer_weights_keep_proportions_and_lose_none(weights):
    whole = integer_weights(weights)
    assert all((one > 0) == (weight > 0) for one, weight in zip(whole, weights, strict=True))
    exact = [Fraction(weight) for weight in weights]
    for one, weight in zip(whole, exact, strict=True):
        assert abs(Fraction(one, sum(whole)) - weight / sum(exact)) < Fraction(1, 10**8)
    assert sum(whole) <= EXACT + len(whole)


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
        ([1e-300, 1], (1, EXACT)),
    ],
)
def test_weights_are_taken_as_they_are_written(weights, whole):
    assert integer_weights(weights) == whole


@quick
@given(weights, keys, st.integers(0, 200), st.integers(0, 11))
def test_counts_that_no_schedule_can_have_drawn_are_known(weights, key, draws, wrong):
    whole = integer_weights(weights)
    schedule, counts = Schedule(whole, *key), [0] * len(whole)
    for number in islice(drawn_one_by_one(Schedule(whole, *key), len(whole)), draws):
        counts[number] += 1
    assert schedule.can_have_drawn(counts)
    if len([weight for weight in whole if weight]) > 1:
        source, total = wrong % len(whole), sum(whole)
        counts[source] += 1 + 2 * -(-total // (total - whole[source]))
        assert not schedule.can_have_drawn(counts)
