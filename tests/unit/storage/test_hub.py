"""hf:// URLs are pinned to a commit. A small server is the hub, and a store in memory has its files."""

import json
from typing import ClassVar

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import midepoch as me
from http_store import http_store
from midepoch.storage.hub import pinned
from objects import parquet_bytes
from worlds import ids

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with http_store() as server:
        yield server


def answer(hub, revision, commit, name="org/name", kind="datasets"):
    content = json.dumps({"id": name, "sha": commit}).encode()
    at = f"/revision/{revision}" if revision else ""
    hub.put(f"api/{kind}/{name}{at}", content, Content_Type="application/json")


def options(hub):
    return {"endpoint": hub.url("").rstrip("/"), "token": False}


def test_a_branch_becomes_a_commit(hub):
    answer(hub, None, NEW)
    answer(hub, "v1", OLD)
    answer(hub, None, OLD, "org/model", "models")
    answer(hub, "refs%2Fpr%2F3", OLD)
    for url, expected in (
        ("hf://datasets/org/name/data/*.parquet", f"hf://datasets/org/name@{NEW}/data/*.parquet"),
        ("hf://datasets/org/name", f"hf://datasets/org/name@{NEW}"),
        ("hf://datasets/org/name@v1/a.parquet", f"hf://datasets/org/name@{OLD}/a.parquet"),
        ("hf://datasets/org/name@refs/pr/3/a.parquet", f"hf://datasets/org/name@{OLD}/a.parquet"),
        ("hf://org/model/a.parquet", f"hf://org/model@{OLD}/a.parquet"),
    ):
        assert pinned(url, options(hub)) == expected


def test_what_needs_no_request(hub):
    for url in (f"hf://datasets/org/name@{OLD}/a", "s3://bucket/a", "hf://buckets/org/name/a"):
        assert pinned(url, options(hub)) == url
    assert hub.requests == 0


def test_what_is_not_there(hub):
    with pytest.raises(me.NoDataError, match=r"does not exist on the hub, or needs a token: 404\. .*revision 'v9'"):
        pinned("hf://datasets/org/name@v9/a", options(hub))
    with pytest.raises(ValueError, match="names no repository; write hf://datasets/owner/name"):
        pinned("hf://datasets", options(hub))
    answer(hub, None, "main")
    with pytest.raises(me.StoreError, match="The hub names no commit"):
        pinned("hf://datasets/org/name", options(hub))
    with pytest.raises(me.StoreError, match="The hub cannot be reached"):
        pinned("hf://datasets/org/name", {"endpoint": "http://127.0.0.1:1", "token": False})


class HubFiles(MemoryFileSystem):
    """As the file system of the hub, in memory."""

    protocol = "hf"
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]

    def __init__(self, endpoint=None, token=None, **others):
        super().__init__(**others)

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("hf://").strip("/")

    def unstrip_protocol(self, name):
        return "hf://" + name.strip("/")


@pytest.fixture
def files():
    known = fsspec.get_filesystem_class("hf")
    fsspec.register_implementation("hf", HubFiles, clobber=True)
    HubFiles.store.clear()
    yield HubFiles()
    fsspec.register_implementation("hf", known, clobber=True)


def test_a_run_stays_at_its_commit(hub, files, tmp_path):
    def put(commit, name, first):
        content = parquet_bytes(pa.table({"id": range(first, first + 30)}), 10)
        files.pipe_file(f"datasets/org/name@{commit}/data/{name}.parquet", content)

    def opened():
        return me.read("hf://datasets/org/name/data/*.parquet", storage_options=options(hub), index_dir=tmp_path)

    put(OLD, "a", 0)
    put(OLD, "b", 30)
    answer(hub, None, OLD)
    dataset = opened()
    put(NEW, "a", 0)
    put(NEW, "b", 100)
    put(NEW, "c", 200)
    answer(hub, None, NEW)
    assert ids(dataset) == list(range(60)), "the branch has moved, the dataset has not"
    assert len(opened()) == 90
    with pytest.raises(me.CheckpointMismatchError, match=r"c\.parquet"):
        opened().load_state_dict(dataset.state_dict())
