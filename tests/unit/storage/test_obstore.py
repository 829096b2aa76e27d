"""The client of obstore: which options and keys open a store, and which names it takes."""

import os
import sys
from types import ModuleType
from urllib.parse import quote

import pytest
from obstore.exceptions import GenericError

import s3
from http_store import http_store
from midepoch.errors import MissingExtraError, StoreError
from midepoch.storage import obstore as client
from midepoch.storage import options as options_of_stores
from midepoch.storage.fsspec import FsspecClient
from midepoch.storage.obstore import ObstoreClient
from midepoch.storage.options import GCS_SCOPE, known_options
from midepoch.storage.store import connect

KEYS = {"key": "k", "secret": "s", "endpoint": "http://127.0.0.1:9", "region": "us-east-1"}


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    monkeypatch.setattr(options_of_stores, "_process", None)


def opened(url, **options):
    """The store of obstore that a URL is read with."""
    scheme = url.partition(":")[0]
    return connect(scheme, url.split("/")[2], known_options(scheme, options))._stores.at(url)


def test_which_client_reads_what():
    assert isinstance(connect("s3", "bucket", known_options("s3", KEYS)), ObstoreClient)
    for scheme in ("https", "memory"):
        assert isinstance(connect(scheme, "", {}), FsspecClient)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_without_obstore_the_extra_is_named(monkeypatch, scheme):
    monkeypatch.setattr(options_of_stores.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs obstore, .* pip install 'midepoch\[remote\]'"):
        connect(scheme, "bucket", {})


@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_a_process_that_was_forked_from_one_with_threads_of_obstore_is_told_of_forkserver(monkeypatch, scheme):
    monkeypatch.setattr(options_of_stores, "_process", os.getppid())
    with pytest.raises(StoreError, match=r"it was forked .*multiprocessing_context='forkserver'"):
        connect(scheme, "bucket", {})


def test_options_of_s3_reach_obstore(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://of-the-environment")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-other-keys")
    store = opened("s3://bucket/x", **KEYS, proxy="http://127.0.0.1:8", connect_timeout=3, request_timeout=7)
    assert store.config["endpoint"] == store.config["endpoint_url_s3"] == "http://127.0.0.1:9"
    assert store.client_options["proxy_url"] == "http://127.0.0.1:8"
    assert store.client_options["allow_http"] == "true"
    assert store.credential_provider() == {
        "access_key_id": "k",
        "secret_access_key": "s",
        "token": None,
        "expires_at": None,
    }
    virtual = opened("s3://bucket/x", **{**KEYS, "endpoint": "minio.local"}, force_virtual_addressing=True)
    assert virtual.config["endpoint"] == "https://bucket.minio.local"
    assert virtual.client_options["allow_http"] == "false"


def test_an_endpoint_of_the_options_goes_before_that_of_the_environment(monkeypatch, s3_port):
    s3.put_all(s3_port, "endpoints", {"x": b"there"})
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    options = known_options("s3", {**KEYS, "endpoint": f"http://127.0.0.1:{s3_port}"})
    assert connect("s3", "endpoints", options).stat("s3://endpoints/x").size == 5


def test_an_ignored_endpoint_of_the_environment_stays_ignored(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    store = opened("s3://bucket/x", key="k", secret="s", region="eu-central-1")
    assert store.config["endpoint_url_s3"] == "https://s3.eu-central-1.amazonaws.com"


def test_boto3_finds_keys_and_region_of_a_profile(monkeypatch, tmp_path):
    (tmp_path / "keys").write_text("[mine]\naws_access_key_id = k\naws_secret_access_key = s\nregion = eu-west-3\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    store = opened("s3://bucket/x")
    assert (store.credential_provider()["access_key_id"], store.config["region"]) == ("k", "eu-west-3")
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(Exception, match="no-such-profile"):
        opened("s3://bucket/x")
    monkeypatch.delenv("AWS_PROFILE")
    (tmp_path / "keys").unlink()
    with pytest.raises(StoreError, match=r"No keys for s3:// were found .*or pass anonymous=True for public data"):
        opened("s3://bucket/x", region="us-east-1")
    assert opened("s3://bucket/x", region="us-east-1", anonymous=True).config["skip_signature"] == "true"


@pytest.mark.parametrize(("status", "expected"), [(None, "eu-central-1"), (403, "us-east-1")])
def test_the_region_comes_from_the_bucket(monkeypatch, status, expected):
    with http_store() as server:
        server.put("bucket", b"", x_amz_bucket_region="eu-central-1")
        server.spoil = lambda _: status
        monkeypatch.setattr(options_of_stores, "AWS", server.url("").rstrip("/"))
        assert opened("s3://bucket/x", key="k", secret="s").config["region"] == expected


def test_options_of_gcs_reach_obstore(monkeypatch):
    store = opened("gs://bucket/x", token="t", endpoint="http://127.0.0.1:9")
    assert store.credential_provider() == {"token": "t", "expires_at": None}
    assert store.config["base_url"] == "http://127.0.0.1:9"
    assert opened("gs://bucket/x", anonymous=True).config["skip_signature"] == "true"
    auth, module = ModuleType("auth"), ModuleType("obstore.auth.google")
    auth.default = lambda scopes: (scopes, "project")
    module.GoogleCredentialProvider = lambda credentials: lambda: {"token": credentials[0], "expires_at": None}
    monkeypatch.setitem(sys.modules, "google", ModuleType("google"))
    monkeypatch.setattr(sys.modules["google"], "auth", auth, raising=False)
    monkeypatch.setitem(sys.modules, "obstore.auth.google", module)
    assert opened("gs://bucket/x").credential_provider()["token"] == GCS_SCOPE


def test_options_of_azure_reach_obstore(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "b3RoZXI=")
    signed = opened("az://c/x", account_name="me", sas_token="?sv=1&sig=s", endpoint="host:1")
    assert signed.credential_provider()["sas_token"] == "?sv=1&sig=s"
    assert (signed.config["account_name"], signed.config["endpoint"]) == ("me", "https://host:1")
    keyed = opened("abfss://c@me.dfs.core.windows.net/x", account_key="a2V5")
    assert (keyed.config["account_name"], keyed.credential_provider()["access_key"]) == ("me", "a2V5")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "env")
    assert opened("az://c/x", anon=True).config["account_name"] == "env"
    assert opened("az://c/x", account_name="mine", anon=True).config["account_name"] == "mine"


@pytest.mark.parametrize("name", ["a//b", "/a", "a/", "a/../b", "./a", "..", "a\nb"])
def test_names_that_obstore_does_not_take(name):
    with pytest.raises(StoreError, match="a part of its path is empty, or is one or two dots"):
        client._name(f"s3://bucket/{name}")


@pytest.mark.parametrize("name", ["a", ".a/..b/c.", "a b%20c#?é~+", "a...b/...c"])
def test_names_that_obstore_takes(name, s3_port):
    s3.put_all(s3_port, "names", {quote(name): name.encode()})
    found = connect("s3", "names", known_options("s3", {**KEYS, "endpoint": f"http://127.0.0.1:{s3_port}"}))
    assert found.stat(f"s3://names/{name}").kind == "file"
    assert found.open(f"s3://names/{name}").read_at(100, 0).to_pybytes() == name.encode()
    assert f"s3://names/{name}" in [one.url for one in found.list_objects("s3://names", deep=True)]


def test_an_error_names_the_server_without_the_query_and_the_user_of_its_address():
    def refused():
        raise GenericError(
            "Generic S3 error: Error performing GET http://me:hush@h:1/b/x?sig=hush in 1.5ms - status code: 500"
            "\n\nDebug source:\nhush"
        )

    with pytest.raises(GenericError) as error:
        client.shortly(refused)
    assert str(error.value) == "Generic S3 error: Error performing GET at http://h:1: status code: 500"
