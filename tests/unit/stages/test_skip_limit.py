"""How many skipped samples are too many: a number, a share, or all of them."""

import pytest

from midepoch.stages.skip_limit import ALL, LEAST_SAMPLES, SkipLimit


def first_too_many(limit, is_broken=lambda number: True, samples=5000):
    """The number of samples that are tried until the limit is exceeded; None if it never is."""
    skipped = 0
    for number in range(samples):
        skipped += is_broken(number)
        if is_broken(number) and SkipLimit(limit).is_exceeded(skipped, number + 1):
            return number + 1
    return None


@pytest.mark.parametrize(
    ("limit", "tried"),
    [(0, 1), (7, 8), (0.0, 1), (0.01, 11), (0.1, 101), (0.5, 501), (0.999, 1000), (None, LEAST_SAMPLES), (ALL, None)],
)
def test_where_everything_is_broken(limit, tried):
    assert first_too_many(limit) == tried


def test_a_share_is_one_of_at_least_a_thousand_samples():
    assert first_too_many(0.1, lambda number: number < 100) is None
    assert first_too_many(0.1, lambda number: number % 10 == 9) is None, "a tenth is not more than a tenth"
    assert first_too_many(0.1, lambda number: number % 9 == 0) == 901
    assert first_too_many(0.1, lambda number: number >= 2000) == 2223


def test_one_whole_sample_is_enough_without_a_limit():
    assert first_too_many(None, lambda number: number != 998) is None
    assert first_too_many(None, lambda number: number != 1000) == 1000


@pytest.mark.parametrize("limit", [-1, -0.1, 1.1, float("nan"), float("inf")])
def test_what_is_no_limit_raises(limit):
    with pytest.raises(ValueError, match="max_skipped is"):
        SkipLimit(limit)


@pytest.mark.parametrize("limit", [True, "10%", [1]])
def test_other_types_raise(limit):
    with pytest.raises(TypeError, match="max_skipped must be an integer"):
        SkipLimit(limit)


def test_only_the_share_of_one_allows_an_empty_epoch():
    assert [limit for limit in (None, 0, 1, 10**9, 0.0, 0.5, 1.0) if SkipLimit(limit).allows_all] == [1.0]
    assert not SkipLimit(1).allows_all, "one sample"
