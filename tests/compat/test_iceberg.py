"""IcebergDataset against a real catalog in SQLite and a real table of Parquet files."""

import json
import os
import pickle
from itertools import islice

import pyarrow as pa
import pytest

import midepoch as me
from midepoch._common import files as common_files
from worlds import ids

pytest.importorskip("pyiceberg")
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyiceberg"),
]

ORDERS = [{}, {"shuffle": True, "shuffle_buffer_size": 20, "split_rows": 10}]


def rows(first, count):
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "x": pa.array([0.5] * count)})


@pytest.fixture
def config(tmp_path):
    from pyiceberg.catalog import load_catalog

    (tmp_path / "house").mkdir()
    options = {
        "name": "tests",
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/house",
    }
    catalog = load_catalog(**options)
    catalog.create_namespace("db")
    properties = {"write.parquet.row-group-limit": "10"}
    table = catalog.create_table("db.events", schema=rows(0, 1).schema, properties=properties)
    table.append(rows(0, 40))
    table.append(rows(40, 30))
    catalog.close()
    return options


def table_of(config):
    from pyiceberg.catalog import load_catalog

    return load_catalog(**config).load_table("db.events")


def create(config, table="db.events", **options):
    options = {"batch_size": 4, "rank": 0, "num_ranks": 1, **options}
    return me.IcebergDataset.create_dataloader(table, config, **options)


def opened(config, table, **options):
    return me.IcebergDataset(table, config, **{"rank": 0, "num_ranks": 1, **options})


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can be several users")
@pytest.mark.parametrize("open_table", [opened, create], ids=["dataset", "loader"])
def test_the_index_of_another_user_is_used_if_that_user_is_trusted(config, open_table, tmp_path, monkeypatch):
    monkeypatch.setattr(common_files, "_shared", set())
    options = {"index_dir": tmp_path / "kept", "cache_dir": tmp_path / "blocks"}
    open_table(config, table="db.events", **options)
    (index,) = (tmp_path / "kept").glob("*.index")
    os.chown(index, 12345, 12345)
    open_table(config, table="db.events", **options, trust_shared=True)
    assert index.stat().st_uid == 12345
    assert common_files.is_shared(tmp_path / "blocks" / "a")
    common_files._shared.clear()
    open_table(config, table="db.events", **options)
    assert index.stat().st_uid == 0


@pytest.mark.parametrize("order", ORDERS, ids=["sequential", "shuffled"])
def test_a_snapshot_is_read_and_resumed(config, order):
    whole = ids(create(config, **order)[0])
    assert sorted(whole) == list(range(70))
    loader, dataset = create(config, **order, num_workers=1)
    got = ids(islice(loader, 7))
    state = json.loads(json.dumps(dataset.state_dict()))
    assert state["snapshot_id"] == table_of(config).current_snapshot().snapshot_id
    assert state["rows_done"] == 28
    again, other = create(config, **order)
    other.load_state_dict(state)
    assert pickle.loads(pickle.dumps(other)).state_dict()["snapshot_id"] == state["snapshot_id"]
    assert got + ids(again) == whole


def test_a_table_that_grew_resumes_at_its_old_snapshot(config):
    whole = ids(create(config)[0])
    loader, dataset = create(config)
    got = ids(islice(loader, 5))
    state = dataset.state_dict()
    table_of(config).append(rows(70, 10))
    _, newer = create(config)
    with pytest.raises(me.CheckpointMismatchError, match=f"snapshot {state['snapshot_id']} .*Pass snapshot_id="):
        newer.load_state_dict(state)
    with pytest.raises(ValueError, match="not possible with Iceberg"):
        newer.load_state_dict(state, new_files="append")
    again, older = create(config, snapshot_id=state["snapshot_id"])
    older.load_state_dict(state)
    assert got + ids(again) == whole
    assert len(ids(create(config)[0])) == 80


def test_scan_filter_reads_only_what_can_match(config):
    for scan_filter in ("id >= 55", pyiceberg_filter()):
        loader, _ = create(config, scan_filter=scan_filter, columns=["x", "id"])
        assert sorted(ids(loader)) == list(range(55, 70))
        assert loader.metrics()["rows_read"] == 20, "two row groups"
    with pytest.raises(ValueError, match="nope"):
        create(config, scan_filter="nope > 3")
    with pytest.raises(ValueError, match="scan_filter and filters mean the same"):
        create(config, scan_filter="id > 3", filters="id > 3")


def pyiceberg_filter():
    from pyiceberg.expressions import GreaterThanOrEqual

    return GreaterThanOrEqual("id", 55)


def test_tables_that_cannot_be_read_raise(config):
    with pytest.raises(ValueError, match="pass catalog_config too"):
        me.IcebergDataset("db.events")
    with pytest.raises(me.NoDataError, match="has no snapshot 7"):
        create(config, snapshot_id=7)
