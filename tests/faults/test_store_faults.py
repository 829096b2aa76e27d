"""A store that answers badly, not at all, or with other data than before; and secrets, which it leaves nowhere."""

import io
import json
import logging
import traceback
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import midepoch as me
import s3
from midepoch.storage import retry as retries
from midepoch.storage import store as stores
from midepoch.storage.block_cache import BlockCache
from worlds import ids

NOISE = 20_000


def table(first, last, seed=0):
    rng = np.random.default_rng(seed)
    return pa.table({"id": list(range(first, last)), "noise": [rng.bytes(NOISE) for _ in range(first, last)]})


def parquet(first, last, seed=0):
    sink = io.BytesIO()
    pq.write_table(table(first, last, seed), sink, row_group_size=10, compression="none")
    return sink.getvalue()


def stream(first, last, seed=0):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table(0, 1).schema) as writer:
        writer.write_table(table(first, last, seed), max_chunksize=10)
    return sink.getvalue()


def lines(first, last, seed=0):
    rows = ({"id": n, "noise": np.random.default_rng((seed, n)).bytes(NOISE).hex()} for n in range(first, last))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def stripes(first, last, seed=0):
    sink = io.BytesIO()
    orc.write_table(table(first, last, seed), sink, stripe_size=1, batch_size=10)
    return sink.getvalue()


WRITERS = {"parquet": parquet, "arrow": stream, "jsonl": lines, "orc": stripes}


@pytest.fixture(autouse=True)
def _hurried(monkeypatch):
    quick = retries.RetryPolicy(attempts=6, first=0.01, most=0.05)
    monkeypatch.setattr(stores, "RetryPolicy", lambda: quick)
    for name in ("FIRST_ROWS", "STEP_ROWS", "RUN_ROWS"):  # so that the rows at hand are those of one block
        monkeypatch.setattr(f"midepoch.sources.ahead.{name}", 10)


@pytest.fixture
def url(s3_port):
    s3.put_all(s3_port, "faulty", {f"d/p-{n}.parquet": parquet(n * 40, n * 40 + 40) for n in range(3)})
    return "s3://faulty/d"


@pytest.mark.parametrize("what", [500, 503, 429, "drop", "cut"])
def test_temporary_errors_are_retried(url, proxy, what):
    proxy.spoil = s3.now_and_then([what], 0.3)
    dataset = me.read(url, storage_options=proxy.options)
    assert ids(dataset) == list(range(120))
    assert sorted(ids(dataset.shuffle(1))) == list(range(120))


@pytest.mark.parametrize("when", ["opening", "reading", "reading ahead"])
def test_a_store_that_does_not_come_back_is_a_named_error(url, proxy, when):
    if when == "opening":
        proxy.spoil = lambda request: 503 if request.is_read else None
        with pytest.raises(
            me.StoreError, match=r"does not answer for s3://faulty/d/p-\d\.parquet: .*\(tried 6 times\)"
        ):
            me.read(url, storage_options=proxy.options)
        return
    dataset = me.read(url, storage_options=proxy.options, read_ahead=0 if when == "reading" else "1GiB")
    seen = []
    rows = iter(dataset)
    if when == "reading":
        seen.append(next(rows)["id"])
    proxy.spoil = lambda request: 503 if "p-1" in request.key and request.is_read else None
    with pytest.raises(me.StoreError, match=r"does not answer for s3://faulty/d/p-1\.parquet"):
        seen += (row["id"] for row in rows)
    # All rows before the failure came, and the run resumes after them.
    proxy.reset()
    dataset.load_state_dict(dataset.state_dict())
    assert seen + ids(dataset) == list(range(120))


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [(403, me.StoreError, "refuses access to s3://faulty/d"), (404, me.NoDataError, "s3://faulty/d does not exist")],
)
def test_a_lasting_error_is_raised_at_once(url, proxy, status, error, message):
    proxy.spoil = lambda request: status
    with pytest.raises(error, match=message):
        me.read(url, storage_options=proxy.options)
    assert len(proxy.requests) <= 3
    proxy.reset()
    dataset = me.read(url, storage_options=proxy.options, read_ahead=0)
    proxy.reset()
    proxy.spoil = lambda request: status if request.is_read else None
    what = me.StoreError if status == 403 else me.DataChangedError
    with pytest.raises(what, match=r"s3://faulty/d/p-0\.parquet"):
        list(dataset)
    assert len(proxy.reads()) <= 2  # ahead, and when the rows are due


@pytest.mark.parametrize(("kind", "ahead"), [("parquet", 0), ("arrow", "1GiB"), ("jsonl", 0), ("orc", "1GiB")])
def test_a_changed_object_is_noticed_before_its_rows_are_mixed(s3_port, proxy, kind, ahead):
    made = WRITERS[kind]
    bucket = f"changing-{kind}"
    s3.put_all(s3_port, bucket, {f"d/p-{n}.{kind}": made(n * 60, n * 60 + 60) for n in range(2)})
    dataset = me.read(f"s3://{bucket}/d", storage_options=proxy.options, read_ahead=ahead)
    old = {row["id"]: row["noise"] for row in me.read(f"s3://{bucket}/d", storage_options=proxy.options)}
    other = made(60, 120, seed=1)
    gone = iter(range(10**6))

    def replace(request):
        # As the second object is read for the second time: same size, other bytes.
        if request.is_read and "p-1" in request.key and next(gone) == 1:
            s3.put_all(s3_port, bucket, {f"d/p-1.{kind}": other})

    assert len(other) == len(made(60, 120))
    proxy.spoil = replace
    seen = []
    with pytest.raises(me.DataChangedError, match=rf"s3://{bucket}/d/p-1\.{kind} was changed.*another version"):
        seen += dataset
    assert ids(seen) == list(range(len(seen)))
    assert all(row["noise"] == old[row["id"]] for row in seen)
    assert len(seen) < 120
    proxy.reset()
    now = me.read(f"s3://{bucket}/d", storage_options=proxy.options)
    assert ids(now) == list(range(120))


# Row groups one by one; in groups of two; all of an object at once.
ONE, TWO, ALL = 0, 8 * 500_000, "1GiB"


@pytest.mark.parametrize(
    ("ahead", "other", "cached"),
    [(ONE, "same size", False), (TWO, "same size", True), (ALL, "shorter", False), (TWO, "longer", False)],
)
def test_whenever_an_object_changes_no_row_of_the_new_one_comes(s3_port, proxy, tmp_path, ahead, other, cached):
    old, changed = parquet(60, 120), {"same size": 60, "shorter": 40, "longer": 80}[other]
    new = parquet(60, 60 + changed, seed=1)
    s3.put_all(s3_port, "whenever", {"d/p-0.parquet": parquet(0, 60), "d/p-1.parquet": old})
    expected = list(me.read("s3://whenever/d", storage_options=proxy.options))
    cache = {}
    if cached:  # every other block of the object is there already, so that what is fetched has holes
        cache = {"cache_dir": tmp_path / "cache"}
        list(me.read("s3://whenever/d", storage_options=proxy.options, **cache))
        held = BlockCache(tmp_path / "cache", 1 << 30)
        blocks = sorted((tmp_path / "cache").glob("*.block"), key=lambda path: held.get(path.stem)["id"][0].as_py())
        assert len(blocks) == 12
        for block in blocks[::2]:
            block.unlink()
    kept = {path.name: path.read_bytes() for path in tmp_path.rglob("*.block")}
    outcomes = set()
    for turn in range(16):
        s3.put_all(s3_port, "whenever", {"d/p-1.parquet": old})
        for path in (tmp_path / "cache").glob("*"):
            path.unlink()
        for name, content in kept.items():
            (tmp_path / "cache" / name).write_bytes(content)
        dataset = me.read("s3://whenever/d", storage_options=proxy.options, read_ahead=ahead, **cache)
        requests = iter(range(10**6))

        def replace(request, turn=turn, requests=requests):
            if "p-1" in request.key and next(requests) == turn:
                s3.put_all(s3_port, "whenever", {"d/p-1.parquet": new})

        proxy.spoil = replace
        seen, message = [], None
        try:
            seen += dataset
        except me.DataChangedError as error:
            message = str(error)
        proxy.reset()
        assert seen == expected[: len(seen)]
        assert (message is None) == (len(seen) == len(expected))
        assert message is None or "s3://whenever/d/p-1.parquet was changed" in message
        outcomes.add(message is None)
        if message is None:  # it was asked for no longer
            break
    assert outcomes == {True, False}


@pytest.mark.parametrize("cached", [False, True])
def test_an_object_replaced_before_it_is_opened_is_noticed(s3_port, proxy, tmp_path, cached):
    s3.put_all(s3_port, "early", {f"d/p-{n}.parquet": parquet(n * 2000, n * 2000 + 40) for n in range(2)})
    cache = tmp_path / "cache" if cached else None
    if cached:  # blocks of the earlier version must not be used for the present one
        list(me.read("s3://early/d", storage_options=proxy.options, cache_dir=cache))
    dataset = me.read("s3://early/d", storage_options=proxy.options, read_ahead=0)
    rows = iter(dataset)
    seen = [next(rows)]
    s3.put_all(s3_port, "early", {"d/p-1.parquet": parquet(2000, 2040, seed=1)})
    with pytest.raises(me.DataChangedError, match=r"s3://early/d/p-1\.parquet was changed.*another version"):
        seen += rows
    assert max(ids(seen)) < 40
    again = list(me.read("s3://early/d", storage_options=proxy.options, cache_dir=cache))
    assert [row["noise"] for row in again[40:]] == table(2000, 2040, seed=1)["noise"].to_pylist()


@pytest.mark.parametrize(
    "source", ["s3://at-once/d", "s3://at-once/d/*.parquet", ["s3://at-once/d/p-0.parquet"]], ids=str
)
def test_an_object_that_is_replaced_at_once_is_read_anew(s3_port, proxy, tmp_path, source):
    """Same size, and at least two of these versions are of the same second, in which S3 counts."""
    for seed in range(4):
        s3.put_all(s3_port, "at-once", {"d/p-0.parquet": parquet(0, 20, seed=seed)})
        rows = list(me.read(source, storage_options=proxy.options, cache_dir=tmp_path / "cache"))
        assert [row["noise"] for row in rows] == table(0, 20, seed=seed)["noise"].to_pylist()


def test_a_missing_object_is_a_named_error(url, proxy, s3_port):
    dataset = me.read(url, storage_options=proxy.options, read_ahead=0)
    rows = iter(dataset)
    assert next(rows)["id"] == 0
    s3.call(s3_port, "DELETE", "/faulty/d/p-1.parquet")
    with pytest.raises(me.DataChangedError, match=r"s3://faulty/d/p-1\.parquet.*gone"):
        list(rows)


def test_a_damaged_object_is_a_format_error(s3_port, proxy):
    s3.put_all(s3_port, "broken", {"p.parquet": parquet(0, 40)[:-5], "q.orc": b"ORC" + bytes(99)})
    for name in ("p.parquet", "q.orc"):
        with pytest.raises(me.DataFormatError, match=f"s3://broken/{name}"):
            me.read(f"s3://broken/{name}", storage_options=proxy.options)


def test_secrets_are_in_nothing_that_is_left(url, proxy, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    secrets = [s3.KEY, s3.SECRET, "hush-hush-token"]
    options = {**proxy.options, "token": "hush-hush-token"}
    left = []
    proxy.spoil = s3.now_and_then([503, "drop"], 0.3)
    dataset = me.read(url, storage_options=options, index_dir=tmp_path / "index", cache_dir=tmp_path / "cache")
    rows = iter(dataset.shuffle(1))
    next(rows)
    left += [repr(dataset), str(dataset), json.dumps(dataset.state_dict())]
    del rows
    left += map(repr, (dataset._plan, dataset._plan.pipeline, dataset._plan.pipeline.source))
    for status in (403, 503, "drop"):
        proxy.spoil = lambda request, status=status: status
        for action in (
            lambda: me.read(url, storage_options=options),
            lambda: me.read(f"{url}/*.parquet", storage_options=options),
            lambda: list(me.read(url, storage_options=options, index_dir=tmp_path / "index")),
            lambda: list(dataset.select_columns(["id"])),
        ):
            with pytest.raises(me.MidepochError) as error:
                action()
            left += traceback.format_exception(error.value)
            chained = error.value
            while chained is not None:
                left.append(f"{chained!r} {chained.args}")
                chained = chained.__cause__ or chained.__context__
    left.append(caplog.text)
    content = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    content += "".join(str(path) for path in Path(tmp_path).rglob("*")).encode()
    assert len(content) > 1000
    assert "tried again" in caplog.text
    for secret in secrets:
        assert not any(secret in text for text in left)
    for secret in (*secrets, proxy.endpoint.removeprefix("http://")):  # messages say which store does not answer
        assert secret.encode() not in content
