"""Objects read by ranges: few requests, all bytes of one version."""

from threading import Barrier

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from midepoch.errors import DataChangedError, StoreError
from midepoch.storage.objects import LEAST_BYTES, joined
from midepoch.storage.retry import OtherVersionError
from objects import numbered, put, stored
from worlds import ids


@given(st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 150_000)), max_size=12))
def test_ranges_are_those_of_the_object(ranges):
    content = bytes(range(251)) * 1000
    file, client = stored(content)
    for offset, nbytes in ranges:
        assert file.read_at(nbytes, offset) == content[offset : offset + nbytes]
    assert sum(n for _, n in client.read) <= sum(max(LEAST_BYTES, nbytes) for _, nbytes in ranges)


def test_small_reads_share_a_request():
    file, client = stored(bytes(1 << 20))
    for offset in range(0, 4000, 100):
        file.read_at(100, offset)
    assert client.read == [(0, LEAST_BYTES)]
    file.read_at(200_000, 300_000)
    assert client.read[1:] == [(300_000, 200_000)]


def test_an_object_of_another_size_or_version_is_refused():
    for known in ({"size": 3}, {"version": "2"}):
        with pytest.raises(DataChangedError, match="s3://bucket/x was changed"):
            stored(b"1234", **known)[0].read_at(1, 0)
    file, client = stored(b"1234", size=4, version="1")
    client.version = "2"
    with pytest.raises(DataChangedError, match="same size, another version"):
        file.open().read()


def test_a_read_that_is_of_another_version_is_refused_and_not_tried_again(monkeypatch):
    file, client = stored(b"1234", size=4, version="1")
    asked = []

    def replaced(nbytes, offset):
        asked.append(offset)
        raise OtherVersionError

    monkeypatch.setattr(client, "read_at", replaced)
    with pytest.raises(DataChangedError, match="s3://bucket/x was changed while it was in use"):
        file.read_at(4, 0)
    assert asked == [0]


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


def test_a_changed_object_is_noticed_and_indexed_again(monkeypatch):
    monkeypatch.setattr("midepoch.sources.ahead.FIRST_ROWS", 10)
    url = "memory://data"
    put("/data/part-0.parquet", numbered(0, 40, noise=10_000))
    rows = iter(me.read(url, read_ahead=0))
    first = [next(rows)["id"] for _ in range(10)]
    put("/data/part-0.parquet", numbered(500, 540, noise=10_000))
    with pytest.raises(DataChangedError, match=r"memory:///data/part-0.parquet was changed"):
        first += [row["id"] for row in rows]
    assert first == list(range(10))
    assert ids(me.read(url)) == list(range(500, 540))


def test_ranges_of_one_fetch_are_requested_side_by_side(monkeypatch):
    file, client = stored(bytes(range(250)) * 10_000)
    plain, waiting = client.read_at, Barrier(3)

    def together(nbytes, offset):
        waiting.wait(100)
        return plain(nbytes, offset)

    monkeypatch.setattr(client, "read_at", together)
    spans = [(1_000_000, 1_000_100), (5, 10), (2_000_000, 2_000_050)]
    fetched = file.fetch(spans)
    for begin, end in spans:
        assert bytes(fetched.buffer_at(end - begin, begin)) == client.content[begin:end]


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


def test_ranges_are_joined_where_that_is_allowed_and_no_further():
    assert joined([(0, 10), (10, 20), (25, 30)], gap=5, most=30) == [(0, 30)]
    assert joined([(0, 10), (10, 20), (26, 30)], gap=5, most=30) == [(0, 20), (26, 30)]
    assert joined([(0, 10), (10, 20), (20, 31)], gap=5, most=30) == [(0, 20), (20, 31)]
    assert joined([(0, 50), (50, 51)], gap=5, most=30) == [(0, 50), (50, 51)]
    assert joined([]) == []
