"""Whether values are the same, down to their types."""

import math
import sys

import numpy as np


def same(one, other):
    """Equal in values and types, everywhere inside."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float | np.floating):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, np.datetime64 | np.timedelta64):
        return one.dtype == other.dtype and (one == other or (np.isnat(one) and np.isnat(other)))
    torch = sys.modules.get("torch")  # which test-pythons does without
    if torch is not None and isinstance(one, torch.Tensor):
        are_equal = (
            torch.allclose(one, other, 0, 0, equal_nan=True) if one.is_floating_point() else torch.equal(one, other)
        )
        return one.dtype == other.dtype and one.shape == other.shape and are_equal
    if isinstance(one, np.ndarray):
        if (one.dtype, one.shape, one.flags.writeable) != (other.dtype, other.shape, other.flags.writeable):
            return False
        return (
            same(one.tolist(), other.tolist())
            if one.dtype.kind == "O"
            else np.array_equal(one, other, one.dtype.kind in "fcmM")
        )
    return one == other
