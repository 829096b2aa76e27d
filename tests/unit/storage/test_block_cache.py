"""The folder of remote blocks: whole or not there, checked, bounded, shared."""

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import struct

import pyarrow as pa
import pytest

import midepoch as me
from midepoch._common import files as common_files
from midepoch._common.files import framed, unframed
from midepoch.storage import block_cache as caches
from midepoch.storage.block_cache import SUFFIX, BlockCache, Fetch


def block(number, rows=100):
    return pa.table({"id": pa.array([number] * rows, pa.int64()), "text": ["x" * 10] * rows})


def held(cache):
    size = 0
    for path in cache.folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # another process has made room
            size += path.stat().st_size
    return size


@pytest.fixture
def cache(tmp_path):
    return BlockCache(tmp_path / "cache", 1 << 20)


def test_what_is_put_is_got(cache):
    assert cache.get("a") is None
    cache.put("a", block(1))
    assert cache.get("a") == block(1)
    cache.put("b", block(2).to_batches()[0])
    assert cache.get("b") == block(2)
    coded = pa.table(
        {"c": pa.chunked_array([pa.array(["a", "b"]).dictionary_encode(), pa.array(["c"]).dictionary_encode()])}
    )
    cache.put("c", coded)
    assert cache.get("c")["c"].to_pylist() == ["a", "b", "c"]
    cache.put("e", block(1, 0))
    assert cache.get("e").num_rows == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text"])
def test_a_damaged_block_is_not_there(cache, damage, caplog):
    cache.put("a", block(1))
    path = cache.folder / f"a{SUFFIX}"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"flip": content, "cut": content[:-9], "empty": b"", "text": b"x" * 99}[damage])
    with caplog.at_level(logging.WARNING):
        assert cache.get("a") is None
    assert "is damaged" in caplog.text
    assert not path.exists()
    cache.put("a", block(1))
    assert cache.get("a") == block(1)


BAD_OFFSETS = {
    "beyond the values": struct.pack("<4i", 0, 1, 3, 3000),
    "decreasing": struct.pack("<4i", 0, 9, 3, 6),
    "negative": struct.pack("<4i", -9, 1, 3, 6),
}


@pytest.mark.parametrize("bad", BAD_OFFSETS.values(), ids=BAD_OFFSETS)
def test_a_block_with_a_right_checksum_and_bad_offsets_is_not_there(cache, bad, caplog):
    data = pa.table({"text": ["a", "bb", "ccc"]})
    cache.put("a", data)
    path = cache.folder / f"a{SUFFIX}"
    body = bytes(unframed(path.read_bytes(), caches.MAGIC, "a")[0])
    path.write_bytes(framed(body.replace(struct.pack("<4i", 0, 1, 3, 6), bad), caches.MAGIC, "a"))
    with caplog.at_level(logging.WARNING):
        assert cache.get("a") is None
    assert "is damaged" in caplog.text
    cache.put("a", data)
    assert cache.get("a") == data


def test_the_least_recently_used_go_first(tmp_path):
    size = _size(tmp_path)
    cache = BlockCache(tmp_path / "cache", 10 * size + 5)
    for number in range(10):
        cache.put(str(number), block(number))
        os.utime(cache.folder / f"{number}{SUFFIX}", (number, number))
    assert cache.get("0") is not None  # used just now
    cache.put("new", block(10))
    assert cache.get("0") == block(0)
    assert cache.get("new") == block(10)
    assert cache.get("1") is None
    assert cache.get("9") == block(9)
    assert held(cache) <= cache.limit


def test_it_never_grows_beyond_its_limit(tmp_path):
    size = _size(tmp_path)
    cache = BlockCache(tmp_path / "cache", 4 * size)
    for number in range(50):
        cache.put(str(number), block(number))
        assert held(cache) <= cache.limit
    assert cache.get("49") == block(49)
    cache.put("large", block(1, 10_000))
    assert cache.get("large") is None


def test_what_was_abandoned_is_removed(tmp_path):
    cache = BlockCache(tmp_path / "cache", 3 * _size(tmp_path))
    cache.put("a", block(1))
    old, new = cache.folder / ".old", cache.folder / ".new"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    (cache.folder / "bytes").unlink()
    for number in range(5):
        cache.put(str(number), block(number))
    assert not old.exists()
    assert new.exists()


def test_one_warning_says_that_the_folder_cannot_be_written(tmp_path, caplog):
    (tmp_path / "file").write_text("no folder")
    cache = BlockCache(tmp_path / "file", 1 << 20)
    for _ in range(2):
        cache.put("a", block(1))
        assert cache.get("a") is None
    assert len(caplog.records) == 1
    assert "Blocks cannot be cached in" in caplog.text


def test_a_block_under_the_name_of_another_is_not_taken_for_it(cache, caplog):
    cache.put("a", block(1))
    cache.put("b", block(2))
    one, other = (cache.folder / f"{key}{SUFFIX}" for key in "ab")
    one.rename(cache.folder / "third")
    other.rename(one)
    (cache.folder / "third").rename(other)
    assert (cache.get("a"), cache.get("b")) == (None, None)
    assert caplog.text.count("it has a wrong checksum") == 2


def _work(folder, limit, seed):
    cache = BlockCache(folder, limit)
    for turn in range(60):
        number = (turn * 7 + seed) % 12
        kept = cache.get(str(number))
        if kept is None:
            cache.put(str(number), block(number))
        elif kept != block(number):
            os._exit(3)


def test_processes_share_it(tmp_path):
    limit = 6 * _size(tmp_path)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_work, args=(tmp_path / "cache", limit, seed), daemon=True) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert 0 < held(BlockCache(tmp_path / "cache", limit)) <= limit


def _size(tmp_path):
    probe = BlockCache(tmp_path / "probe", 1 << 20)
    probe.put("a", block(0))
    return held(probe)


def _claim_and_die(folder):
    with BlockCache(folder, 1 << 20).claim(["a"]):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_claim_ends_with_its_process_and_is_not_waited_for_too_long(tmp_path, monkeypatch):
    process = multiprocessing.get_context("fork").Process(target=_claim_and_die, args=(tmp_path,))
    process.start()
    process.join()
    one, other = BlockCache(tmp_path, 1 << 20), BlockCache(tmp_path, 1 << 20)
    with one.claim(["a", "b"]):
        monkeypatch.setattr(caches, "CLAIM_SECONDS", 0)
        with other.claim(["b", "c"]):
            pass
    with BlockCache(tmp_path / "file" / "cache", 1).claim(["a"]):
        pass


@pytest.mark.parametrize("trusted", [True, False])
def test_a_cache_that_is_sent_to_another_process_trusts_the_same_users(tmp_path, monkeypatch, trusted):
    monkeypatch.setattr(common_files, "_shared", set())
    sent = pickle.dumps(BlockCache(tmp_path / "cache", 1 << 20, trust_shared=trusted))
    monkeypatch.setattr(common_files, "_shared", set())
    received = pickle.loads(sent)
    assert (received.folder, received.limit) == (tmp_path / "cache", 1 << 20)
    assert common_files.is_shared(received.folder) == trusted


@pytest.mark.parametrize("size", ["much", "-1", "1 parsec", -1])
def test_a_wrong_size_is_refused(size):
    with pytest.raises(ValueError, match="read_ahead is"):
        me.read("memory://x", read_ahead=size)
    with pytest.raises(TypeError, match="cache_bytes is a float"):
        Fetch.of(None, None, 1.5)
