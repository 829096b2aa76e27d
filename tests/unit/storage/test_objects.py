"""Objects read by ranges: few requests, all bytes of one version."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch.errors import StoreError
from midepoch.storage.objects import LEAST_BYTES, joined
from objects import numbered, stored


@given(st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 150_000)), max_size=12))
def test_ranges_are_those_of_the_object(ranges):
    content = bytes(range(251)) * 1000
    file, client = stored(content)
    for offset, nbytes in ranges:
        assert file.read_at(nbytes, offset) == content[offset : offset + nbytes]
    assert sum(n for _, n in client.read) <= sum(max(LEAST_BYTES, nbytes) for _, nbytes in ranges)


def test_a_short_read_is_retried(monkeypatch):
    file, client = stored(b"1234")
    whole, answers = client.read_at, [pa.py_buffer(b"12"), pa.py_buffer(b"")]
    monkeypatch.setattr(client, "read_at", lambda n, at: answers.pop() if answers else whole(n, at))
    assert file.read_at(4, 0) == b"1234"
    answers += [pa.py_buffer(b"")] * 3
    file._recent = ()
    with pytest.raises(StoreError, match="does not answer for s3://bucket/x: ShortReadError: got 0 of 4 bytes"):
        file.read_at(4, 0)


def test_an_error_of_the_store_passes_through_arrow(monkeypatch):
    file, client = stored(numbered(0, 10))

    def broken(nbytes, offset):
        raise PermissionError("AKIA12345 may not")

    monkeypatch.setattr(client, "read_at", broken)
    with pytest.raises(StoreError, match=r"refuses access to s3://bucket/x.*PermissionError: \*\*\* may not"):
        pq.ParquetFile(file.open())


SPANS = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 300)).map(lambda one: (one[0], one[0] + one[1])))


@given(SPANS, st.integers(0, 100), st.integers(1, 500))
def test_every_span_lies_in_one_range(spans, gap, most):
    ranges = joined(spans, gap, most)
    assert ranges == sorted(ranges)
    for begin, end in spans:
        assert any(first <= begin and end <= last for first, last in ranges)
    wanted = {number for begin, end in spans for number in range(begin, end)}
    for first, last in ranges:
        assert last - first <= most or (first, last) in spans
        # What nobody wants lies between two spans, and is no longer than a gap.
        gaps = "".join("x" if number in wanted else " " for number in range(first, last))
        assert gaps.strip() == gaps
        assert not any(len(unwanted) > gap for unwanted in gaps.split("x"))
