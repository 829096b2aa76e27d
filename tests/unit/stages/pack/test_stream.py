"""Where documents end inside of the packs of a stream."""

import numpy as np
import pytest

from midepoch.stages.pack.stream import StreamLayout


def one_by_one(document_ends, begins, ends):
    """The same, token by token."""
    inside = [
        [end - begin for end in document_ends if begin < end < stop] for begin, stop in zip(begins, ends, strict=True)
    ]
    return [[0, *here, stop - begin] for here, begin, stop in zip(inside, begins, ends, strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_the_ends_of_documents_in_packs_that_lie_apart_or_side_by_side(seed):
    rng = np.random.default_rng(seed)
    document_ends = np.cumsum(rng.integers(1, 9, rng.integers(1, 30)))
    tokens, length = int(document_ends[-1]), int(rng.integers(1, 12))
    begins = np.arange(0, tokens, length)[rng.random(-(-tokens // length)) < (0.5 if seed % 2 else 2)]
    ends = np.minimum(begins + length, tokens)
    document_begins = np.concatenate([[0], document_ends[:-1]])
    found = StreamLayout(document_begins, document_ends, begins, ends).seqlens()
    assert [one.tolist() for one in found] == one_by_one(document_ends.tolist(), begins.tolist(), ends.tolist())
    assert all(one.dtype == np.int32 for one in found)
    before = [one.tolist() for one in found[1:]]
    if found:
        found[0][:] = -1
    assert [one.tolist() for one in found[1:]] == before, "no pack shares values with another"
