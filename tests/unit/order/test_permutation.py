"""Permutations: complete, frozen, and as random as those of NumPy."""

import numpy as np
import pytest

from midepoch._common.hashing import key_of
from midepoch.order.permutation import TABLE, permute

KEYS = [key_of("test", number) for number in range(400)]
AROUND_THE_TABLE = [TABLE - 1, TABLE, TABLE + 1, TABLE + 2]
POWERS = [1 << bits for bits in (1, 2, 3, 8, 10, 15, 17, 18, 20)]
SIZES = [0, 1, 2, 3, 5, 7, 100, 1000, *AROUND_THE_TABLE, *(n + d for n in POWERS for d in (-1, 0, 1)), 100_003, 300_000]
HUGE = [2**32 + 1, 2**32 + 15, 2**40, 2**40 + 1, 2**53 + 3, 2**62 - 1, 2**62, 2**62 + 5, 2**63 - 1]


def whole(n, key):
    return permute(np.arange(n), n, key)


@pytest.mark.parametrize("n", sorted(set(SIZES)))
@pytest.mark.parametrize("key", [0, 2**64 - 1, KEYS[0]])
def test_every_number_comes_once(n, key):
    assert np.array_equal(np.sort(whole(n, key)), np.arange(n))


@pytest.mark.parametrize("n", HUGE)
def test_samples_of_huge_ranges_are_distinct_and_in_range(n):
    ends = 100_000
    positions = np.concatenate([np.arange(ends), n // 2 + np.arange(ends), n - ends + np.arange(ends)]).astype(np.int64)
    out = permute(positions, n, KEYS[1])
    assert out.dtype == np.int64
    assert out.min() >= 0
    assert out.max() < n
    assert len(np.unique(out)) == len(positions)
    assert out.max() > n - n // 1000
    assert out.min() < n // 1000


@pytest.mark.parametrize("n", [10, TABLE, TABLE + 1, 2**40])
def test_a_position_goes_to_the_same_place_alone_and_among_others(n):
    positions = np.random.default_rng(0).integers(0, n, 50)
    together = permute(positions, n, KEYS[2])
    assert [int(permute(positions[at : at + 1], n, KEYS[2])[0]) for at in range(50)] == together.tolist()


GOLDEN_KEY = 0x0123456789ABCDEF
GOLDEN = {
    1: [0, 0, 0, 0, 0],
    2: [1, 0, 1, 0, 0],
    3: [1, 0, 2, 0, 2],
    10: [5, 6, 1, 4, 9],
    1000: [885, 18, 726, 388, 67],
    65536: [53267, 50290, 12155, 35975, 39598],
    65537: [15220, 37682, 62123, 13398, 32788],
    100003: [15220, 37682, 97964, 98577, 26021],
    1048576: [394324, 474044, 102535, 808278, 1037060],
    4294967297: [1331951794, 1479855300, 1402447420, 1052273938, 792027114],
    1099511627776: [690095336577, 504857086269, 340464054561, 94408777610, 172683786020],
    9007199254740995: [3852664844055923, 3986467184538326, 1801137916337401, 5096922206571902, 6965620908988497],
    4611686018427387909: [
        2253695120305077833,
        886498523656424752,
        4171543189050069893,
        1757333068201884449,
        3726608171851767995,
    ],
}
KEY_GOLDEN = 3120129540513706247


def test_the_key_of_some_parts_is_frozen():
    assert key_of(42, "row", 0, 1) == KEY_GOLDEN
    assert len({key_of(1, 2), key_of(12), key_of("1", 2), key_of(1, "2"), key_of(2, 1)}) == 5


@pytest.mark.parametrize("n", GOLDEN)
def test_permutations_are_frozen(n):
    """A change of these orders would break every checkpoint of a shuffled run."""
    positions = np.array([0, 1, 2, n // 2, n - 1]) % n
    assert permute(positions, n, GOLDEN_KEY).tolist() == GOLDEN[n]


def ours_and_numpys(n, keys):
    """Permutations of ours and as many of numpy's, on which both are measured."""
    random = np.random.default_rng(2024)
    return [whole(n, key) for key in keys], [random.permutation(n) for _ in keys]


@pytest.mark.parametrize("n", [1000, TABLE, TABLE + 7, 200_000])
def test_consecutive_differences_are_as_distinct_as_numpys(n):
    """Of n differences modulo n, a random permutation has about n * (1 - 1/e) distinct ones."""
    ours, numpys = ([len(np.unique(np.diff(one) % n)) for one in many] for many in ours_and_numpys(n, KEYS[:10]))
    expected = n * (1 - np.exp(-1))
    deviation = 6 * np.sqrt(n * np.exp(-1) * (1 - 2 * np.exp(-1)))
    assert all(abs(count - expected) < deviation for count in numpys)
    assert all(abs(count - expected) < deviation for count in ours)


def serial_correlation(sequence):
    """The correlation of a sequence with itself, shifted by one."""
    return float(np.corrcoef(sequence[:-1], sequence[1:])[0, 1])


@pytest.mark.parametrize("n", [TABLE, TABLE + 1, 150_001, 1 << 18, 2**40 + 1, 2**62])
@pytest.mark.parametrize("bit", range(6))
def test_low_bits_are_not_serially_correlated(n, bit):
    count = min(n, 200_000)
    positions = np.arange(count)
    limit = 5 / np.sqrt(count)
    random = np.random.default_rng(7)
    for key in KEYS[:5]:
        numpys = random.permutation(n)[:count] if n <= 1 << 20 else random.integers(0, n, count)
        assert abs(serial_correlation(numpys >> bit & 1)) < limit
        assert abs(serial_correlation(permute(positions, n, key) >> bit & 1)) < limit


def chi_square(observed, expected):
    return float(((observed - expected) ** 2 / expected).sum())


def limit_of(freedom):
    """What a chi-square variable exceeds with a probability below 1e-6 (Wilson and Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + 4.9 * np.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize("n", [2, 3, 8, 20])
def test_each_element_is_at_each_position_equally_often_over_keys(n):
    keys = [key_of("chi", number) for number in range(2000)]
    for permutations in ours_and_numpys(n, keys):
        seats = np.zeros((n, n))
        np.add.at(seats, (np.tile(np.arange(n), len(keys)), np.concatenate(permutations)), 1)
        # Rows and columns have fixed sums, which scales the statistic by n / (n - 1).
        assert chi_square(seats, len(keys) / n) * (n - 1) / n < limit_of((n - 1) ** 2)


@pytest.mark.parametrize("n", [TABLE, TABLE + 1, 1 << 17, 250_007])
def test_ranges_of_positions_are_spread_evenly_over_ranges_of_values(n):
    buckets = 32
    ours, numpys = ours_and_numpys(n, KEYS[:8])
    for one in [*numpys, *ours]:
        table, *_ = np.histogram2d(np.arange(n), one, bins=buckets, range=[[0, n], [0, n]])
        expected = np.outer(table.sum(1), table.sum(0)) / n
        assert chi_square(table, expected) < limit_of((buckets - 1) ** 2)
