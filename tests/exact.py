"""Whether values are the same, down to their types, also after a way through shared memory."""

import math
import sys

import numpy as np

from midepoch.delivery.layout import Layout, read_layout, size_of
from midepoch.values.wire import dump


def same(one, other):
    """Equal in values and types, everywhere inside."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    torch = sys.modules.get("torch")  # which test-pythons does without
    if torch is not None and isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.flags.writeable == other.flags.writeable and np.array_equal(one, other)
    return one == other


def sent(item, destination):
    """An item after a way through memory that is overwritten."""
    pickled = dump(item)
    memory = bytearray(size_of(pickled) + (1 << 16))  # with room for the numbers of the layout
    layout = Layout(memoryview(memory))
    layout.add_pickled(pickled, (1,))
    (chunk,) = read_layout(memoryview(memory), layout.finish(), destination)
    memory[:] = bytes(len(memory))
    return chunk.items[0]
