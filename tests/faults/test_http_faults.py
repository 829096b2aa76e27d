"""Files of a web server: its faults are waited out, and a file that was replaced is noticed."""

import pyarrow as pa
import pytest

import midepoch as me
from http_store import http_store
from midepoch.storage.retry import RetryPolicy
from objects import parquet_bytes
from worlds import ids

MONDAY, TUESDAY = "Mon, 05 Jan 2026 10:00:00 GMT", "Tue, 06 Jan 2026 10:00:00 GMT"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(RetryPolicy, "wait", lambda *_: 0.0)
    with http_store() as store:
        yield store


def rows(first, stop):
    return parquet_bytes(pa.table({"id": range(first, stop)}), 10, compression="none", use_dictionary=False)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_every_second_answer_may_be_an_error(server, status):
    url = server.put("a.parquet", rows(0, 50), Last_Modified=MONDAY)
    server.spoil = lambda number: None if number % 3 == 2 else status
    assert ids(me.read(url)) == list(range(50))


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_stays_away_is_not_taken_for_a_missing_file(server, tmp_path, status):
    url = server.put("a.parquet", rows(0, 50), Last_Modified=MONDAY)
    dataset = me.read(url, index_dir=tmp_path)
    server.spoil = lambda _: status
    with pytest.raises(me.StoreError, match=r"The store does not answer for .*tried 8 times"):
        me.read(url, index_dir=tmp_path)
    with pytest.raises(me.StoreError, match="The store does not answer for"):
        list(dataset)
    assert len(list(tmp_path.glob("*.index"))) == 1
    server.spoil = lambda _: None
    assert ids(dataset) == list(range(50))


def test_a_missing_file_is_named(server):
    with pytest.raises(me.NoDataError, match=r"b\.parquet does not exist"):
        me.read(server.url("b.parquet"))


def test_a_file_that_is_replaced_is_noticed_by_its_time_alone(server, tmp_path):
    url = server.put("a.parquet", rows(0, 50), Last_Modified=MONDAY)
    assert len(rows(0, 50)) == len(rows(50, 100))
    dataset = me.read(url)
    server.put("a.parquet", rows(50, 100), Last_Modified=TUESDAY)
    with pytest.raises(me.DataChangedError, match=r"a\.parquet was changed while it was in use"):
        list(dataset)
    server.put("a.parquet", rows(0, 50), Last_Modified=MONDAY)
    assert ids(me.read(url, cache_dir=tmp_path / "cache")) == list(range(50))
    server.put("a.parquet", rows(50, 100), Last_Modified=TUESDAY)
    assert ids(me.read(url, cache_dir=tmp_path / "cache")) == list(range(50, 100))


def page(*links):
    return "".join(f'<a href="{link}">{link}</a>\n' for link in links).encode()


def test_a_glob_reads_the_links_of_a_page(server, tmp_path):
    for number in range(3):
        server.put(f"data/part-{number}.parquet", rows(20 * number, 20 * number + 20), Last_Modified=MONDAY)
    server.put("data", page("../", "part-0.parquet", "part-1.parquet", "part-2.parquet", "notes.txt"))
    dataset = me.read(server.url("data/*.parquet"), index_dir=tmp_path)
    assert ids(dataset) == list(range(60))
    me.testing.assert_resumes(dataset.shuffle(seed=3).batch(7), every=4)
    assert ids(me.read(server.url("data/part-[12].parquet"))) == list(range(20, 60))


def test_a_folder_is_a_page_of_links(server):
    for number in range(3):
        server.put(f"data/part-{number}.parquet", rows(20 * number, 20 * number + 20), Last_Modified=MONDAY)
    links = (
        "../",
        "part-0.parquet",
        "part-1.parquet",
        "part-2.parquet",
        "notes.txt",
        "sub/",
        "http://127.0.0.1:1/x.parquet",
    )
    server.put("data", page(*links), Content_Type="text/html; charset=utf-8")
    assert ids(me.read(server.url("data"))) == list(range(60))
    assert ids(me.read(server.url("data/"))) == list(range(60))
    server.put("none", page("notes.txt"), Content_Type="text/html")
    with pytest.raises(me.NoDataError, match=r"/none has no file that ends in .*\.arrow"):
        me.read(server.url("none"))
    server.put("x.parquet", rows(0, 20), Content_Type="text/html")
    assert ids(me.read(server.url("x.parquet"))) == list(range(20))
