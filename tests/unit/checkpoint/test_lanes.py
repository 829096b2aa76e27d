"""Lanes, turns and readers: the arithmetic, against a simulation that keeps every item by itself."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from midepoch.checkpoint.lanes import LaneAssignment, lane_cuts


def test_lanes_differ_by_one_at_most_and_the_longer_come_first():
    for size in range(40):
        for lanes in range(1, 9):
            cuts = lane_cuts(size, lanes)
            sizes = [stop - start for start, stop in pairwise(cuts)]
            assert sum(sizes) == size
            assert cuts[0] == 0
            assert sizes == sorted(sizes, reverse=True)
            assert sizes[0] - sizes[-1] <= 1


@given(st.integers(1, 9), st.integers(0, 30), st.integers(1, 9))
def test_each_turn_belongs_to_one_reader_and_one_ordinal_of_its_lane(lanes, turn, readers):
    assignment = LaneAssignment(lanes=lanes, turn=turn, readers=readers)
    turns = {}
    for reader in range(readers):
        rotation = assignment.rotation(reader)
        for number in range(3 * assignment.period):
            slot = number % assignment.period
            ordinal = assignment.phase(reader, slot) + assignment.stride * (number // assignment.period)
            turns[turn + reader + readers * number] = (rotation[slot], ordinal)
    counted = dict.fromkeys(range(lanes), 0)
    for at in sorted(turns):
        lane = at % lanes
        assert turns[at] == (lane, counted[lane])
        counted[lane] += 1
