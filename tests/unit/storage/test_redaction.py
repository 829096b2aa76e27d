"""Secrets are replaced in texts of clients, in whatever form, and addresses are not."""

import json
from html import escape
from urllib.parse import quote, quote_plus

import pytest

from midepoch.storage.redaction import REDACTED, redacted

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
