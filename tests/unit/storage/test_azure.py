"""Accounts of Azure: which one is meant, where it answers, what opens it, and what only adlfs can make out."""

import pytest

from midepoch.errors import StoreError
from midepoch.storage.azure import account_of, container_and_host


@pytest.fixture(autouse=True)
def _no_account(monkeypatch):
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN", "CONNECTION_STRING", "ANON"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


def opened(url="abfs://c/x", **options):
    account, reason = account_of(options)
    assert account is not None, reason
    found = account.at(url)
    return found.name, found.endpoint, found.credential


def test_keys_signatures_and_anonymous_requests():
    plain = "https://me.blob.core.windows.net"
    key, signature = {"access_key": "k", "expires_at": None}, {"sas_token": "sv=1&sig=s", "expires_at": None}
    assert opened(account_name="me", account_key="k") == ("me", plain, key)
    assert opened(account_name="me", sas_token="?sv=1&sig=s") == ("me", plain, signature)
    assert opened(account_name="me", anon=True) == ("me", plain, None)
    assert opened(account_name="me", account_host="host:1", account_key="k") == ("me", "https://host:1", key)
    assert opened("abfss://c@me.dfs.core.windows.net/x", account_key="k") == ("me", plain, key)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AccountName=me;AccountKey=a=b==", ("me", "https://me.blob.core.windows.net", "a=b==")),
        ("AccountName=me;AccountKey=k;EndpointSuffix=core.x.cn", ("me", "https://me.blob.core.x.cn", "k")),
        ("AccountName=me;AccountKey=k;BlobEndpoint=http://h:1/me/;", ("me", "http://h:1/me", "k")),
        ("BlobEndpoint=https://me.b.net;SharedAccessSignature=sv=1&sig=s", ("me", "https://me.b.net", "sv=1&sig=s")),
    ],
)
def test_connection_strings(text, expected):
    name, endpoint, credential = opened(connection_string=text, account_name="ignored, as adlfs does")
    assert (name, endpoint, next(iter(credential.values()))) == expected


def test_the_environment_is_read_as_adlfs_reads_it(monkeypatch):
    assert account_of({"account_name": "me"})[0] is None
    monkeypatch.setenv("AZURE_STORAGE_ANON", "true")
    assert opened(account_name="me")[2] is None
    assert account_of({"account_name": "me", "anon": False})[0] is None
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "env")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "k")
    assert opened()[0] == "env"
    assert opened(account_name="mine")[0] == "mine"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"account_name": "me"}, "no account_key, sas_token or connection_string"),
        ({"account_name": "me", "account_key": "k", "location_mode": "secondary"}, "only adlfs knows the options loc"),
        ({"connection_string": "UseDevelopmentStorage=true"}, "connection_string has no account"),
        ({"connection_string": "AccountName=me"}, "neither AccountKey nor SharedAccessSignature"),
    ],
)
def test_what_only_adlfs_can_make_out(options, reason):
    account, said = account_of(options)
    assert account is None
    assert reason in said


def test_the_account_of_a_url_is_not_another_one_than_that_of_the_options():
    account, _ = account_of({"account_name": "me", "account_key": "k"})
    with pytest.raises(StoreError, match="names the account 'other', and the options or the environment name 'me'"):
        account.at("abfs://c@other.dfs.core.windows.net/x")
    nameless, _ = account_of({"account_key": "k"})
    with pytest.raises(StoreError, match="Pass account_name in storage_options"):
        nameless.at("abfs://c/x")
    assert "'k'" not in repr(account)
    assert container_and_host("az://c@h/x") == ("c", "h")
