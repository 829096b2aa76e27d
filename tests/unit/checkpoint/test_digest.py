"""Digests in states: written, read back, merged, and refused where they are damaged."""

import pytest

from midepoch.checkpoint.digest import ONE_RANK, RowDigest

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
