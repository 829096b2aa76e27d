"""IcebergDataset against a real catalog in SQLite and a real table of Parquet files."""

import json
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
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


def test_an_executor_scans_the_files(config):
    jobs = []

    class Watched(ThreadPoolExecutor):
        def submit(self, *arguments, **options):
            jobs.append(arguments)
            return super().submit(*arguments, **options)

    with Watched(2) as executor:
        loader, _ = create(config, executor=executor)
    assert len(jobs) == 2
    assert sorted(ids(loader)) == list(range(70))


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


def with_deletes(table, monkeypatch, content, path):
    """Have the table's scans name a file of deletes, as other writers of Iceberg leave them."""
    from pyiceberg.manifest import DataFile, FileFormat
    from pyiceberg.table import DataScan, FileScanTask

    deletes = DataFile.from_args(content=content, file_path=path, file_format=FileFormat.PARQUET, record_count=1)
    plan = DataScan.plan_files
    monkeypatch.setattr(DataScan, "plan_files", lambda self: [FileScanTask(one.file, {deletes}) for one in plan(self)])
    return table


@pytest.mark.parametrize("order", ORDERS, ids=["sequential", "shuffled"])
@pytest.mark.parametrize("scan_filter", [None, "id >= 35"])
def test_position_deletes_are_applied_once(config, order, scan_filter, monkeypatch, tmp_path):
    from pyiceberg.manifest import DataFileContent

    table = table_of(config)
    files = {task.file.record_count: task.file.file_path for task in table.scan().plan_files()}
    gone = [(files[40], 0), (files[40], 7), (files[40], 8), (files[40], 39), (files[30], 11), (files[30], 11)]
    deletes = pa.table({"file_path": [path for path, _ in gone], "pos": pa.array([at for _, at in gone], pa.int64())})
    pq.write_table(deletes, tmp_path / "deletes.parquet")
    with_deletes(table, monkeypatch, DataFileContent.POSITION_DELETES, f"file://{tmp_path}/deletes.parquet")
    options = {"table": table, "scan_filter": scan_filter, **order}
    left = [number for number in range(70) if number not in (0, 7, 8, 39, 51) and (scan_filter is None or number >= 35)]
    whole = ids(create(None, **options)[0])
    assert sorted(whole) == left
    loader, dataset = create(None, **options)
    got = ids(islice(loader, 4))
    assert dataset.state_dict()["splits"] > 0
    again, other = create(None, **options)
    other.load_state_dict(dataset.state_dict())
    assert got + ids(again) == whole


def test_tables_that_cannot_be_read_raise(config, monkeypatch, tmp_path):
    from pyiceberg.manifest import DataFileContent

    with pytest.raises(ValueError, match="pass catalog_config too"):
        me.IcebergDataset("db.events")
    with pytest.raises(me.NoDataError, match="has no snapshot 7"):
        create(config, snapshot_id=7)
    table = table_of(config)
    with_deletes(table, monkeypatch, DataFileContent.EQUALITY_DELETES, f"file://{tmp_path}/none.parquet")
    with pytest.raises(me.DataFormatError, match="equality deletes"):
        create(None, table=table, columns=["id"])


def test_E7_a_table_that_gained_a_column_has_nulls_in_its_older_rows(config):
    from pyiceberg.catalog import load_catalog
    from pyiceberg.types import DoubleType

    table = load_catalog(**config).create_table("db.grown", schema=pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": pa.array(range(5), pa.int64())}))
    with table.update_schema() as update:
        update.add_column("score", DoubleType())
    table.append(pa.table({"id": pa.array(range(5, 8), pa.int64()), "score": [0.5, 1.5, None]}))
    dataset = opened(config, "db.grown")
    ours = sorted(dataset, key=lambda row: row["id"])
    assert ours == sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert [row["score"] for row in ours] == [None] * 5 + [0.5, 1.5, None]
    some = opened(config, "db.grown", filters="score > 1")
    assert [row["id"] for row in some] == [6]


def nested(first, count):
    """Rows with a struct, a list of structs and a map, some of them null."""
    point = pa.struct([("a", pa.int32()), ("b", pa.int32())])
    kinds = {"id": pa.int64(), "n": pa.int32(), "p": point, "l": pa.list_(point), "m": pa.map_(pa.string(), point)}
    made = [
        {
            "id": number,
            "n": 100 + number,
            "p": None if number % 5 == 0 else {"a": number, "b": -number},
            "l": None if number % 4 == 0 else [{"a": number + k, "b": k} for k in range(number % 3)],
            "m": None if number % 3 == 0 else [("k", {"a": number, "b": 1})],
        }
        for number in range(first, first + count)
    ]
    return pa.Table.from_pylist(made, pa.schema(list(kinds.items())))


def swap(update, one, other):
    """Let two columns exchange their names, in three updates."""
    for old, new in ((one, "between"), (other, one.rpartition(".")[2]), (between(one), other.rpartition(".")[2])):
        with update() as change:
            change.rename_column(old, new)


def between(name):
    return ".".join([*name.split(".")[:-1], "between"])


def add(update, path):
    from pyiceberg.types import LongType

    with update() as change:
        change.add_column(path, LongType())


def drop(update, path):
    with update(allow_incompatible_changes=True) as change:
        change.delete_column(path)


def rename(update, old, new):
    with update() as change:
        change.rename_column(old, new)


def widen(update, path):
    from pyiceberg.types import LongType

    with update() as change:
        change.update_column(path, field_type=LongType())


def move(update, path):
    with update() as change:
        change.move_first(path)


CHANGES = {
    "add": lambda update: add(update, "new"),
    "drop": lambda update: drop(update, "n"),
    "drop and add again": lambda update: (drop(update, "n"), add(update, "n")),
    "rename": lambda update: rename(update, "n", "number"),
    "swap": lambda update: swap(update, "id", "n"),
    "widen": lambda update: widen(update, "n"),
    "reorder": lambda update: move(update, "n"),
    "add in struct": lambda update: add(update, ("p", "c")),
    "drop in struct": lambda update: drop(update, ("p", "a")),
    "rename in struct": lambda update: rename(update, ("p", "a"), "z"),
    "widen in struct": lambda update: widen(update, ("p", "a")),
    "move in struct": lambda update: move(update, ("p", "b")),
    "drop and add again in struct": lambda update: (drop(update, ("p", "a")), add(update, ("p", "a"))),
    "rename in list": lambda update: rename(update, ("l", "element", "a"), "z"),
    "add in list": lambda update: add(update, ("l", "element", "c")),
    "widen in list": lambda update: widen(update, ("l", "element", "b")),
    "rename in map": lambda update: rename(update, ("m", "value", "a"), "z"),
    "drop in map": lambda update: drop(update, ("m", "value", "b")),
}


def as_scanned(table, **options):
    """What pyiceberg itself reads, in the order of its lines as text."""
    return sorted(table.scan(**options).to_arrow().to_pylist(), key=repr)


def as_read(config, name, **options):
    dataset = opened(config, name, **options)
    return sorted(dataset, key=repr)


@pytest.mark.parametrize("name", CHANGES)
def test_E7_a_table_whose_schema_changed_is_read_as_pyiceberg_reads_it(config, name):
    from pyiceberg.catalog import load_catalog

    table = load_catalog(**config).create_table("db.changed", schema=nested(0, 1).schema)
    table.append(nested(0, 20))
    first = table.current_snapshot().snapshot_id
    before = as_scanned(table)
    assert as_read(config, "db.changed") == before
    CHANGES[name](table.update_schema)
    assert as_read(config, "db.changed") == as_scanned(table)
    scanned = table.scan().to_arrow()
    table.append(scanned.slice(3, 9))  # rows under the new schema
    assert as_read(config, "db.changed") == as_scanned(table)
    assert as_read(config, "db.changed", snapshot_id=first) == as_scanned(table, snapshot_id=first) == before


def resumed(config, name, state, **options):
    """A dataset at a state: as it is opened, or as the error says to open it."""
    dataset = opened(config, name, **options)
    try:
        dataset.load_state_dict(state)
    except me.CheckpointMismatchError as error:
        named = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", str(error))}
        dataset = opened(config, name, **options, **named)
        dataset.load_state_dict(state)
    return dataset


@pytest.mark.parametrize("name", CHANGES)
def test_E7_a_checkpoint_of_a_schema_that_is_newer_than_the_snapshot_resumes(config, name):
    from pyiceberg.catalog import load_catalog

    table = load_catalog(**config).create_table("db.newer", schema=nested(0, 1).schema)
    table.append(nested(0, 20))
    early = opened(config, "db.newer")
    before = list(opened(config, "db.newer"))
    got_early = list(islice(early, 7))
    CHANGES[name](table.update_schema)
    late = opened(config, "db.newer")
    whole = list(opened(config, "db.newer"))
    got_late = list(islice(late, 11))
    for _ in range(2):  # the second time the table has another snapshot
        assert got_early + list(resumed(config, "db.newer", early.state_dict())) == before
        assert got_late + list(resumed(config, "db.newer", late.state_dict())) == whole
        table.append(table.scan().to_arrow().slice(3, 9))


def test_E7_a_checkpoint_resumes_if_other_columns_have_changed(config):
    from pyiceberg.catalog import load_catalog

    table = load_catalog(**config).create_table("db.others", schema=nested(0, 1).schema)
    table.append(nested(0, 20))
    some = {"columns": ["id", "p"], "scan_filter": "n > 102"}
    first = opened(config, "db.others", **some)
    got = list(islice(first, 7))
    drop(table.update_schema, ("m", "value", "b"))
    again = opened(config, "db.others", **some)
    again.load_state_dict(first.state_dict())
    assert ids(got) + ids(again) == list(range(3, 20))
    swap(table.update_schema, "n", "id")
    with pytest.raises(me.CheckpointMismatchError, match=r"read by schema 4 now. Pass snapshot_id=\d+, schema_id=0"):
        opened(config, "db.others", **some).load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match=r"has no schema 9\. Its schemas are 0, 1, 2, 3, 4"):
        opened(config, "db.others", schema_id=9)


@pytest.mark.parametrize("scan_filter", ["id >= 8", "id < 3", "n >= 12"])
def test_E7_filters_use_the_columns_that_names_stand_for_now(config, scan_filter):
    from pyiceberg.catalog import load_catalog

    rows = pa.table({"id": pa.array(range(10), pa.int64()), "n": pa.array(range(10, 20), pa.int64())})
    properties = {"write.parquet.row-group-limit": "2"}
    table = load_catalog(**config).create_table("db.swapped", schema=rows.schema, properties=properties)
    table.append(rows)
    _ = as_read(config, "db.swapped", scan_filter=scan_filter)  # what it rules out is saved
    swap(table.update_schema, "id", "n")
    read = as_read(config, "db.swapped", scan_filter=scan_filter)
    assert read == as_scanned(table, row_filter=scan_filter)


def test_E7_partitions_may_change_and_their_folders_may_have_any_name(config):
    from pyiceberg.catalog import load_catalog
    from pyiceberg.transforms import IdentityTransform

    rows = pa.table({"id": pa.array(range(6), pa.int64()), "p": ["a/b", "c d", "e%f", "g=h", "ü", "a/b"]})
    table = load_catalog(**config).create_table("db.parts", schema=rows.schema)
    table.append(rows)
    with table.update_spec() as update:
        update.add_field("p", IdentityTransform(), "p")
    table.append(rows)
    with table.update_spec() as update:
        update.remove_field("p")
    table.append(rows)
    assert as_read(config, "db.parts") == as_scanned(table)
    assert len(as_scanned(table)) == 18
