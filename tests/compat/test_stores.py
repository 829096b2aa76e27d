"""Datasets in an S3 server on loopback: what is read, how much of it, and by whom."""

import io
import json
import os
import socket
import subprocess
import sys
import time
from itertools import chain, islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
import s3
from midepoch.storage.objects import LEAST_BYTES
from midepoch.storage.retry import RetryPolicy
from objects import find, numbered
from shards import numbered_mds
from tars import numbered_tar
from worlds import FORMATS, TEXTS, ids, write_files

NOISE = 20_000


@pytest.fixture
def noisy(s3_port):
    """Four files of eight row groups of 200 kB."""
    s3.put_all(s3_port, "noisy", {f"d/p-{n}.parquet": numbered(n * 80, n * 80 + 80, noise=NOISE) for n in range(4)})
    return "s3://noisy/d"


@pytest.mark.parametrize("kinds", [FORMATS, (*TEXTS, "orc")])
def test_all_formats_read_like_local_files(tmp_path, s3_port, proxy, kinds):
    folder = write_files(tmp_path / "data", [35, 1, 50, 20, 3], kinds)
    url = s3.put_folder(s3_port, f"formats-{len(kinds)}", folder)
    local, remote = me.read(folder), me.read(url, storage_options=proxy.options)
    assert remote.schema == local.schema
    rows = list(remote)
    assert rows == list(local)
    differ = {"fingerprint": 0, "checksum": 0}
    assert {**remote.state_dict(), **differ} == {**local.state_dict(), **differ}
    assert list(me.read(url, storage_options=proxy.options).shuffle(3)) == list(me.read(folder).shuffle(3))


def test_thousands_of_objects_are_listed(s3_port, proxy):
    s3.put_all(s3_port, "many", {f"data/x={n % 7}/p-{n:05d}.parquet": b"x" * n for n in range(1100)})
    s3.put_all(
        s3_port, "many", {"data/_SUCCESS": b"", "data/.x/p.parquet": b"", "data/x=1/_p.parquet": b"", "data/t": b""}
    )
    listing = find("s3://many/data", proxy.options)
    assert len(listing.names) == 1100
    assert list(listing.names) == sorted(listing.names, key=lambda name: name.split("/"))
    assert sum(stamp.size for stamp in listing.stamps) == 1100 * 1099 // 2
    assert len(find("s3://many/data/x=3/*.parquet", proxy.options).names) == 157
    assert len(find("s3://many/**/p-0000?.parquet", proxy.options).names) == 10
    assert find("s3://many", proxy.options).names == tuple(f"data/{name}" for name in listing.names)
    assert find("s3://many/data", proxy.options).spec == listing.spec


def test_an_object_with_an_empty_part_in_its_path(s3_port, proxy):
    s3.put_all(s3_port, "slashes", {"a/x.parquet": numbered(0, 10), "a//b/y.parquet": numbered(10, 20)})
    with pytest.raises(me.StoreError, match=r"s3://slashes/a cannot be listed, because .* is empty.*a//b/y\.parquet"):
        me.read("s3://slashes/a", storage_options=proxy.options)
    with pytest.raises(me.StoreError, match=r"a//b/y\.parquet cannot be read.*two slashes in a row"):
        me.read("s3://slashes/a//b/y.parquet", storage_options=proxy.options)
    assert ids(me.read("s3://slashes/a/x.parquet", storage_options=proxy.options)) == list(range(10))


def test_opening_again_reads_nothing(noisy, proxy):
    me.read(noisy, storage_options=proxy.options)
    proxy.reset()
    me.read(noisy, storage_options=proxy.options)
    assert not proxy.reads()
    assert len(proxy.requests) <= 3


def test_a_row_group_costs_few_requests(s3_port, proxy):
    sink = io.BytesIO()
    columns = {f"c{n}": [os.urandom(2000) for _ in range(100)] for n in range(20)}
    pq.write_table(pa.table({"id": list(range(100)), **columns}), sink, row_group_size=50)
    s3.put_all(s3_port, "wide", {"p.parquet": sink.getvalue()})
    dataset = me.read("s3://wide/p.parquet", storage_options=proxy.options, read_ahead=0)
    proxy.reset()
    assert next(iter(dataset))["id"] == 0
    assert len(proxy.reads()) <= 4  # a footer, and the columns together


def test_the_jump_of_a_resume_reads_what_is_under_way_and_no_more(noisy, proxy):
    dataset = me.read(noisy, storage_options=proxy.options, read_ahead=0)
    rows = iter(dataset)
    seen = [next(rows)["id"] for _ in range(205)]
    state = dataset.state_dict()
    del rows
    again = me.read(noisy, storage_options=proxy.options, read_ahead=0)
    again.load_state_dict(state)
    proxy.reset()
    assert next(iter(again))["id"] == 205 == seen[-1] + 1
    assert {request.key for request in proxy.reads()} == {"d/p-2.parquet"}
    assert proxy.body_bytes < 2 * 10 * NOISE
    column = me.read(noisy, storage_options=proxy.options, columns=["id"], read_ahead=0)
    proxy.reset()
    assert next(iter(column.skip(101)))["id"] == 101
    assert proxy.body_bytes < 3 * 65536, "one column is few bytes"


def settled(proxy, least=0):
    """What was sent once nothing more comes. Nothing may come for a while on a busy machine, so wait for the least."""
    while proxy.body_bytes < least:
        time.sleep(0.02)
    before = -1
    while before != len(proxy.requests) or proxy.busy:
        before = len(proxy.requests)
        time.sleep(0.2)
    return proxy.body_bytes


@pytest.mark.parametrize(("blocks", "lanes"), [(0, 1), (3, 4), (10, 1)])
def test_read_ahead_is_bounded_by_bytes(noisy, proxy, blocks, lanes):
    block = 10 * NOISE
    ahead = int((blocks + 0.5) * block) if blocks else 0
    dataset = me.read(noisy, storage_options=proxy.options, read_ahead=ahead).lanes(lanes)
    proxy.reset()
    rows = iter(dataset)
    next(rows)
    held = settled(proxy, least=(1 + blocks) * block if lanes == 1 else 0) / block
    del rows
    # The first step of a lane is one block; each file costs a footer, and a lane may be at its second.
    assert held <= lanes + max(blocks, 0) + 3
    if lanes == 1:
        assert held >= 1 + blocks


def test_blocks_are_fetched_in_parallel_and_ahead(noisy, proxy):
    dataset = me.read(noisy, storage_options=proxy.options, read_ahead="64MiB")
    proxy.reset()
    proxy.latency = 0.03
    assert ids(dataset) == list(range(320))
    assert proxy.most_busy >= 4
    # Nothing is fetched twice.
    assert proxy.body_bytes < 1.2 * 320 * NOISE + 4 * 2 * 65536


def asked(proxy, method):
    return [request for request in proxy.requests if request.method == method and request.key.endswith(".parquet")]


def test_a_pass_in_order_costs_requests_by_files_and_bytes_not_by_row_groups(noisy, proxy):
    dataset = me.read(noisy, storage_options=proxy.options)
    proxy.reset()
    assert ids(dataset) == list(range(320))
    # For each file its head, footer, row groups and a version check after them; the first row group comes alone.
    assert len(asked(proxy, "GET")) <= 2 * 4 + 1
    assert len(asked(proxy, "HEAD")) <= 2 * 4 + 1
    assert proxy.body_bytes < 320 * (NOISE + 100) + 4 * LEAST_BYTES


def numbers(port, bucket, groups):
    """One object of row groups of 8192 rows in two columns, 128 KiB each."""
    sink = io.BytesIO()
    rows = np.arange(groups * 8192)
    table = pa.table({"id": rows, "x": np.random.default_rng(0).random(len(rows))})
    pq.write_table(table, sink, row_group_size=8192, compression="none", use_dictionary=False)
    s3.put_all(port, bucket, {"p.parquet": sink.getvalue()})
    return f"s3://{bucket}/p.parquet", len(sink.getvalue())


@pytest.mark.parametrize("together", [1, 7])
def test_row_groups_are_fetched_together_all_the_way_as_read_ahead_continues(s3_port, proxy, together):
    url, size = numbers(s3_port, "long", 100)
    group = int((together + 0.5) * 2 * 8 * 8192)
    dataset = me.read(url, storage_options=proxy.options, read_ahead=8 * group).with_format("arrow").batch(8192)
    proxy.reset()
    rows = np.concatenate([batch["id"].to_numpy() for batch in dataset])
    assert np.array_equal(rows, np.arange(100 * 8192))
    # The footer, the first row group, the others; one that is not begun when its turn comes may be taken out of its
    # group, but that is rare.
    least = 2 + -(-99 // together)
    assert least <= len(asked(proxy, "GET")) <= least + 3
    assert len(asked(proxy, "HEAD")) <= len(asked(proxy, "GET"))
    assert proxy.body_bytes < size + 2 * LEAST_BYTES


def test_ranks_and_workers_are_cut_and_resume_as_others(noisy, proxy):
    def loader(ranks, rank, workers):
        dataset = me.read(noisy, storage_options=proxy.options, columns=["id"]).shuffle(7)
        sharded = dataset.lanes(4).shard(num_shards=ranks, index=rank)
        return me.Loader(sharded, batch_size=4, num_workers=workers)

    expected = ids(loader(1, 0, 0))
    seen, state = [], None
    for ranks, workers, batches in ((2, 2, 5), (3, 0, 7), (1, 1, None)):
        parts, states = [], []
        for rank in range(ranks):
            loaded = loader(ranks, rank, workers)
            if workers:
                assert loaded.multiprocessing_context.get_start_method() == "forkserver"
            if state is not None:
                loaded.load_state_dict(state)
            running = iter(loaded)
            parts.append([ids([batch]) for batch in (running if batches is None else islice(running, batches))])
            states.append(loaded.state_dict())
            del running
        assert all(one == states[0] for one in states)
        state = states[0]
        seen += chain.from_iterable(chain.from_iterable(zip(*parts, strict=True)))
    assert sorted(expected) == list(range(320))
    assert seen == expected


def test_a_mixture_with_a_store_does_not_fork_and_memory_may(noisy, proxy, tmp_path):
    local = me.read(write_files(tmp_path / "data", [10])).select_columns(["id"])
    remote = me.read(noisy, storage_options=proxy.options, columns=["id"])
    mixed = me.mix([local, remote], weights=[1, 1])
    assert me.Loader(mixed, num_workers=1).multiprocessing_context.get_start_method() == "forkserver"
    assert me.Loader(mixed, num_workers=0).multiprocessing_context is None
    assert me.Loader(local, num_workers=1).multiprocessing_context is None
    spawned = me.Loader(mixed, num_workers=1, multiprocessing_context="spawn")
    assert spawned.multiprocessing_context.get_start_method() == "spawn"


def test_the_cache_spares_every_request_of_the_second_epoch(noisy, proxy, tmp_path):
    def opened():
        return me.read(noisy, storage_options=proxy.options, cache_dir=tmp_path / "cache").shuffle(3)

    dataset = opened()
    first = list(dataset)
    proxy.reset()
    second = list(dataset)
    assert not proxy.requests
    assert sorted(ids(first)) == sorted(ids(second)) == list(range(320))
    assert {row["id"]: row["noise"] for row in first} == {row["id"]: row["noise"] for row in second}
    again = opened()
    proxy.reset()
    assert list(again) == first
    assert not proxy.requests
    # Other columns are other blocks.
    assert ids(me.read(noisy, storage_options=proxy.options, cache_dir=tmp_path / "cache", columns=["id"]))[:3] == [
        0,
        1,
        2,
    ]
    assert proxy.reads()


READ_ALL = """
import json, sys
import midepoch as me

source, options, cache = json.loads(sys.argv[1])
print(len(list(me.read(source, storage_options=options, cache_dir=cache, read_ahead="1MB"))))
"""


def test_processes_that_share_a_cache_fetch_each_block_once(noisy, proxy, tmp_path):
    me.read(noisy, storage_options=proxy.options)  # the index
    proxy.reset()
    proxy.latency = 0.02  # so that all processes miss the same blocks
    arguments = json.dumps([noisy, proxy.options, str(tmp_path / "cache")])
    command = [sys.executable, "-c", READ_ALL, arguments]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [reader.communicate()[0] for reader in readers] == ["320\n"] * 4
    spans = [request.range.removeprefix("bytes=").split("-") for request in proxy.reads()]
    blocks = [span for span in spans if int(span[1]) - int(span[0]) > 100_000]  # the others are of footers
    assert len(blocks) == 4 * 8
    assert proxy.body_bytes < 1.2 * 320 * NOISE


def test_a_wrong_bucket_and_a_wrong_name_are_different_mistakes(s3_port, proxy):
    s3.put_all(s3_port, "spelling", {"deep/data/a.parquet": numbered(0, 10)})
    for url, message in (
        ("s3://speling/deep/data", r"There is no bucket 'speling': check its name, and the endpoint"),
        ("s3://speling/deep/*.parquet", r"There is no bucket 'speling'"),
        ("s3://spelling/deep/date", r"s3://spelling/deep does, so check the name after it"),
        ("s3://spelling/deep/data/b.parquet", r"s3://spelling/deep/data does, so check"),
        ("s3://spelling/dep/data/*.parquet", r"s3://spelling does, so check the name after it"),
        ("s3://spelling/deep/data/*.csv", r"matches no object below s3://spelling/deep/data\. Check the pattern"),
    ):
        with pytest.raises(me.NoDataError, match=message):
            me.read(url, storage_options=proxy.options)


def test_a_store_that_does_not_answer_is_named_by_its_address(s3_port, proxy, monkeypatch):
    monkeypatch.setattr("midepoch.storage.store.RetryPolicy", lambda: RetryPolicy(attempts=2, first=0.001))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        for options in (
            {"endpoint_url": f"http://{address}"},
            {"client_kwargs": {"endpoint_url": f"http://{address}"}},
            {"endpoint": f"http://{address}"},
        ):
            with pytest.raises(me.StoreError) as raised:
                me.read("s3://bucket/data", storage_options={"key": "a-key-id", "secret": "a-secret-key", **options})
            message = str(raised.value)
            assert address in message
            assert "Check the endpoint and the network" in message
            assert "resume" not in message, "nothing was running yet"
            assert "a-secret-key" not in message


def test_tar_and_mds_read_like_local_files(tmp_path, s3_port, proxy):
    for number in range(3):
        numbered_tar(tmp_path / "tar" / f"{number}.tar", 400 * number, 400 * number + 400, 4000)
    numbered_mds(tmp_path / "mds", 300, 120)
    tar, mds = (s3.put_folder(s3_port, f"shards-{name}", tmp_path / name) for name in ("tar", "mds"))
    for local, url in ((f"{tmp_path}/tar", f"{tar}/{{0..2}}.tar"), (f"{tmp_path}/mds", mds)):
        near, far = me.read(local), me.read(url, storage_options=proxy.options)
        assert list(far) == list(near)
        assert list(far.shuffle(3)) == list(near.shuffle(3))
        me.testing.assert_resumes(far.shuffle(3).lanes(2).batch(40), every=7)
