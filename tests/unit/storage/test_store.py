"""A store hides its options, and differs from other stores with the same URLs."""

import os
import pickle
import re
from threading import Event, Thread

import pytest

from forking import in_a_forked_process
from midepoch.errors import StoreError
from midepoch.storage.options import known_options
from midepoch.storage.retry import REDACTED, RetryPolicy
from midepoch.storage.store import ObjectInfo, Store
from objects import SECRETS


def test_options_must_be_a_dict():
    with pytest.raises(TypeError, match="storage_options must be a dict, not a str"):
        Store("s3://bucket/x", "hush-hush")


def test_a_store_never_shows_its_options():
    store = Store("s3://bucket/x", SECRETS)
    shown = f"{store!r} {store} {store.identity}"
    assert not any(value in shown for value in SECRETS.values())
    assert not hasattr(store, "__dict__")
    again = pickle.loads(pickle.dumps(store))
    assert (again.scheme, again.bucket, again.identity) == ("s3", "bucket", store.identity)
    assert again.redact("a-token-of-it") == REDACTED


def test_the_identity_covers_accounts_and_endpoints_of_other_stores_but_no_secrets():
    def identity(**options):
        return Store("abfs://container/x", options).identity

    others = [
        identity(),
        identity(account_name="a"),
        identity(account_name="b"),
        identity(account_name="a", endpoint_url="http://e"),
        identity(client_kwargs={"endpoint_url": "http://e"}),
        Store("sftp://x", {"host": "h", "port": 1}).identity,
    ]
    assert len({*others}) == len(others)
    assert identity(account_name="a", account_key="k") == identity(account_name="a", account_key="other")


def test_a_failed_request_for_one_of_many_urls_is_repeated_alone():
    asked = []

    class Client:
        def stat(self, url):
            asked.append(url)
            if url == "memory://2" and asked.count(url) < 3:
                raise ConnectionResetError("reset")
            return ObjectInfo(url, "file", 1)

    store = Store("memory://", None, RetryPolicy(attempts=8, first=0, most=0))
    store._clients[os.getpid()] = Client()
    urls = [f"memory://{number}" for number in range(4)]
    assert [info.url for info in store.stat(urls)] == urls
    assert store.retries == 2
    assert sorted(asked) == [*urls[:2], *["memory://2"] * 3, urls[3]]


def test_a_process_that_is_forked_while_a_thread_connects_connects_by_itself(monkeypatch):
    parent, connecting, done = os.getpid(), Event(), Event()

    def connect(*arguments):
        if os.getpid() == parent:
            connecting.set()
            done.wait()
        return "client"

    monkeypatch.setattr("midepoch.storage.store.connect", connect)
    store = Store("memory://")
    thread = Thread(target=store._client)
    thread.start()
    connecting.wait()
    assert in_a_forked_process(store._client) == "client"
    done.set()
    thread.join()


def test_nothing_is_repeated_once_nobody_waits():
    class Failing:
        def stat(self, url):
            asked.append(url)
            stop.set()
            raise ConnectionResetError("reset")

    asked, stop = [], Event()
    store = Store("memory://", None, RetryPolicy(attempts=8, first=0, most=0))
    store._clients[os.getpid()] = Failing()
    store.stop_with(stop)
    for urls in (["memory://1"], ["memory://1", "memory://2"]):
        asked.clear()
        with pytest.raises(StoreError, match="does not answer"):
            store.stat(urls)
        assert len(asked) <= 1


def test_options_have_their_usual_names():
    expected = {"key": "k", "secret": "s", "token": "t", "endpoint": "e", "anonymous": True}
    for names in (
        ("key", "secret", "token", "endpoint", "anon"),
        ("access_key", "secret_key", "session_token", "endpoint_url", "anonymous"),
        ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "endpoint_override", "anon"),
    ):
        assert known_options("s3", dict(zip(names, ("k", "s", "t", "e", True), strict=True))) == expected
    assert known_options("az", {"anon": True, "account_host": "h"}) == {"anonymous": True, "endpoint": "h"}
    assert known_options("oss", {"whatever": 1}) == {"whatever": 1}


def test_the_endpoint_of_s3_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert known_options("s3", {})["endpoint"] == "http://127.0.0.1:1"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2")
    assert known_options("s3", {})["endpoint"] == "http://127.0.0.1:2"
    assert known_options("s3", {"endpoint": "http://127.0.0.1:3"})["endpoint"] == "http://127.0.0.1:3"
    assert known_options("gs", {}) == {}
    here, there = Store("s3://bucket/a"), Store("s3://bucket/a", {"endpoint": "http://127.0.0.1:3"})
    assert here.identity != there.identity  # their indexes and caches are not shared
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert known_options("s3", {}) == {}


def test_options_as_fsspec_nests_them():
    nested = {
        "anon": False,
        "client_kwargs": {"endpoint_url": "http://e", "region_name": "r"},
        "config_kwargs": {"connect_timeout": 1, "read_timeout": 2},
    }
    expected = {"anonymous": False, "endpoint": "http://e", "region": "r"}
    assert known_options("s3", nested) == {**expected, "connect_timeout": 1, "request_timeout": 2}
    with pytest.raises(TypeError, match="storage_options has 'signature_version', which s3:// does not know"):
        known_options("s3", {"config_kwargs": {"signature_version": "s3v4"}})
    with pytest.raises(TypeError, match="several of region, region_name, which mean the same"):
        known_options("s3", {"region": "a", "client_kwargs": {"region": "b"}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sekret": "hush-hush"},
            "storage_options has 'sekret', which s3:// does not know. It knows: key, secret, token",
        ),
        ({"key": "hush-hush", "access_key": "hush-hush"}, "which mean the same"),
        ({"key": "hush-hush"}, "needs both key and secret"),
    ],
)
def test_an_error_names_a_wrong_option_but_not_its_value(options, message):
    with pytest.raises(TypeError, match=re.escape(message)) as error:
        Store("s3://bucket/x", options)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize("token", ["anon", "google_default", "/keys/me.json", {"type": "service_account"}])
def test_tokens_of_fsspec_are_refused_with_what_to_do(token):
    with pytest.raises(TypeError, match=r"token in storage_options is no access token\. For gs:// pass one, or anony"):
        known_options("gs", {"token": token})
    assert known_options("gs", {"token": "ya29.x"}) == {"token": "ya29.x"}
