"""Keyed permutations of range(n): pure, vectorised, and the same on every machine and NumPy release.

Two constructions, chosen by ``n`` alone. Up to ``TABLE`` elements, the permutation is the sorted order of one 64-bit
hash per element, which costs O(n) and is as random as the hash. Above, it is a Feistel network over the smallest power
of two that holds ``n``, with cycle walking, which costs O(1) memory per position.
"""

import numpy as np
import numpy.typing as npt

from midepoch._common.hashing import I64, U64, mix64

TABLE = 1 << 16
ROUNDS = 8


def permute(positions: npt.NDArray[np.integer], n: int, key: int) -> I64:
    """The elements that the permutation ``key`` of ``range(n)`` puts at these positions."""
    if n <= TABLE:
        table: I64 = _table(n, key)[positions]
        return table
    return _feistel(positions.astype(np.int64, copy=False).view(np.uint64), n, key).view(np.int64)


def unpermute(elements: npt.NDArray[np.integer], n: int, key: int) -> I64:
    """The positions at which the permutation ``key`` of ``range(n)`` puts these elements."""
    if n <= TABLE:
        positions = np.empty(n, np.int64)
        positions[_table(n, key)] = np.arange(n)
        found: I64 = positions[elements]
        return found
    return _feistel(elements.astype(np.int64, copy=False).view(np.uint64), n, key, backwards=True).view(np.int64)


def _table(n: int, key: int) -> I64:
    """The whole permutation. The low bits of each hash are the number of its element, so no two hashes are equal."""
    numbers = np.arange(n, dtype=np.uint64)
    low = np.uint64(TABLE - 1)
    hashes = mix64(numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key))
    return (np.sort((hashes & ~low) | numbers) & low).astype(np.int64)


def _feistel(values: U64, n: int, key: int, *, backwards: bool = False) -> U64:
    """Walk the cycle of each value until it is below ``n``, on average in less than two steps."""
    bits = (n - 1).bit_length()
    keys = mix64(np.arange(1, ROUNDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key))
    out = _rounds(values, bits, keys, backwards)
    outside = np.flatnonzero(out >= np.uint64(n))
    while len(outside):
        walked = _rounds(out[outside], bits, keys, backwards)
        out[outside] = walked
        outside = outside[walked >= np.uint64(n)]
    return out


def _rounds(values: U64, bits: int, keys: U64, backwards: bool) -> U64:
    """One pass of the network: each half is mixed with a hash of the other. For odd ``bits`` they differ in width."""
    low_bits = np.uint64(bits // 2)
    high_bits = np.uint64(bits) - low_bits
    low = values & ((np.uint64(1) << low_bits) - np.uint64(1))
    high = values >> low_bits
    for number in reversed(range(ROUNDS)) if backwards else range(ROUNDS):
        if number % 2:
            low = low ^ (mix64(high + keys[number]) >> (np.uint64(64) - low_bits))
        else:
            high = high ^ (mix64(low + keys[number]) >> (np.uint64(64) - high_bits))
    return (high << low_bits) | low
