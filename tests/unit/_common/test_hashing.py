"""Digests and hashes stay what they were: they are in fingerprints, keys and file names."""

import numpy as np

from midepoch._common.hashing import digest, key_of, keys_of, mix64


def test_digests_and_hashes_never_change():
    assert digest(b"midepoch", size=4).hex() == "fb410d82"
    assert digest(b"midepoch").hex() == "dc5bb2495cf1d667"
    assert key_of(42, "row", 0, 1) == 3120129540513706247
    assert mix64(np.arange(3, dtype=np.uint64)).tolist() == [0, 6238072747940578789, 15839785061582574730]


def test_keys_of_many_numbers_are_those_of_single_ones():
    numbers = [0, 1, -1, 7, 10**6, 2**62, -(2**63), 2**63 - 1]
    assert keys_of(numbers).tolist() == [key_of(number) for number in numbers]
    assert keys_of([]).tolist() == []
