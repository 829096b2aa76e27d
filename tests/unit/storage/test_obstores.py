"""Stores of obstore: which options open one, and why others do not."""

import pytest

from midepoch.storage import obstores
from midepoch.storage.clients import known_options
from midepoch.storage.obstores import opener

AZURE = {"account_name": "me", "account_key": "a2V5"}


@pytest.mark.parametrize(
    ("scheme", "options", "reason"),
    [
        ("gs", {"anonymous": True}, ""),
        ("gs", {"token": "t", "endpoint": "http://127.0.0.1:9"}, ""),
        ("gs", {}, "pyarrow finds other keys"),
        ("gs", {"token": "t", "service_account": "a@b"}, "only pyarrow knows the options target_service_account"),
        ("az", AZURE, ""),
        ("abfs", {**AZURE, "tenant_id": "t"}, "only adlfs knows the options tenant_id"),
        ("https", {"headers": {}}, ""),
        ("https", {"encoded": True}, "only fsspec knows the options encoded"),
    ],
)
def test_which_options_open_a_store(scheme, options, reason):
    open_store, said = opener(scheme, "bucket", known_options(scheme, options))
    assert (open_store is None) == bool(reason)
    assert reason in said
    if open_store is not None:
        assert open_store(f"{scheme}://bucket/x", 30.0, 0) is not None


def test_a_forked_process_and_one_without_obstore_open_none(monkeypatch):
    monkeypatch.setattr(obstores, "_is_forked", True)
    assert opener("az", "", AZURE)[0] is None
    assert "was forked" in opener("az", "", AZURE)[1]
    monkeypatch.setattr(obstores.importlib.util, "find_spec", lambda _: None)
    assert "pip install 'midepoch[remote]'" in opener("az", "", AZURE)[1]


@pytest.mark.parametrize("token", ["anon", "google_default", "/keys/me.json", {"type": "service_account"}])
def test_tokens_of_fsspec_are_refused_with_what_to_do(token):
    with pytest.raises(TypeError, match=r"token in storage_options is no access token\. For gs:// pass one, or anony"):
        known_options("gs", {"token": token})
    assert known_options("gs", {"token": "ya29.x"}) == {"access_token": "ya29.x"}
