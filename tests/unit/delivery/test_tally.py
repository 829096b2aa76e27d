"""Tallies: numbers of several processes that add up."""

from midepoch.delivery.tally import Tally


def test_tallies_add_up_and_travel_as_bytes():
    one = Tally(*range(1, 15))
    assert Tally.read_back(one.write()) == one
    assert one.plus(one) == tuple(2 * number for number in range(1, 15))
    assert one.plus(one).minus(one) == one
    assert one.plus(Tally()) == one
