"""Bytes are verified where they are used: answers that are too short, or of another version than HEAD says."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
import s3
from forking import in_a_forked_process
from http_store import http_store
from midepoch.storage import obstore
from midepoch.storage import retry as retries
from midepoch.storage import store as stores

ROWS = 200


@pytest.fixture
def attempts():
    return 4


@pytest.fixture(autouse=True)
def _hurried(monkeypatch, attempts):
    monkeypatch.setattr(stores, "RetryPolicy", lambda: retries.RetryPolicy(attempts=attempts, first=0.01, most=0.02))


def content(kind, seed=0):
    table = pa.table({"id": range(ROWS), "x": np.random.default_rng(seed).integers(0, 1 << 60, ROWS)})
    sink = io.BytesIO()
    if kind == "parquet":
        pq.write_table(table, sink, row_group_size=50, compression="none", use_dictionary=False)
    else:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
    return sink.getvalue()


def rows_of(kind, seed=0):
    file = io.BytesIO(content(kind, seed))
    table = pq.read_table(file) if kind == "parquet" else pa.ipc.open_file(file).read_all()
    return table.to_pylist()


@pytest.fixture(params=["parquet", "arrow"])
def kind(request):
    return request.param


@pytest.fixture
def url(s3_port, kind):
    s3.put_all(s3_port, "verified", {f"x.{kind}": content(kind)})
    return f"s3://verified/x.{kind}"


def test_a_short_answer_of_s3_is_asked_for_again(url, proxy, kind):
    seen = set()

    def first_time(request):
        if not request.is_read or request.range in seen:
            return None
        seen.add(request.range)
        return "short"

    proxy.spoil = first_time
    assert list(me.read(url, storage_options=proxy.options)) == rows_of(kind)
    assert seen


def test_answers_of_s3_that_stay_short_are_an_error(url, proxy):
    dataset = me.read(url, storage_options=proxy.options)
    proxy.spoil = lambda request: "short" if request.is_read else None
    with pytest.raises(me.StoreError, match=r"does not answer for s3://verified/x.*got [\d,]+ of [\d,]+ bytes"):
        list(dataset)


@pytest.mark.parametrize("unforwarded", [(), ("If-Match",)], ids=["If-Match", "the etag of GET"])
def test_an_object_that_is_replaced_for_each_get_and_restored_for_each_head(url, proxy, s3_port, kind, unforwarded):
    dataset = me.read(url, storage_options=proxy.options)
    proxy.unforwarded = unforwarded

    def swap(request):
        s3.put_all(s3_port, "verified", {request.key: content(kind, seed=int(request.is_read))})

    proxy.spoil = swap
    with pytest.raises(me.DataChangedError, match=r"s3://verified/x.*was changed while it was in use.*another version"):
        list(dataset)
    proxy.spoil = None
    s3.put_all(s3_port, "verified", {f"x.{kind}": content(kind)})
    assert list(dataset) == rows_of(kind)


@pytest.mark.parametrize("attempts", [100])  # a busy machine may be slow for a while
def test_an_answer_that_comes_too_slowly_is_given_up(url, proxy, kind, monkeypatch):
    dataset = me.read(url, storage_options=proxy.options)
    monkeypatch.setattr(obstore, "HTTP_SECONDS", 1.0)
    monkeypatch.setattr(obstore, "LEAST_CLASS", 1 << 12)
    seen = []

    def first_time(request):
        if request.is_read and not seen:
            seen.append(request)
            return "drip"
        return None

    proxy.spoil = first_time
    assert list(dataset) == rows_of(kind)
    assert len(proxy.reads()) > 1


def test_a_forked_process_does_not_read_and_is_told_of_forkserver(url, proxy, kind):
    dataset = me.read(url, storage_options=proxy.options)
    assert list(dataset) == rows_of(kind)
    for opened in (lambda: dataset, lambda: me.read(url, storage_options=proxy.options)):
        answer = in_a_forked_process(lambda opened=opened: sum(row["x"] for row in opened()))
        assert "StoreError: s3:// URLs cannot be read in this process: it was forked" in answer
        assert "multiprocessing_context='forkserver'" in answer


MONDAY, TUESDAY = "Mon, 05 Jan 2026 10:00:00 GMT", "Tue, 06 Jan 2026 10:00:00 GMT"


@pytest.mark.parametrize("headers", [{"ETag": '"{}"'}, {"ETag": 'W/"{}"'}, {"Last_Modified": "{}"}], ids=str)
def test_a_file_of_a_web_server_that_is_replaced_for_each_get_and_restored_for_each_head(kind, headers):
    (name, form), *_ = headers.items()
    with http_store() as server:

        def put(seed):
            return server.put(f"x.{kind}", content(kind, seed), **{name: form.format((MONDAY, TUESDAY)[seed])})

        dataset = me.read(put(0))
        server.before = lambda method, _: put(int(method == "GET"))
        with pytest.raises(me.DataChangedError, match="another version"):
            list(dataset)
        server.before = lambda *_: None
        put(0)
        assert list(dataset) == rows_of(kind)


@pytest.mark.parametrize("headers", [{"ETag": '"a"'}, {}], ids=str)
def test_a_short_answer_of_a_web_server_is_asked_for_again(kind, headers):
    with http_store() as server:
        dataset = me.read(server.put(f"x.{kind}", content(kind), **headers))
        server.shortens = lambda number: number % 2 == 0
        assert list(dataset) == rows_of(kind)
        server.shortens = lambda number: True
        with pytest.raises(me.StoreError, match=r"got [\d,]+ of [\d,]+ bytes"):
            list(dataset)
