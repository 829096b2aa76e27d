"""Lanes, turns and readers: the arithmetic, against a simulation that keeps every item by itself."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from midepoch.checkpoint.lanes import LaneAssignment, LaneDelivery, LanePosition, join, lane_cuts


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


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_readers_delivered_together_is_exactly_what_they_delivered(data):
    """Readers stop wherever they like, four times over, with other numbers of them: no item is lost or repeated."""
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    positions, turn, seen = [LanePosition((0,)) for _ in sizes], 0, set()
    for _ in range(4):
        assignment = LaneAssignment(lanes=len(sizes), turn=turn, readers=data.draw(st.integers(1, 6)))
        deliveries = [[] for _ in sizes]
        turns = []
        for reader in range(assignment.readers):
            taken = data.draw(st.integers(0, 8))
            ends = {}
            for number in range(taken):
                slot = number % assignment.period
                lane = assignment.rotation(reader)[slot]
                ordinal = assignment.phase(reader, slot) + assignment.stride * (number // assignment.period)
                item = positions[lane].offset(ordinal) + positions[lane].cursor[0]
                if item < sizes[lane]:
                    assert (lane, item) not in seen
                    seen.add((lane, item))
                    ends[slot] = (ordinal + 1, (item + 1,))
            for slot, lane in enumerate(assignment.rotation(reader)):
                deliveries[lane].append(LaneDelivery(assignment.phase(reader, slot), *ends.get(slot, (0, ()))))
            turns.append(turn + reader + assignment.readers * taken)
        positions = [join(positions[lane], assignment.stride, deliveries[lane]) for lane in range(len(sizes))]
        turn = min(turns)
        for lane, position in enumerate(positions):
            begun = position.cursor[0]
            assert {item for at, item in seen if at == lane} == {
                *range(begun),
                *(begun + delivered_ahead for delivered_ahead in position.delivered_ahead),
            }
