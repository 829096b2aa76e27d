"""Lanes, turns and readers: the arithmetic, against a simulation that keeps every item by itself."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from midepoch.checkpoint.lanes import Deal, Share, Standing, join, lane_cuts


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
    deal = Deal(lanes=lanes, turn=turn, readers=readers)
    turns = {}
    for reader in range(readers):
        rotation = deal.rotation(reader)
        for number in range(3 * deal.period):
            place = number % deal.period
            ordinal = deal.phase(reader, place) + deal.stride * (number // deal.period)
            turns[turn + reader + readers * number] = (rotation[place], ordinal)
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
    standings, turn, seen = [Standing((0,)) for _ in sizes], 0, set()
    for _ in range(4):
        deal = Deal(lanes=len(sizes), turn=turn, readers=data.draw(st.integers(1, 6)))
        shares = [[] for _ in sizes]
        turns = []
        for reader in range(deal.readers):
            taken = data.draw(st.integers(0, 8))
            ends = {}
            for number in range(taken):
                place = number % deal.period
                lane = deal.rotation(reader)[place]
                ordinal = deal.phase(reader, place) + deal.stride * (number // deal.period)
                item = standings[lane].ordinal(ordinal) + standings[lane].cursor[0]
                if item < sizes[lane]:
                    assert (lane, item) not in seen
                    seen.add((lane, item))
                    ends[place] = (ordinal + 1, (item + 1,))
            for place, lane in enumerate(deal.rotation(reader)):
                shares[lane].append(Share(deal.phase(reader, place), *ends.get(place, (0, ()))))
            turns.append(turn + reader + deal.readers * taken)
        standings = [join(standings[lane], deal.stride, shares[lane]) for lane in range(len(sizes))]
        turn = min(turns)
        for lane, standing in enumerate(standings):
            begun = standing.cursor[0]
            assert {item for at, item in seen if at == lane} == {
                *range(begun),
                *(begun + done for done in standing.done),
            }


def test_turns_for_a_number_of_items_pass_over_empty_turns():
    deal = Deal(lanes=2, turn=0, readers=1)
    sizes = [1, 3].__getitem__
    assert [deal.turns_of(0, items, sizes) for items in range(6)] == [0, 1, 2, 4, 6, 6]


def test_items_delivered_ahead_are_passed_over_when_counting():
    standing = Standing((10,), (0, 2, 3))
    assert [standing.ordinal(number) for number in range(4)] == [1, 4, 5, 6]
    assert standing.after(1, (12,)) == Standing((12,), (0, 1))
    assert standing.after(2, (15,)) == Standing((15,))
