"""A store hides its options, and differs from other stores with the same URLs."""

import pickle

import pytest

from midepoch.storage.store import REDACTED, Store
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


def test_stores_with_other_endpoints_have_another_identity():
    stores = [Store("s3://b/x", {"endpoint": one}) for one in ("http://a", "http://b")] + [Store("s3://b/x")]
    assert len({store.identity for store in stores}) == 3
