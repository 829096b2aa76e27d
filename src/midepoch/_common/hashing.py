"""Keys, hashes and digests, the same on every machine and NumPy release; and the types of arrays that have them."""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


def digest(*chunks: bytes, size: int = 8) -> bytes:
    """A digest of ``size`` bytes of the chunks, one after the other. Where one ends makes no difference."""
    state = blake2b(digest_size=size)
    for chunk in chunks:
        state.update(chunk)
    return state.digest()


def key_of(*parts: int | str) -> int:
    """A 64-bit key from any ints and strings; different parts give unrelated keys."""
    return int.from_bytes(digest(repr(parts).encode()), "little")


def keys_of(numbers: Iterable[int]) -> U64:
    """``key_of`` of each number, in a third of the time."""
    digests = b"".join([blake2b(b"(%d,)" % number, digest_size=8).digest() for number in numbers])
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def mix64(values: U64) -> U64:
    """SplitMix64's finaliser: a bijection of 64-bit words in which every output bit depends on every input bit."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def hash_keys(keys: I64) -> U64:
    """An unrelated 64-bit word for each key, none of them 0 by rule."""
    return mix64(keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
