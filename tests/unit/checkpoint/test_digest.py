"""Digests in states: written, read back, merged, and refused where they are damaged."""

import pytest

from midepoch.checkpoint.digest import NOT_KEPT, ONE_RANK, RowDigest, merge_digests

MOST = (1 << 64) - 1


@pytest.mark.parametrize(
    "digest",
    [
        RowDigest(sums=(0, MOST)),
        RowDigest(sums=(1, 2), own=(3, 0), rank=1, ranks=4),
        RowDigest(unknown=ONE_RANK),
        RowDigest(),
    ],
)
def test_a_digest_is_read_back(digest):
    assert RowDigest.read(digest.write(), 2) == digest


ZEROS = ",".join(["0" * 16] * 2)


@pytest.mark.parametrize(
    "text",
    [
        7,
        None,
        {"sums": []},
        "unknown:bad luck",
        "00,00",
        f"{ZEROS},{'0' * 16}",
        f"{ZEROS},",
        f"{ZEROS}+{ZEROS}",
        f"{ZEROS}+{ZEROS}/2/2",
        f"{ZEROS}+{ZEROS}/0/1",
        f"{ZEROS}\n",
        ZEROS.replace("0", "g"),
    ],
)
def test_a_damaged_digest_is_refused(text):
    with pytest.raises(ValueError, match=r"expected|no rank"):
        RowDigest.read(text, 2)


def test_ranks_are_added_to_what_was_before():
    start = RowDigest(sums=(5, MOST))
    ranks = [RowDigest.of_session(start, own, rank, 3) for rank, own in enumerate([(1, 0), (0, 0), (0, 2)])]
    merged = merge_digests(ranks)
    assert merged == RowDigest(sums=(6, 1))
    assert merged.total == sum(RowDigest(sums=(5, MOST), own=(1, 0), ranks=3).total for _ in range(1)) + 2
    assert merge_digests(ranks[:2]) == RowDigest(unknown=ONE_RANK)
    assert merge_digests([start, start]) == start
    assert merge_digests([None, None]) is None
    assert merge_digests([ranks[0], None, ranks[2]]) == RowDigest(unknown=NOT_KEPT)
    assert merge_digests([RowDigest(), *ranks[1:]]).sums == (5, 1)


def test_a_session_of_one_rank_adds_at_once():
    assert RowDigest.of_session(RowDigest(sums=(MOST,)), (2,), 0, 1) == RowDigest(sums=(1,))
    assert RowDigest.of_session(RowDigest(unknown=NOT_KEPT), (2,), 0, 1) == RowDigest(unknown=NOT_KEPT)
    assert RowDigest(sums=(1,), own=(2,), rank=1, ranks=2).at_start() == RowDigest(unknown=ONE_RANK)
