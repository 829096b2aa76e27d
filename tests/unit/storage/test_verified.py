"""Verified reads: when obstore is used, with which options, and what an answer says of its version."""

import sys
from datetime import UTC, datetime

import pytest

from midepoch.errors import StoreError
from midepoch.storage import obstores, verified
from midepoch.storage.clients import ArrowClient, FsspecClient, known_options
from midepoch.storage.verified import VerifiedClient, connect, is_of_version

KEYS = {"key": "k", "secret": "s", "endpoint": "http://127.0.0.1:9", "region": "us-east-1"}


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "boto3", None)


def s3(**options):
    return connect("s3", "bucket", known_options("s3", options))


def test_obstore_is_used_where_it_can_be(monkeypatch):
    assert isinstance(s3(**KEYS), VerifiedClient)
    assert isinstance(s3(anonymous=True, region="us-east-1"), VerifiedClient)
    assert isinstance(connect("https", "", {"headers": {"Authorization": "b"}}), VerifiedClient)
    assert isinstance(connect("https", "", {"headers": {"X-Api-Key": "b"}}), FsspecClient)
    assert isinstance(s3(**KEYS, client="pyarrow"), ArrowClient)
    assert isinstance(s3(**KEYS, proxy="http://127.0.0.1:9"), ArrowClient)
    assert isinstance(s3(region="us-east-1"), ArrowClient), "only pyarrow finds other keys"
    assert isinstance(connect("http", "", {"client": "fsspec"}), FsspecClient)
    assert isinstance(connect("http", "", {"encoded": True}), FsspecClient)
    assert isinstance(connect("memory", "", {}), FsspecClient)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert isinstance(s3(region="us-east-1"), VerifiedClient)
    monkeypatch.setattr(obstores.importlib.util, "find_spec", lambda name: None)
    assert isinstance(s3(**KEYS), ArrowClient)
    assert isinstance(connect("https", "", {}), FsspecClient)


def test_one_warning_says_what_is_missing_without_obstore(monkeypatch, caplog):
    monkeypatch.setattr(obstores.importlib.util, "find_spec", lambda name: None)
    verified._warn_of_plain_s3.cache_clear()
    s3(**KEYS, client="pyarrow")
    connect("https", "", {})
    assert not caplog.records, "it was asked for, or gives up slow answers by itself"
    for _ in range(2):
        s3(**KEYS)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "pip install 'midepoch[remote]'" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client": "obstore", "role_arn": "r"}, "because only pyarrow knows the options role_arn"),
        ({"client": "obstore"}, "because no keys are in storage_options or in the environment"),
        ({**KEYS, "client": "curl"}, "client in storage_options must be 'obstore' or 'pyarrow' for s3:// URLs"),
    ],
)
def test_a_client_that_was_asked_for_and_cannot_be_used_is_an_error(options, message):
    with pytest.raises(StoreError, match=message):
        s3(**options)


def test_an_ignored_endpoint_of_the_environment_stays_ignored(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert isinstance(s3(key="k", secret="s", region="us-east-1"), ArrowClient)


def test_a_token_of_the_environment_is_not_used_with_keys_of_the_options(monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-other-keys")
    credentials = obstores._s3_credentials(known_options("s3", KEYS))
    assert credentials() == {"access_key_id": "k", "secret_access_key": "s", "token": None, "expires_at": None}


def test_boto3_finds_the_keys_of_a_profile(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "boto3")
    (tmp_path / "keys").write_text("[mine]\naws_access_key_id = k\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for profile, expected in (("mine", VerifiedClient), ("no-such-profile", ArrowClient)):
        monkeypatch.setenv("AWS_PROFILE", profile)
        assert isinstance(s3(region="us-east-1"), expected)


MONDAY = "Mon, 05 Jan 2026 10:00:00 GMT"
THEN, LATER, NEVER = datetime(2026, 1, 5, 10, tzinfo=UTC), datetime(2026, 1, 6, 10, tzinfo=UTC), verified.UNKNOWN


@pytest.mark.parametrize(
    ("version", "etag", "changed", "expected"),
    [
        ('"a"', '"a"', LATER, True),
        ('"a"', '"b"', THEN, False),
        ('W/"a"', 'W/"a"', NEVER, True),
        ('"a"', None, THEN, None),
        (MONDAY, None, THEN, True),
        (MONDAY, '"a"', LATER, False),
        (MONDAY, None, NEVER, None),
        ("unquoted", "unquoted", NEVER, True),
        ("unquoted", "other", NEVER, False),
        ("", '"a"', THEN, None),
    ],
)
def test_what_an_answer_says_of_its_version(version, etag, changed, expected):
    assert is_of_version(version, etag, changed) is expected


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://h/a/b.parquet", "a/b.parquet"),
        ("http://h/a%20b", "a b"),
        ("http://h/a%2Fb", None),
        ("http://h/a%25b", None),
        ("http://h/a?b=c", None),
        ("http://h/a#b", None),
        ("http://h/%C3%A9", "é"),
    ],
)
def test_urls_that_obstore_would_spell_otherwise_are_left_to_fsspec(url, name):
    assert verified._http_name(url) == name


@pytest.mark.parametrize("name", ["a//b", "/a", "a/", "a/../b", "./a", "..", "", "a\nb"])
def test_names_that_obstore_does_not_take(name):
    assert verified.WHOLE_NAME.fullmatch(name) is None


@pytest.mark.parametrize("name", ["a", ".a/..b/c.", "a b%20c#?é~+", "a...b/...c"])
def test_names_that_obstore_takes(name):
    assert verified.WHOLE_NAME.fullmatch(name) is not None
