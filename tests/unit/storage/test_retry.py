"""Errors of clients: what they mean, what is tried again and when, and that no text shows a secret."""

import json
from html import escape
from types import SimpleNamespace
from urllib.parse import quote, quote_plus

import pytest
from obstore.exceptions import GenericError

from midepoch.errors import StoreError
from midepoch.storage.retry import REDACTED, ShortReadError, error_kind, redacted, with_retries
from objects import QUICK


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError(2, "no"), "gone"),
        (PermissionError("no"), "denied"),
        *(
            (GenericError(f"Server returned non-2xx status code: {status} Oh: <Code>Oh</Code>"), kind)
            for status, kind in (
                (404, "gone"),
                (410, "gone"),
                (416, "gone"),
                (401, "denied"),
                (403, "denied"),
                (429, "temporary"),
                (503, "temporary"),
                (400, "wrong"),
            )
        ),
        (GenericError("Error performing HEAD - HTTP error: error sending request"), "temporary"),
        (GenericError("Error after 0 retries - HTTP error: request or response body error"), "temporary"),
        (ConnectionResetError("reset"), "temporary"),
        (ShortReadError("3 of 4"), "temporary"),
        (type("OfflineModeIsEnabled", (ConnectionError,), {})("HF_HUB_OFFLINE"), "wrong"),
        (GenericError("something else"), "wrong"),
        (ValueError("no"), "wrong"),
    ],
)
def test_what_an_error_means(error, kind):
    assert error_kind(error) == kind


def test_the_http_status_of_an_error_decides():
    class ClientError(Exception):
        def __init__(self, **attributes):
            self.__dict__ |= attributes

    assert error_kind(ClientError(status=503)) == "temporary"
    assert error_kind(ClientError(code=403)) == "denied"
    assert error_kind(ClientError(response={"ResponseMetadata": {"HTTPStatusCode": 404}})) == "gone"
    assert error_kind(ClientError(response=SimpleNamespace(status_code=429))) == "temporary"
    assert error_kind(ClientError(status=422)) == "wrong"


def test_an_object_that_fsspec_did_not_find_because_of_the_network_is_not_gone():
    def not_found(cause):
        error = FileNotFoundError("http://host/x")
        error.__cause__ = cause
        return error_kind(error)

    class ClientResponseError(Exception):
        __module__ = "aiohttp.client_exceptions"

        def __init__(self, status):
            self.status = status

    assert [not_found(ClientResponseError(status)) for status in (404, 429, 503)] == ["gone", "temporary", "temporary"]
    assert not_found(ClientResponseError(403)) == "denied"
    assert not_found(ConnectionRefusedError("refused")) == "temporary"
    assert not_found(TimeoutError()) == "temporary"
    assert not_found(KeyError("/x")) == "gone"  # how the store in memory says so
    assert not_found(None) == "gone"


@pytest.mark.parametrize(
    ("wish", "seconds"), [("7", 7.0), ("86400", 60.0), ("-1", 0.0), ("Mon, 05 Jan 2026 10:00:00 GMT", 0.0), (None, 0.0)]
)
@pytest.mark.parametrize("inner", [False, True])
def test_a_server_may_ask_for_a_wait(monkeypatch, wish, seconds, inner):
    class RefusedError(Exception):
        status = 429

        def __init__(self):
            super().__init__("too many requests")
            headers = {} if wish is None else {"Retry-After": wish}
            if inner:
                self.response = SimpleNamespace(headers=headers)
            else:
                self.headers = headers

    answers, waits = iter([RefusedError(), RefusedError(), None]), []
    monkeypatch.setattr("midepoch.storage.retry.time.sleep", waits.append)

    def action():
        if (error := next(answers)) is not None:
            raise error
        return "done"

    assert with_retries(action, lambda _, text: StoreError(text), str, QUICK) == "done"
    assert waits == [seconds, seconds]


SECRET = "h\u00fcsh/+&='\\\" x"


@pytest.mark.parametrize(
    "form",
    [
        str,
        repr,
        json.dumps,
        quote,
        quote_plus,
        escape,
        lambda text: quote(text, safe=""),
        lambda text: quote(text, safe="").lower(),
        lambda text: repr(text.encode()),
    ],
)
def test_every_form_of_a_value(form):
    options = {"key": SECRET if form(SECRET)[0] != "b" else SECRET.encode()}
    assert "sh" not in redacted(f"refused: {form(SECRET)}", options)


@pytest.mark.parametrize(
    "options",
    [
        {"connection_string": "AccountName=me;AccountKey=hush+hush==;BlobEndpoint=http://host"},
        {"sas_token": "?sv=2024&sp=rl&sig=hush%2Bhush%3D%3D"},
        {"headers": {"Authorization": "Bearer hush+hush=="}},
        {"nested": [{"a": ("hush+hush==",)}, frozenset(["other"])]},
    ],
    ids=str,
)
def test_parts_of_values(options):
    for text in ("hush+hush==", "hush%2Bhush%3D%3D", "hush%2bhush%3d%3d"):
        assert redacted(f"at {text}!", options) == f"at {REDACTED}!"
    assert redacted("me at http://host in 2024", options) == "me at http://host in 2024"


def test_secrets_of_the_environment_and_those_that_a_store_repeats(monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-environment")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "also-of-it")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    assert redacted("of-the-environment also-of-it a test", {}) == f"{REDACTED} {REDACTED} a test"
    answer = (
        "<Error><Code>ExpiredToken</Code><Token-0>found/by=boto3</Token-0><AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>"
    )
    assert redacted(answer, {}) == (
        f"<Error><Code>ExpiredToken</Code><Token-0>{REDACTED}</Token-0><AWSAccessKeyId>{REDACTED}</AWSAccessKeyId></Error>"
    )
