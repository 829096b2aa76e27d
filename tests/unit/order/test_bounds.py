import pytest

from midepoch.order.bounds import clipped, percent_of, slice_bounds


@pytest.mark.parametrize("start", [None, 0, 3, 9, 10, 12, -1, -10, -12])
@pytest.mark.parametrize("stop", [None, 0, 3, 9, 10, 12, -1, -10, -12])
def test_bounds_are_those_of_python(start, stop):
    assert list(range(*slice_bounds(start, stop, 10))) == list(range(10))[start:stop]


def test_percents_are_rounded_to_the_nearest_row():
    assert slice_bounds("10%", " 33.3 % ", 60) == (6, 20)
    assert slice_bounds("-50%", "100%", 7) == (3, 7)
    assert percent_of(50, 3) == 2
    assert clipped(-2, 10) == 8


@pytest.mark.parametrize("wrong", ["10", "101%", "-101%", "%", ""])
def test_other_texts_are_refused(wrong):
    with pytest.raises(ValueError, match=r"stop is .*; pass a number of rows, or percents"):
        slice_bounds(0, wrong, 10)
