"""Objects of Azure and Google Cloud Storage: found, read and verified by obstore, faults and all."""

import pyarrow as pa
import pytest

import midepoch as me
from cloud_stores import azure_store, gcs_store
from midepoch.storage import retry as retries
from midepoch.storage import store as stores
from objects import parquet_bytes
from worlds import ids


@pytest.fixture(autouse=True)
def _hurried(monkeypatch):
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
        return me.read(url, storage_options=cloud.options)

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


def test_secrets_are_in_no_error(cloud):
    url = cloud.put("x.parquet", rows(0, 50))
    secret = cloud.options.get("token") or cloud.options["account_key"]
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
        with pytest.raises(TypeError, match="storage_options has 'connection_string', which az:// does not know"):
            me.read("az://data/x", storage_options={"connection_string": "AccountName=me"})


def test_an_object_that_was_replaced_just_before_it_is_opened_is_read_anew(cloud, tmp_path):
    """Same size, and the same second, in which stores count: its etag is in the listing."""
    for version in range(3):
        cloud.put("d/x.parquet", rows(50 * version, 50 * version + 50), version=version)
        dataset = me.read(f"{cloud.scheme}://data/d", storage_options=cloud.options, cache_dir=tmp_path / "cache")
        assert ids(dataset) == list(range(50 * version, 50 * version + 50))
