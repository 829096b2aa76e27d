"""What is fetched together: spans in ranges, blocks in groups."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from midepoch.storage.ranges import grouped, joined

SPANS = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 300)).map(lambda one: (one[0], one[0] + one[1])))


@given(SPANS, st.integers(0, 100), st.integers(1, 500))
def test_every_span_lies_in_one_range(spans, gap, most):
    ranges = joined(spans, gap, most)
    assert ranges == sorted(ranges)
    for begin, end in spans:
        assert any(first <= begin and end <= last for first, last in ranges)
    wanted = {number for begin, end in spans for number in range(begin, end)}
    for first, last in ranges:
        assert last - first <= most or (first, last) in spans
        # What nobody wants lies between two spans, and is no longer than a gap.
        gaps = "".join("x" if number in wanted else " " for number in range(first, last))
        assert gaps.strip() == gaps
        assert not any(len(unwanted) > gap for unwanted in gaps.split("x"))


def test_ranges_are_joined_where_that_is_allowed_and_no_further():
    assert joined([(0, 10), (10, 20), (25, 30)], gap=5, most=30) == [(0, 30)]
    assert joined([(0, 10), (10, 20), (26, 30)], gap=5, most=30) == [(0, 20), (26, 30)]
    assert joined([(0, 10), (10, 20), (20, 31)], gap=5, most=30) == [(0, 20), (20, 31)]
    assert joined([(0, 50), (50, 51)], gap=5, most=30) == [(0, 50), (50, 51)]
    assert joined([]) == []


@given(st.lists(st.integers(0, 30), unique=True))
def test_a_group_ends_where_a_number_does_not_join_it(numbers):
    found = grouped(numbers, lambda group, number: number == group[-1] + 1 and number % 5 > 0)
    assert [number for group in found for number in group] == numbers
    for group in found:
        assert group == list(range(group[0], group[-1] + 1))
        assert all(number % 5 for number in group[1:])
    for one, two in pairwise(found):
        assert two[0] != one[-1] + 1 or two[0] % 5 == 0
