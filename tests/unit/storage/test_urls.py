"""URLs: credentials are refused, globs match as in a shell."""

import pytest

import midepoch as me
from midepoch.storage.named_files import NamedFiles
from midepoch.storage.urls import check_plain, folder_prefix, is_url, local_path, split_glob


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hush@bucket/x",
        "s3://hush@bucket/x",
        "s3://KEY:hush/with/slash@bucket/x",
        "ftp://me:hush@host/x",
        "http://hush@host/x",
        *(f"https://host/x?{name}=hush" for name in ("auth", "pwd", "pass", "jwt", "code", "hmac", "st", "a=1&X-Sig")),
        "https://host/x#token=hush",
        *(
            f"https://host/x?{name}=hush"
            for name in ("bearer", "passphrase", "session", "cred", "sas", "ticket", "pw", "otp")
        ),
        *(f"https://host/x?{part}" for part in ("%74oken=hush", "token%3Dhush", "a=1&%73ig=hush", "p%77d=hush")),
        "https://host/x;jsessionid=hush",
        "https://host/x#access%5Ftoken=hush",
        "https://user:pa/hush@host/x",
        "https://user:hush%40host/x",
        "https://user:1hush@host/x",
        "https://host:hush/x",
        "s3://key:hush%40bucket/x",
        "gs://KEY:hush/with/slash@bucket/x",
        "abfs://container:hush@account/x",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_shown(url):
    with pytest.raises(ValueError, match="holds credentials") as error:
        me.read(url)
    assert "hush" not in str(error.value)
    for action in (lambda: NamedFiles().read(url), lambda: NamedFiles(url), lambda: NamedFiles(allow_urls=[url])):
        with pytest.raises(ValueError, match="holds credentials") as error:
            action()
        assert "hush" not in str(error.value)


def test_signed_urls_are_refused_and_containers_are_not():
    with pytest.raises(ValueError, match="holds credentials"):
        check_plain("https://host/x.parquet?X-Amz-Signature=abc")
    for url in (
        "abfs://container@account.dfs.core.windows.net/x",
        "https://host:8443/@scope/x",
        "https://host/x?postcode=1&first=2",
        "s3://bucket/a@b",
        "https://[::1]:8443/x",
        "https://host/a:b@c/x",
        "https://host/x?page=2&sort=key",
        "s3://bucket/key=1/x",
    ):
        check_plain(url)
    with pytest.raises(ValueError, match="chains file systems"):
        me.read("simplecache::s3://bucket/x")


def test_urls_and_paths():
    assert all(map(is_url, ["s3://b/x", "memory://x", "simplecache::s3://b"]))
    assert not any(map(is_url, ["a/b", "/a/b", "C:/x", "a:b"]))
    assert local_path("file:///a%20b/c") == "/a b/c"
    assert local_path("s3://b/x") is None


@pytest.mark.parametrize(
    ("url", "root", "deep", "yes", "no"),
    [
        ("s3://b/d/*.parquet", "s3://b/d", False, ["a.parquet"], ["x/a.parquet", ".a.parquet", "a.parquet.gz"]),
        ("s3://b/*/a?.csv", "s3://b", True, ["x/a1.csv"], ["a1.csv", "x/a.csv", "x/y/a1.csv"]),
        ("s3://b/**/a.csv", "s3://b", True, ["a.csv", "x/a.csv", "x/y/a.csv"], ["xa.csv", ".x/a.csv"]),
        ("s3://b/d/**", "s3://b/d", True, ["a", "x/y/a"], [".a", "x/.y/a"]),
        ("s3://b/p-[0-3].x", "s3://b", False, ["p-2.x"], ["p-4.x", "p-22x"]),
        ("s3://b/p-[!0-3].x", "s3://b", False, ["p-4.x"], ["p-2.x"]),
    ],
)
def test_globs(url, root, deep, yes, no):
    found, pattern, nested = split_glob(url)
    assert (found, nested) == (root, deep)
    assert all(map(pattern.fullmatch, yes))
    assert not any(map(pattern.fullmatch, no))


def test_names_that_begin_with_a_slash_stay_in_their_folder():
    assert folder_prefix("s3://bucket/d") + "/x" == "s3://bucket/d//x"
    assert [folder_prefix(root) + "x" for root in ("/", "/d", "d")] == ["/x", "/d/x", "d/x"]
