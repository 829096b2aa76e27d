"""Digests in states: written, read back, merged, and refused where they are damaged."""

import pytest

from midepoch.checkpoint.digest import NOT_KEPT, ONE_RANK, RowDigest, merge_digests

MOST = (1 << 64) - 1


@pytest.mark.parametrize(
    "digest",
    [RowDigest(before=MOST), RowDigest(before=1, own=3, rank=1, ranks=4), RowDigest(unknown=ONE_RANK), RowDigest()],
)
def test_a_digest_is_read_back(digest):
    assert RowDigest.read(digest.write()) == digest


ZERO = "0" * 16


@pytest.mark.parametrize(
    "text",
    [
        7,
        {"sums": []},
        "unknown:bad luck",
        "",
        f"{ZERO},{ZERO}",
        f"{ZERO}+{ZERO}",
        f"{ZERO}+{ZERO}/2/2",
        f"{ZERO}+{ZERO}/0/1",
        f"{ZERO}\n",
        ZERO.replace("0", "g"),
    ],
)
def test_a_damaged_digest_is_refused(text):
    with pytest.raises(ValueError, match=r"expected|no rank"):
        RowDigest.read(text)


def test_ranks_are_added_to_what_was_before():
    start = RowDigest(before=MOST)
    ranks = [start.after(own, rank, 3) for rank, own in enumerate([1, 0, 2])]
    assert merge_digests(ranks) == RowDigest(before=2)
    assert [digest.total for digest in ranks] == [0, MOST, 2]
    assert merge_digests(ranks[:2]) == RowDigest(unknown=ONE_RANK)
    assert merge_digests([start, start]) == start
    assert merge_digests([None, None]) is None
    assert merge_digests([ranks[0], None, ranks[2]]) == RowDigest(unknown=NOT_KEPT)
    assert merge_digests([RowDigest(before=5), *ranks[1:]]) == RowDigest(unknown=ONE_RANK)
