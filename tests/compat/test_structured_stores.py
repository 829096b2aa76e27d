"""StructuredDataset on an S3 server: cut and resumed by many workers while it fails, and read no more than needed."""

import io
import json
from itertools import islice, zip_longest

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import midepoch as me
import s3
from chats import Chat, process, write_jsonl
from chats import ids as ids_of_packs
from midepoch.storage import retry as retries
from midepoch.storage import store as stores
from midepoch.storage.objects import LEAST_BYTES
from worlds import ids, write_files

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]

EACH, OBJECTS = 12, 16
ROWS = EACH * OBJECTS
SHUFFLED = {"shuffle": True, "shuffle_seed": 5, "shuffle_buffer_size": 30}
ORDERS = [{}, SHUFFLED]


@pytest.fixture(autouse=True)
def _hurried(monkeypatch):
    quick = retries.RetryPolicy(attempts=6, first=0.01, most=0.05)
    monkeypatch.setattr(stores, "RetryPolicy", lambda: quick)


@pytest.fixture(scope="module")
def shared(s3_port):
    """One proxy for all tests here. Another endpoint would be another index, and every object scanned again."""
    with s3.proxying(s3_port) as made:
        yield made


@pytest.fixture
def store(shared):
    shared.reset()
    yield shared
    shared.reset()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The objects as local files, for an uninterrupted run to compare with."""
    return write_files(tmp_path_factory.mktemp("world") / "d", [EACH] * OBJECTS, ["parquet"], block=5)


@pytest.fixture(scope="module")
def index_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("index-of-objects")


@pytest.fixture(scope="module")
def url(s3_port, folder):
    return s3.put_folder(s3_port, "structured", folder)


def create(source, store=None, format="parquet", **options):
    given = {"batch_size": 6, "columns": ["id"], "rank": 0, "num_ranks": 1, "output_format": "numpy", **options}
    if store is not None:
        given["storage_options"] = store.options
    return me.StructuredDataset.create_dataloader(source, format, **given)


def ranks_of(source, ranks, store=None, state=None, **options):
    pairs = [create(source, store, rank=rank, num_ranks=ranks, **options) for rank in range(ranks)]
    for _, dataset in pairs:
        if state is not None:
            dataset.load_state_dict(json.loads(json.dumps(state)))
    return pairs


def in_lockstep(pairs, steps=None):
    """What ranks receive that take steps together."""
    loops = [islice(iter(loader), steps) for loader, _ in pairs]
    return [number for step in zip_longest(*loops) for batch in step if batch is not None for number in ids([batch])]


def uninterrupted(folder, *, lanes=4, batch_size=6, **options):
    """What the readers of ``lanes`` lanes receive together, read by one of them from local files."""
    dataset = me.StructuredDataset(folder, "parquet", columns=["id"], output_format="numpy", **options)
    return ids(me.Loader(dataset.lanes(lanes), batch_size=batch_size))


def objects_of(rows, each=EACH):
    return {f"d/part-{number // each:04d}.parquet" for number in rows}


def asked(store):
    """The objects of which anything was asked."""
    return {request.key for request in store.requests if "." in request.key}


@pytest.mark.parametrize(("percent", "order"), [(25, {}), (97, SHUFFLED)])
def test_B7_finished_objects_are_not_asked_for_after_a_resume(url, folder, store, index_dir, order, percent):
    options = {**order, "num_workers": 2, "batch_size": 3}
    whole = uninterrupted(folder, batch_size=3, **order)
    pairs = ranks_of(url, 2, store, index_dir=index_dir, **options)
    got = in_lockstep(pairs, ROWS * percent // 100 // 6)
    state = pairs[percent % 2][1].state_dict()
    assert state["rows_done"] == len(got)
    store.reset()
    others = ranks_of(url, 1 + percent % 2, store, state, **order, batch_size=3, index_dir=index_dir)
    assert asked(store) == set()
    rest = in_lockstep(others)
    assert got + rest == whole
    assert asked(store) == objects_of(rest)
    for key in objects_of(got) - objects_of(rest):
        assert not any(request.key == key for request in store.requests)


@pytest.mark.parametrize("what", [[503, "drop", "cut"], ["late"]], ids=lambda what: str(what[0]))
def test_B7_a_store_that_fails_while_two_ranks_of_two_workers_train(url, folder, store, index_dir, what):
    options = {**SHUFFLED, "num_workers": 2}
    whole = uninterrupted(folder, **SHUFFLED)
    pairs = ranks_of(url, 2, store, index_dir=index_dir, **options)
    if what == ["late"]:
        store.latency = 0.03
    else:
        store.spoil = s3.now_and_then(what)
    got = in_lockstep(pairs, 7)
    others = ranks_of(url, 2, store, pairs[0][1].state_dict(), index_dir=index_dir, **options)
    assert got + in_lockstep(others) == whole
    assert len(store.requests) > 2 * OBJECTS


def hive(port, bucket, noise=20_000):
    """Objects of three years and two kinds, of four row groups with much in them that does not compress."""
    objects, first = {}, 0
    for year in (2022, 2023, 2024):
        for kind in "ab":
            sink = io.BytesIO()
            numbers = list(range(first, first + 40))
            rng = np.random.default_rng(first)
            table = pa.table({"id": numbers, "noise": [rng.bytes(noise) for _ in numbers]})
            pq.write_table(table, sink, row_group_size=10, compression="none")
            objects[f"d/year={year}/kind={kind}/p.parquet"] = sink.getvalue()
            first += 40
    s3.put_all(port, bucket, objects)
    return f"s3://{bucket}/d"


def test_B2_B3_hive_partitions_and_filters_read_no_byte_of_what_cannot_match(s3_port, store):
    source = hive(s3_port, "hive")
    filters = (pc.field("year") == 2023) & (pc.field("kind") == "b") & (pc.field("id") >= 145)
    options = {"filters": filters, "columns": ["id", "noise", "year", "kind"], "output_format": "dict", "batch_size": 3}
    options["partitioning"] = "hive"
    expected = list(range(145, 160))
    create(source, store, **options)
    store.reset()
    loader, _ = create(source, store, **options)
    assert asked(store) <= {"d/year=2023/kind=b/p.parquet"}
    batches = list(loader)
    assert ids(batches) == expected
    assert {(year, kind) for batch in batches for year, kind in zip(batch["year"], batch["kind"], strict=True)} == {
        (2023, "b")
    }
    # Two row groups of four, of one object of six, and its footer.
    assert asked(store) == {"d/year=2023/kind=b/p.parquet"}
    assert 20 * 20_000 < store.body_bytes < 20 * 20_000 + 3 * LEAST_BYTES
    assert loader.metrics()["rows_read"] == 20

    pairs = ranks_of(source, 2, store, **options, **SHUFFLED, num_workers=2)
    got = in_lockstep(pairs, 1)
    assert 0 < len(got) < len(expected)
    merged = me.merge_states([one.state_dict() for _, one in pairs])
    (again,) = ranks_of(source, 1, store, merged, **options, **SHUFFLED)
    assert sorted(got + ids(again[0])) == expected


@pytest.mark.parametrize("order", ORDERS, ids=["sequential", "shuffled"])
def test_B8_appended_objects_come_after_the_epoch(s3_port, store, tmp_path, order):
    bucket = f"growing-{len(order)}"
    write_files(tmp_path / "d", [EACH] * 6, ["parquet"])
    s3.put_folder(s3_port, bucket, tmp_path / "d")
    source, options = f"s3://{bucket}/d", {**order, "num_workers": 1}
    whole = uninterrupted(tmp_path / "d", lanes=2, **order)
    pairs = ranks_of(source, 2, store, **options)
    got = in_lockstep(pairs, 3)
    state = pairs[0][1].state_dict()
    write_files(tmp_path / "d", [EACH] * 9, ["parquet"])
    s3.put_folder(s3_port, bucket, tmp_path / "d")
    # All were put anew, so those of before have another time of change, but no other rows.
    appended = [create(source, store, rank=rank, num_ranks=2, **options) for rank in range(2)]
    with pytest.raises(me.CheckpointMismatchError, match="part-0006"):
        appended[0][1].load_state_dict(state)
    for _, dataset in appended:
        dataset.load_state_dict(state, new_files="append")
    got += in_lockstep(appended, 2)
    alone, last = create(source, store, **order)
    last.load_state_dict(appended[1][1].state_dict())
    got += ids(alone)
    assert sorted(got) == list(range(EACH * 9))
    assert [number for number in got if number < EACH * 6] == whole
    assert sorted(ids(alone)) == list(range(EACH * 9))


def test_C1_images_in_the_store(s3_port, store, tmp_path):
    chats = [Chat(words=number % 5 + 1, images=number % 3, broken=number == 7) for number in range(20)]
    write_jsonl(tmp_path / "d", chats)
    s3.put_folder(s3_port, "pictures", tmp_path / "d")
    options = {"processor": process, "on_error": "skip"}
    expected = list(
        me.MultiModalIterableDataset(tmp_path / "d/chats.jsonl", data_folder=tmp_path / "d", **options).lanes(2)
    )
    where = {"data_folder": "s3://pictures/d", "storage_options": store.options}

    def loader(workers):
        dataset = me.MultiModalIterableDataset("s3://pictures/d/chats.jsonl", **where, **options)
        return me.Loader(dataset.lanes(2), num_workers=workers), dataset

    first, dataset = loader(2)
    store.spoil = s3.now_and_then([503, "drop"], 0.1)
    got = list(islice(first, 8))
    second, other = loader(2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    got += second
    assert ids_of_packs(got) == ids_of_packs(expected)
    assert sorted(ids_of_packs(got)) == [number for number in range(20) if number != 7]
    assert all(
        (one["pixel_values"] is None and two["pixel_values"] is None)
        or np.array_equal(one["pixel_values"], two["pixel_values"])
        for one, two in zip(got, expected, strict=True)
    )
    assert dataset.metrics()["skipped"] + other.metrics()["skipped"] >= 1
    assert s3.SECRET not in repr(first.state_dict()) + repr(dataset) + repr(dataset._plan)
