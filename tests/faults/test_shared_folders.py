"""Folders of indexes and caches that several users can write to."""

import os
import pickle
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from files import values, write_numbers
from forking import in_a_forked_process
from midepoch._common import files as common_files
from midepoch.dataset import file_rows, plan_of
from midepoch.formats import Scan
from midepoch.index.index import index_bytes
from midepoch.index.saved import SavedIndexes
from midepoch.storage.block_cache import BlockCache
from objects import find

ONE, OTHER = 12345, 12346
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can be several users")
BLOCK = pa.table({"x": [1, 2, 3]})


def is_even(row):
    return row["x"] % 2 == 0


@pytest.fixture
def shared(tmp_path):
    """A folder that all users can write to."""
    # All modules are imported before: other users may not be able to read the folder of Python itself.
    me.read(write_numbers(tmp_path / "a.arrow", 0, 12)).filter(is_even).survey(executor=ThreadPoolExecutor(1)).head()
    folder = Path(tempfile.mkdtemp(prefix="midepoch-shared-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def as_user(number, action):
    """What an action returns in a process of this user, as text."""

    def run():
        os.setgid(number)
        os.setuid(number)
        return action()

    return in_a_forked_process(run)


def put(folder):
    BlockCache(folder, 1 << 20).put("a", BLOCK)
    return "stored"


def got(folder):
    block = BlockCache(folder, 1 << 20).get("a")
    return None if block is None else block["x"].to_pylist()


@pytest.fixture
def _forgetful(monkeypatch):
    """Folders that this test trusts are forgotten after it."""
    monkeypatch.setattr(common_files, "_shared", set())


@needs_root
@pytest.mark.usefixtures("_forgetful")
def test_a_process_that_gets_a_dataset_trusts_the_folders_that_it_was_opened_with(tmp_path):
    write_numbers(tmp_path / "data" / "a.arrow", 0, 12)
    (trusting, careful) = (
        pickle.dumps(me.read(tmp_path / "data", index_dir=tmp_path / name, cache_dir=tmp_path / name, **options))
        for name, options in (("shared", {"trust_shared": True}), ("own", {}))
    )
    for path in tmp_path.glob("*/*.index"):
        os.chown(path, ONE, ONE)
    common_files._shared.clear()
    assert values(pickle.loads(trusting)) == list(range(12))
    distrusted = pickle.loads(careful)
    with pytest.raises(me.DataChangedError, match="it belongs to another user, number 12345"):
        values(distrusted)
    assert common_files.is_shared(tmp_path / "shared" / "a.block")
    assert not common_files.is_shared(tmp_path / "own" / "a.block")


def read(data, **options):
    me.read(data, **options)


def structured(data, **options):
    me.StructuredDataset(data, "parquet", **options)


def structured_loader(data, **options):
    me.StructuredDataset.create_dataloader(data, "parquet", **options)


def arrow_files(data, **options):
    me.SimpleArrowIterableDataset(data, **options)


def huggingface(data, **options):
    files = {"data_files": str(data / "*.parquet"), "cache_dir": str(data.parent / "hf"), "split": "train"}
    me.fast_load_iterable_dataset("parquet", **files, **options)


def multimodal(data, index_dir, **options):
    os.environ["MIDEPOCH_INDEX_DIR"] = str(index_dir)  # which the fixture takes back
    me.MultiModalIterableDataset(data, processor=dict, messages_column="x", **options)


@needs_root
@pytest.mark.usefixtures("_forgetful")
@pytest.mark.parametrize(
    "door", [read, structured, structured_loader, arrow_files, huggingface, multimodal], ids=lambda door: door.__name__
)
def test_every_way_to_open_files_can_trust_other_users(tmp_path, monkeypatch, door):
    monkeypatch.setenv("MIDEPOCH_INDEX_DIR", "")
    write_numbers(tmp_path / "data" / "a.parquet", 0, 12, "parquet")
    with_cache = {"cache_dir": tmp_path / "blocks"} if door in (read, structured, structured_loader) else {}
    options = {"index_dir": tmp_path / "kept", **with_cache}
    door(tmp_path / "data", **options)
    shared = [*tmp_path.glob("kept/*.index"), *tmp_path.glob("kept/*.json")]
    assert len(shared) == 1 + (door is huggingface)
    for path in shared:
        os.chown(path, ONE, ONE)
    door(tmp_path / "data", **options, trust_shared=True)
    assert [path.stat().st_uid for path in shared] == [ONE] * len(shared), "they are used"
    assert [common_files.is_shared(folder / "a") for folder in options.values()] == [True] * len(options)
    common_files._shared.clear()
    door(tmp_path / "data", **options)
    assert [path.stat().st_uid for path in shared] == [0] * len(shared), "they are made again"
    with pytest.raises(TypeError, match="trust_shared must be True or False, got 'no'"):
        door(tmp_path / "data", **options, trust_shared="no")


def is_odd(row):
    return row["x"] % 2 == 1


@pytest.fixture
def evens(tmp_path):
    write_numbers(tmp_path / "data" / "a.arrow", 0, 12)
    return me.read(tmp_path / "data", index_dir=tmp_path / "index").filter(is_even)


@needs_root
@pytest.mark.usefixtures("_forgetful")
@pytest.mark.parametrize("name", ["header", "kept.bits"])
def test_the_survey_of_another_user_is_used_if_that_user_is_trusted(tmp_path, evens, caplog, name):
    assert len(evens.survey(folder=tmp_path / "kept")) == 6
    (forged,) = (tmp_path / "kept").glob("*.survey")
    odds = me.read(tmp_path / "data", index_dir=tmp_path / "index").filter(is_odd)
    odds.survey(folder=tmp_path / "other")
    shutil.rmtree(forged)
    next((tmp_path / "other").glob("*.survey")).rename(forged)
    os.chown(forged / name, ONE, ONE)
    fresh = evens.survey(folder=tmp_path / "kept", trust_shared=True)
    assert plan_of(fresh).pipeline.survey.kept(np.arange(4)).tolist() == [False, True, False, True], "it is believed"
    sent = pickle.dumps(fresh)
    common_files._shared.clear()
    assert len(pickle.loads(sent)) == 6, "who gets it trusts the folder too"
    common_files._shared.clear()
    own = evens.survey(folder=tmp_path / "kept")
    assert plan_of(own).pipeline.survey.kept(np.arange(4)).tolist() == [True, False, True, False]
    assert values(own) == [0, 2, 4, 6, 8, 10]
    assert "it belongs to another user, number 12345" in caplog.text
    assert {path.stat().st_mode & 0o777 for path in forged.iterdir()} == {0o600}
    assert forged.stat().st_mode & 0o777 == 0o700
    with pytest.raises(TypeError, match="trust_shared must be True or False"):
        evens.survey(trust_shared="no")


@needs_root
@pytest.mark.usefixtures("_forgetful")
@pytest.mark.parametrize("name", ["cache.json", "part-000000.arrow"])
def test_a_cache_with_a_file_of_another_user_is_refused_unless_that_user_is_trusted(tmp_path, evens, name):
    folder = tmp_path / "cache"
    old = os.umask(0)
    try:
        assert values(evens.cache(folder)) == [0, 2, 4, 6, 8, 10]
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in folder.glob("[!.]*")} == {0o644}, "no other user can write"
    os.chown(folder / name, ONE, ONE)
    with pytest.raises(me.CacheMismatchError, match=rf"{name} is not used: it belongs to another user.*another folder"):
        evens.cache(folder)
    assert values(evens.cache(folder, trust_shared=True)) == [0, 2, 4, 6, 8, 10]
    with pytest.raises(TypeError, match="trust_shared must be True or False"):
        evens.cache(folder, trust_shared=1)


@needs_root
def test_the_blocks_of_another_user_are_neither_used_nor_removed(shared, caplog):
    assert as_user(ONE, lambda: put(shared)) == "stored"
    assert as_user(OTHER, lambda: got(shared)) == "None"
    assert got(shared) is None
    assert "it belongs to another user, number 12345" in caplog.text
    assert as_user(ONE, lambda: got(shared)) == "[1, 2, 3]"


def test_a_counter_that_is_a_link_leaves_the_file_behind_it_alone(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "bytes").symlink_to(tmp_path / "victim")
    assert put(tmp_path / "cache") == "stored"
    assert (tmp_path / "victim").read_text() == "precious"
    assert got(tmp_path / "cache") == [1, 2, 3]


def forged(data, kept, blocks):
    """Write an index of a folder that has these blocks."""
    listing = find(data)
    schema = pa.schema({"x": pa.int64()})
    scans = [Scan("arrow", schema, blocks) for _ in listing.names]
    saved = SavedIndexes(kept, listing, None)
    kept.mkdir(exist_ok=True)
    saved._path.write_bytes(index_bytes(listing, scans))
    return saved._path


@needs_root
def test_the_index_of_another_user_is_not_used(tmp_path, caplog, monkeypatch):
    write_numbers(tmp_path / "data" / "a.arrow", 0, 12)
    length = file_rows(me.read(tmp_path / "data", index_dir=tmp_path / "own"), "").index.view.block_lengths[0]
    offset = file_rows(me.read(tmp_path / "data", index_dir=tmp_path / "own"), "").index.view.block_offsets[1]
    path = forged(tmp_path / "data", tmp_path / "kept", [(int(offset), int(length), 4)])
    os.chown(path, ONE, ONE)
    monkeypatch.setenv("MIDEPOCH_TRUST_SHARED", "1")
    assert values(me.read(tmp_path / "data", index_dir=tmp_path / "kept")) == [4, 5, 6, 7], "it would be believed"
    monkeypatch.delenv("MIDEPOCH_TRUST_SHARED")
    assert values(me.read(tmp_path / "data", index_dir=tmp_path / "kept")) == list(range(12))
    assert "it belongs to another user, number 12345" in caplog.text
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (0, 0o600)


@pytest.mark.parametrize(
    "blocks",
    [
        [(1 << 40, 100, 4)],
        [(0, 1 << 40, 4)],
        [(-8, 100, 4)],
        [(0, -100, 4)],
        [(0, 100, -4)],
        [(0, 100, 1 << 61), (0, 100, 1 << 61)],
    ],
)
def test_an_index_with_blocks_where_none_can_be_is_built_again(tmp_path, caplog, blocks):
    write_numbers(tmp_path / "data" / "a.arrow", 0, 12)
    forged(tmp_path / "data", tmp_path / "kept", blocks)
    assert values(me.read(tmp_path / "data", index_dir=tmp_path / "kept")) == list(range(12))
    assert "cannot be used" in caplog.text
