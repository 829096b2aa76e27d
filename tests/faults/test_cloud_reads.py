"""Objects of Azure and Google Cloud Storage: found, read and verified by obstore, faults and all."""

import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest

import midepoch as me
from cloud_stores import azure_store, gcs_store
from midepoch.storage import clients, verified
from midepoch.storage import retry as retries
from midepoch.storage import store as stores
from midepoch.storage.clients import ObjectInfo
from objects import parquet_bytes
from worlds import ids


@pytest.fixture(autouse=True)
def _hurried(monkeypatch):
    monkeypatch.setattr(clients, "GCS_SECONDS", 0.1)
    monkeypatch.setattr(stores, "RetryPolicy", lambda: retries.RetryPolicy(attempts=4, first=0.01, most=0.02))


@pytest.fixture(params=[azure_store, gcs_store])
def cloud(request):
    with request.param() as opened:
        yield opened


def rows(first, stop):
    return parquet_bytes(pa.table({"id": range(first, stop)}), 10, compression="none", use_dictionary=False)


def test_folders_globs_lists_and_resumes(cloud):
    urls = [cloud.put(f"d/p-{number}.parquet", rows(20 * number, 20 * number + 20)) for number in range(3)]
    cloud.put("d/deep er/é+.parquet", rows(60, 80))
    cloud.put("other/x.parquet", rows(100, 110))

    def read(url):
        return me.read(url, storage_options={**cloud.options, "client": "obstore"})

    origin = f"{cloud.scheme}://data"
    assert sorted(ids(read(f"{origin}/d"))) == list(range(80))
    assert ids(read(f"{origin}/d/*.parquet")) == list(range(60))
    assert ids(read(f"{origin}/d/**/é*.parquet")) == list(range(60, 80))
    assert ids(read(urls[::-1])) == [*range(40, 60), *range(20, 40), *range(20)]
    assert len(read(origin)) == 90
    me.testing.assert_resumes(read(f"{origin}/d").shuffle(seed=3).batch(7), every=4)
    with pytest.raises(me.NoDataError, match=rf"{origin}/nothing does not exist"):
        read(f"{origin}/nothing")


def test_an_object_that_is_replaced_for_each_read_and_restored_for_each_other_request(cloud):
    dataset = me.read(cloud.put("x.parquet", rows(0, 50)), storage_options=cloud.options)

    def swap(method, path):
        is_read = cloud.is_read(method, path)
        cloud.put("x.parquet", rows(50, 100) if is_read else rows(0, 50), version=2 if is_read else 1)

    cloud.server.before = swap
    with pytest.raises(me.DataChangedError, match=r"data/x\.parquet was changed while it was in use.*another version"):
        list(dataset)
    cloud.server.before = lambda *_: None
    cloud.put("x.parquet", rows(0, 50))
    assert ids(dataset) == list(range(50))


def test_short_answers_are_asked_for_again(cloud):
    dataset = me.read(cloud.put("x.parquet", rows(0, 50)), storage_options=cloud.options)
    numbers = set()

    def note(method, path):
        if cloud.is_read(method, path):
            numbers.add(cloud.server.requests - 1)

    cloud.server.before = note
    cloud.server.shortens = lambda number: number in numbers and len(numbers) % 2 == 1
    assert ids(dataset) == list(range(50))
    cloud.server.shortens = lambda number: number in numbers
    with pytest.raises(me.StoreError, match=r"got [\d,]+ of [\d,]+ bytes"):
        list(dataset)


@pytest.mark.parametrize("status", [429, 503])
def test_server_errors_are_waited_out(cloud, status):
    dataset = me.read(cloud.put("x.parquet", rows(0, 50)), storage_options=cloud.options)
    cloud.server.spoil = lambda number: status if number % 2 else None
    assert ids(dataset) == list(range(50))


def test_secrets_are_in_no_error(cloud):
    url = cloud.put("x.parquet", rows(0, 50))
    secret = cloud.options.get("token") or cloud.options["connection_string"].split("AccountKey=")[1].split(";")[0]
    for status in (403, 404, 500):
        cloud.server.spoil = lambda _, status=status: status
        with pytest.raises(me.MidepochError) as error:
            me.read(url, storage_options=cloud.options)
        assert secret not in str(error.value)


def test_an_account_in_the_url_must_be_that_of_the_options():
    with azure_store() as cloud:
        cloud.put("x.parquet", rows(0, 50))
        with pytest.raises(
            me.StoreError, match="names the account 'other', and the options or the environment name 'me'"
        ):
            me.read("abfs://data@other.dfs.core.windows.net/x.parquet", storage_options=cloud.options)
        named = me.read("abfss://data@me.dfs.core.windows.net/x.parquet", storage_options=cloud.options)
        assert ids(named) == list(range(50))
        with pytest.raises(me.StoreError, match=r"Neither abfs://data/x nor storage_options name an account"):
            me.read("abfs://data/x", storage_options={"account_key": "a2V5"})


class Adlfs:
    """adlfs as midepoch sees it, which spells all URLs with one scheme and without the account."""

    def __init__(self, objects):
        self.objects = objects

    def stat(self, urls):
        names = [url.split("/", 3)[3] for url in urls]
        return [ObjectInfo(f"abfs://data/{name}", "file", len(self.objects[name]), 1) for name in names]

    def list_objects(self, folder, *, deep):
        below = folder.split("/", 3)[3]
        return self.stat([f"abfs://data/{name}" for name in self.objects if name.startswith(f"{below}/")])

    def open(self, url):
        content = self.objects[url.split("/", 3)[3]]
        return SimpleNamespace(
            size=len(content), version="1", verifies=False, read_at=lambda n, at: pa.py_buffer(content[at : at + n])
        )


@pytest.mark.parametrize("origin", ["az://data", "abfss://data@me.dfs.core.windows.net"])
def test_names_that_obstore_does_not_take_are_left_to_adlfs(monkeypatch, origin):
    with azure_store() as cloud:
        for number, name in enumerate(("d/x.parquet", "d//x.parquet")):
            cloud.put(name, rows(number, number + 1))
        monkeypatch.setattr(verified.importlib.util, "find_spec", lambda _: True)
        other = Adlfs({name: cloud.content(name) for name in cloud.versions})
        monkeypatch.setattr(clients, "connect", lambda *_: other)
        for url, expected in ((f"{origin}/d", [0, 1]), (f"{origin}/d//x.parquet", [1]), (f"{origin}/d/x.parquet", [0])):
            assert sorted(ids(me.read(url, storage_options=cloud.options))) == expected
        monkeypatch.setattr(verified.importlib.util, "find_spec", lambda name: name != "adlfs" or None)
        for url in (f"{origin}/d", f"{origin}/d//x.parquet"):
            with pytest.raises(me.StoreError, match=r"an empty part, or one of dots, and adlfs is not installed"):
                me.read(url, storage_options=cloud.options)


def test_without_adlfs_the_message_says_what_obstore_lacks(monkeypatch):
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(me.StoreError, match=r"only adlfs knows the options tenant_id, and adlfs is not installed"):
        me.read("az://data/x", storage_options={"account_name": "me", "tenant_id": "t"})
