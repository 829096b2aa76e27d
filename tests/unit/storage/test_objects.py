"""Objects read by ranges: few requests, all bytes of one version."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from midepoch.errors import DataChangedError, StoreError
from midepoch.storage.objects import LEAST_BYTES
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
    assert file.open().read() == b"1234"
    client.version = "2"
    with pytest.raises(DataChangedError, match="same size, another version"):
        file.check()


def test_a_fetch_is_checked_once(monkeypatch):
    file, client = stored(b"1234")
    opened = []
    monkeypatch.setattr(client, "open", lambda url: opened.append(url) or type(client).open(client, url))
    file.read_at(4, 0)
    file.check()
    file.check()
    assert len(opened) == 2  # to read it, and to check it afterwards
    file._recent = ()
    file.read_at(4, 0)
    file.check()
    assert len(opened) == 3


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


def test_a_changed_object_is_noticed_and_indexed_again():
    url = "memory://data"
    put("/data/part-0.parquet", numbered(0, 40, noise=10_000))
    rows = iter(me.read(url, read_ahead=0))
    first = [next(rows)["id"] for _ in range(10)]
    put("/data/part-0.parquet", numbered(500, 540, noise=10_000))
    with pytest.raises(DataChangedError, match=r"memory:///data/part-0.parquet was changed"):
        first += [row["id"] for row in rows]
    assert first == list(range(10))
    assert ids(me.read(url)) == list(range(500, 540))


def test_one_version_check_covers_every_fetch_that_finished_before_it_began(monkeypatch):
    file, client = stored(bytes(1 << 20))
    assert file.size
    looks, began, go_on = [], Event(), Event()
    plain = type(client).open

    def stat(url):
        looks.append(url)
        found = plain(client, url)
        if len(looks) == 1:
            began.set()
            go_on.wait(100)
        return found

    monkeypatch.setattr(client, "open", stat)
    with ThreadPoolExecutor(3) as pool:
        file.read_at(70_000, 0)
        first = pool.submit(file.check)
        began.wait(100)
        # These came after the first look began, so it says nothing of them.
        file.read_at(70_000, 100_000)
        file.read_at(70_000, 200_000)
        others = [pool.submit(file.check), pool.submit(file.check)]
        client.version = "2"
        go_on.set()
        first.result(100)
        for one in others:
            with pytest.raises(DataChangedError, match="another version"):
                one.result(100)
        client.version = "1"
        assert len(looks) == 3
        looks[:] = ["none waits any more"]
        file.check()
        file.check()
        assert len(looks) == 2


def test_ranges_of_one_fetch_are_requested_side_by_side(monkeypatch):
    file, client = stored(bytes(range(250)) * 10_000)
    plain, waiting = client.read_at, Barrier(3)

    def together(nbytes, offset):
        waiting.wait(100)
        return plain(nbytes, offset)

    monkeypatch.setattr(client, "read_at", together)
    spans = [(1_000_000, 1_000_100), (5, 10), (2_000_000, 2_000_050)]
    fetched = file.fetch(spans, exact=True)
    for begin, end in spans:
        assert bytes(fetched.buffer_at(end - begin, begin)) == client.content[begin:end]
    assert not fetched.fetched_more


def test_an_exact_fetch_asks_for_no_more_bytes_and_uses_those_of_a_small_read():
    file, client = stored(bytes(range(250)) * 1000)
    file.fetch([(100, 200), (240_000, 300_000)], exact=True)
    assert sorted(client.read) == [(100, 100), (240_000, 10_000)]
    file.read_at(10, 1000)
    client.read.clear()
    fetched = file.fetch([(2000, 2100)], exact=True)
    assert bytes(fetched.buffer_at(100, 2000)) == client.content[2000:2100]
    assert client.read == []


def test_an_error_of_one_of_several_ranges_is_raised(monkeypatch):
    file, client = stored(bytes(1 << 20))
    plain = client.read_at

    def broken(nbytes, offset):
        if offset > 500_000:
            raise PermissionError("no")
        return plain(nbytes, offset)

    monkeypatch.setattr(client, "read_at", broken)
    with pytest.raises(StoreError, match="refuses access"):
        file.fetch([(0, 10), (600_000, 600_010)])
