"""A store hides its options, and differs from other stores with the same URLs."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from time import sleep

import pytest

from forking import in_a_forked_process
from midepoch.errors import StoreError
from midepoch.storage.clients import ObjectInfo
from midepoch.storage.redaction import REDACTED
from midepoch.storage.retry import RetryPolicy
from midepoch.storage.store import Store
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


def test_the_values_of_options_are_redacted_in_texts_of_clients():
    store = Store("abfs://c/x", {"account": {"keys": ["nested-value"]}, "url": "https://hidden.host/x", "n": 12345})
    redacted = store.redact("at hidden.host/x with nested-value, and https://hidden.host/x")
    assert redacted == f"at {REDACTED} with {REDACTED}, and {REDACTED}"


def test_secrets_are_redacted_in_every_form_and_addresses_are_shown():
    store = Store("s3://b/x", {"key": "AKIA+/=x", "secret": "it's\\hush", "endpoint": "http://minio.local:9000"})
    texts = ["AKIA+/=x", "AKIA%2B%2F%3Dx", "AKIA%2B/%3Dx", "it's\\hush", repr("it's\\hush")[1:-1]]
    assert store.redact(" ".join(texts)) == " ".join([REDACTED] * len(texts))
    assert store.redact("http://minio.local:9000 does not answer") == "http://minio.local:9000 does not answer"
    assert Store("abfs://c/x", {"key": b"by\xffte"}).redact(f"{b'by' + bytes([255]) + b'te'!r}") == f"b'{REDACTED}'"
    named = Store("oss://c/x", {"endpoint": "http://oss.local", "config": {"s3_endpoint": "http://other.local"}})
    assert named.redact("http://oss.local http://other.local") == "http://oss.local http://other.local"
    for hidden in ("http://me:hush@host", "http://host?sig=hush"):
        assert "hush" not in Store("abfs://c/x", {"endpoint_url": hidden}).redact(f"{hidden}/x")


def test_stores_with_other_endpoints_have_another_identity():
    stores = [Store("s3://b/x", {"endpoint": one}) for one in ("http://a", "http://b")] + [Store("s3://b/x")]
    assert len({store.identity for store in stores}) == 3


def test_the_identity_covers_accounts_and_endpoints_of_other_stores_but_no_secrets():
    def identity(**options):
        return Store("abfs://container/x", options).identity

    others = [
        identity(),
        identity(account_name="a"),
        identity(account_name="b"),
        identity(account_name="a", endpoint_url="http://e"),
        identity(client_kwargs={"endpoint_url": "http://e"}),
        identity(host="h", port=1),
        identity(connection_string="AccountName=a;AccountKey=k;BlobEndpoint=http://e"),
        identity(connection_string="AccountName=b;AccountKey=k;BlobEndpoint=http://e"),
    ]
    assert len({*others}) == len(others)
    assert identity(account_name="a", account_key="k") == identity(account_name="a", account_key="other")
    assert others[-2] == identity(connection_string="AccountName=a;AccountKey=new;BlobEndpoint=http://e")


def test_the_identity_covers_the_account_of_the_environment(monkeypatch):
    identities = set()
    for name in ("", "a", "b"):
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", name)
        identities.add(Store("az://container/x").identity)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=c;AccountKey=k")
    identities.add(Store("az://container/x").identity)
    assert len(identities) == 4
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=c;AccountKey=new")
    assert Store("az://container/x").identity in identities


def test_a_failed_request_for_one_of_many_urls_is_repeated_alone():
    asked = []

    class Client:
        def stat(self, urls):
            asked.append(list(urls))
            if "memory://2" in urls and len(asked) < 6:
                raise ConnectionResetError("reset")
            return [ObjectInfo(url, "file", 1) for url in urls]

    store = Store("memory://", None, RetryPolicy(attempts=8, first=0, most=0))
    store._clients[os.getpid()] = Client()
    urls = [f"memory://{number}" for number in range(4)]
    assert [info.url for info in store.stat(urls)] == urls
    assert store.retries == len(asked) - 5
    assert asked[0] == urls
    assert sorted(one for (one,) in asked[1:]) == [*urls[:2], *["memory://2"] * (len(asked) - 4), urls[3]]


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


def test_threads_share_one_client(monkeypatch):
    made = []
    monkeypatch.setattr("midepoch.storage.store.connect", lambda *arguments: made.append(sleep(0.01)) or object())
    store = Store("memory://")
    with ThreadPoolExecutor(4) as pool:
        clients = {id(client) for client in pool.map(lambda _: store._client(), range(8))}
    assert len(clients) == len(made) == 1


def test_a_forked_process_sends_requests_side_by_side_with_threads_of_its_own():
    store = Store("memory://x")
    assert store.side_by_side(str, [1, 2, 3]) == ["1", "2", "3"]
    assert in_a_forked_process(lambda: store.side_by_side(str, [4, 5])) == "['4', '5']"
    assert store.side_by_side(str, []) == []


class Stalled:
    """A client that answers only when it may."""

    def __init__(self):
        self.asked, self.may_answer = Event(), Event()

    def stat(self, urls):
        self.asked.set()
        self.may_answer.wait()
        return [ObjectInfo(url, None) for url in urls]


def test_a_process_that_is_forked_in_the_middle_of_a_request_refuses_to_read():
    store, client = Store("s3://bucket/x", SECRETS), Stalled()
    store._clients[os.getpid()] = client
    thread = Thread(target=store.stat, args=(["s3://bucket/x"],))
    thread.start()
    client.asked.wait()
    answer = in_a_forked_process(lambda: Store("s3://bucket/y", SECRETS).stat(["s3://bucket/y"]))
    client.may_answer.set()
    thread.join()
    assert "StoreError: This process was forked while a thread of its parent read from a store" in answer
    assert "connected" in in_a_forked_process(lambda: store._check_fork(os.getpid()) or "connected")


def test_nothing_is_repeated_once_nobody_waits():
    class Failing:
        def stat(self, urls):
            asked.append(urls)
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
