"""Rows in files and blocks, and which of them are kept, as plain arrays."""

import numpy as np


class Bits:
    """Which rows are kept, as an array."""

    def __init__(self, mask):
        self.mask = np.array(mask, bool)
        self.kept_digest = self.mask.tobytes().hex()

    def kept(self, rows):
        return self.mask[rows]

    def kept_before(self, rows):
        return np.concatenate([[0], np.cumsum(self.mask)])[rows]

    def kept_at(self, numbers):
        return np.flatnonzero(self.mask)[numbers]


def starts_of(files):
    blocks = np.cumsum([0, *(rows for file in files for rows in file)]).astype(np.int64)
    return blocks[np.cumsum([0, *map(len, files)])], blocks
