"""StructuredDataset, row by row of what it promises: exact wherever it is cut, whatever changes at the resume."""

import copy
import json
import pickle
from itertools import islice, pairwise, zip_longest

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

import midepoch as me
from midepoch.sources.blocks import FileBlocks
from worlds import ids, through_json, write_files

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]

SIZES = [60, 7, 0, 133, 40]
ROWS = sum(SIZES)
SHUFFLED = {"shuffle": True, "shuffle_seed": 5, "shuffle_buffer_size": 25, "split_rows": 20}
ORDERS = [{}, SHUFFLED]
SPLIT_KEYS = {"path", "row_offset", "row_length"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("world") / "data", SIZES, ["parquet"])


def create(folder, format="parquet", **options):
    options = {"batch_size": 8, "columns": ["id"], "rank": 0, "num_ranks": 1, "even": None, **options}
    return me.StructuredDataset.create_dataloader(folder, format, **options)


def ranks_of(folder, ranks, **options):
    return [create(folder, rank=rank, num_ranks=ranks, **options) for rank in range(ranks)]


def in_lockstep(pairs, steps=None):
    """What ranks receive that take steps together, step by step."""
    loops = [islice(iter(loader), steps) for loader, _ in pairs]
    return [ids([batch for batch in step if batch is not None]) for step in zip_longest(*loops)]


def flat(steps):
    return [number for step in steps for number in step]


def test_B1_a_loader_and_its_dataset(folder):
    loader, dataset = create(folder, output_format="numpy")
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert isinstance(loader, me.Loader)
    assert isinstance(dataset, me.StructuredDataset)
    assert len(loader) == len(dataset) == 30
    assert ids(loader) == list(range(ROWS))


@pytest.mark.parametrize(
    ("form", "kind"), [("torch", torch.Tensor), ("numpy", np.ndarray), ("arrow", pa.Array), ("dict", list)]
)
def test_B1_output_formats(folder, form, kind):
    loader, _ = create(folder, output_format=form)
    batch = next(iter(loader))
    assert isinstance(batch, pa.RecordBatch if form == "arrow" else dict)
    assert isinstance(batch["id"], kind)
    assert ids([batch]) == list(range(8))


def as_sum(batch):
    return sum(ids([batch]))


@pytest.mark.parametrize("form", ["torch", "arrow", "dict"])
def test_B1_collate_fn_gets_a_batch(folder, form):
    loader, dataset = create(folder, output_format=form, collate_fn=as_sum, num_workers=1)
    assert sum(loader) == sum(range(ROWS))
    assert len(next(iter(dataset))["id"]) == 8


def test_B5_what_is_made_of_the_dataset_of_a_pair_has_a_position_of_its_own(folder):
    loader, dataset = create(folder)
    for other in (dataset.map(dict), copy.copy(dataset)):
        received = ids(islice(other, 3))
        other.load_state_dict(through_json(other.state_dict()))
        assert received + ids(other) == list(range(ROWS))
    assert loader.state_dict()["lanes"] is None, "the pair has not begun"


def test_B1_splits_and_windows_are_shuffled_apart_and_together(folder):
    whole = list(range(ROWS))
    assert ids(me.StructuredDataset.create_dataloader(folder, None, 8, split_bytes=None)[0]) == whole
    near, _ = create(folder, shuffle_buffer_size=20, split_rows=40)
    rows = ids(near)
    assert sorted(rows) == whole != rows
    assert max(abs(row - place) for place, row in enumerate(rows)) < 80, "rows stay near their places"
    splits, _ = create(folder, shuffle=True, shuffle_buffer_size=0, split_rows=40)
    rows = ids(splits)
    assert sorted(rows) == whole != rows
    assert sum(after - before == 1 for before, after in pairwise(rows)) > ROWS // 2
    for options in ({"shuffle_buffer_size": 20}, {"shuffle": True, "shuffle_buffer_size": 0}):
        loader, dataset = create(folder, split_rows=40, **options)
        expected = ids(loader)
        loader, dataset = create(folder, split_rows=40, **options)
        seen = ids(islice(loader, 5))
        again, _ = create(folder, split_rows=40, **options)
        again.load_state_dict(dataset.state_dict())
        assert seen + ids(again) == expected


def test_B1_show_progress_writes_to_a_terminal_and_changes_nothing(folder, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("midepoch._common.jobs.QUIET_SECONDS", 0.0)
    loader, dataset = create(folder, show_progress=True)
    batches = iter(loader)
    assert ids(islice(batches, 3)) == list(range(24))
    assert capsys.readouterr().err.endswith("] 1/30 batches")
    assert ids(batches) == list(range(24, ROWS))
    assert capsys.readouterr().err.endswith("] 30/30 batches\n")
    assert dataset.epoch == 1


@pytest.mark.parametrize("kind", ["parquet", "orc", "csv", "json", "jsonl", "stream"])
def test_B2_formats(tmp_path, kind):
    write_files(tmp_path / "data", [30, 20], [kind])
    named = {"stream": "arrow"}.get(kind, kind)
    source = f"{tmp_path}/data/*" if kind == "json" else tmp_path / "data"
    loader, dataset = create(source, named, output_format="dict")
    got = ids(islice(loader, 3))
    again, other = create(source, named, output_format="dict", num_workers=1)
    other.load_state_dict(dataset.state_dict())
    assert got + ids(again) == list(range(50))


def test_B2_a_folder_a_glob_a_file_a_list(folder):
    files = sorted(folder.iterdir())
    for source in (folder, f"{folder}/*.parquet", files, iter(files)):
        assert ids(create(source)[0]) == list(range(ROWS))
    assert ids(create(files[0])[0]) == list(range(60))


@pytest.mark.parametrize(("format", "kind"), [("parquet", "parquet"), ("csv", "csv"), ("arrow", "stream")])
def test_B2_of_a_folder_only_files_of_the_format_are_read(tmp_path, format, kind):
    write_files(tmp_path, [30, 20], [kind])
    for other in {"parquet", "csv", "stream", "jsonl"} - {kind}:
        write_files(tmp_path / "others", [7], [other])
    assert ids(create(tmp_path, format, output_format="dict")[0]) == list(range(50))
    with pytest.raises(me.NoDataError, match=r"no file that ends in \.orc \(it holds 5 others, such as part-"):
        create(tmp_path, "orc")


def test_B2_hive_folders_become_columns(tmp_path):
    for year in (2023, 2024):
        write_files(tmp_path / f"year={year}", [10], ["parquet"])
    hive = {"partitioning": "hive", "output_format": "dict", "batch_size": 20}
    loader, dataset = create(tmp_path, columns=["id", "year"], **hive)
    assert next(iter(loader))["year"] == [2023] * 10 + [2024] * 10
    assert dataset.state_dict()["splits_under_way"] == []
    plain, _ = create(tmp_path, columns=None, output_format="dict")
    assert "year" not in next(iter(plain)), "folders are columns only if that is asked for, as in me.read"
    with pytest.raises(me.SchemaMismatchError, match=r"folder is named year=…: pass partitioning='hive'"):
        create(tmp_path, columns=["id", "year"])
    file = tmp_path / "year=2024" / "part-0000.parquet"
    alone, _ = create(file, columns=["year"], **hive)
    assert next(iter(alone))["year"] == [2024] * 10
    with pytest.raises(me.SchemaMismatchError, match="no folder with files is named key=value"):
        create(file.parent, columns=None, **hive)
    assert me.read(file, partitioning="hive", columns=["year"]).head(1) == [{"year": 2024}]


def test_B3_row_groups_that_cannot_match_are_not_read(folder, monkeypatch):
    read = spied(monkeypatch)
    loader, _ = create(folder, columns=["maybe"], filters=pc.field("id") >= 230)
    assert sum(len(batch["maybe"]) for batch in loader) == 10
    assert len(read) == 1


def test_B4_set_epoch_does_not_undo_a_resume(folder):
    loader, dataset = create(folder, **SHUFFLED)
    dataset.set_epoch(3)
    got = ids(islice(loader, 10))
    again, other = create(folder, **SHUFFLED)
    other.load_state_dict(dataset.state_dict())
    assert other.epoch == 3
    other.set_epoch(3)
    got += ids(again)
    whole, reference = create(folder, **SHUFFLED)
    reference.set_epoch(3)
    assert got == ids(whole)
    assert other.epoch == 4
    other.set_epoch(7)
    reference.set_epoch(7)
    assert ids(again) == ids(whole)


@pytest.mark.parametrize("order", ORDERS, ids=["sequential", "shuffled"])
@pytest.mark.parametrize("workers", [0, 2])
def test_B5_a_state_in_the_loop_is_what_the_loop_received(folder, order, workers):
    whole = ids(create(folder, **order, num_workers=workers)[0])
    loader, dataset = create(folder, **order, num_workers=workers)
    seen = 0
    for batch in loader:
        seen += len(batch["id"])
        state = through_json(dataset.state_dict())
        assert state["rows_done"] == seen
        assert loader.state_dict() == dataset.state_dict()
        again, other = create(folder, **order)
        other.load_state_dict(state)
        assert ids(islice(again, 2)) == whole[seen : seen + 16]
        again.load_state_dict(again.state_dict())
        assert ids([next(iter(again))]) == whole[seen + 16 : seen + 24]
        if seen > 160:
            break
    assert dataset.state_dict() == state


@pytest.mark.parametrize("order", ORDERS, ids=["sequential", "shuffled"])
@pytest.mark.parametrize("workers", [0, 3])
def test_B6_completed_splits_are_those_whose_rows_were_all_delivered(folder, order, workers):
    options = {**order, "split_rows": 20, "num_workers": workers}
    names = [file.name for file in sorted(folder.iterdir())]
    starts = dict(zip(names, np.cumsum([0, *SIZES]).tolist(), strict=False))
    sizes = dict(zip(names, SIZES, strict=True))

    def rows_of(split):
        assert set(split) == SPLIT_KEYS
        offset = split["row_offset"] or 0
        length = sizes[split["path"]] if split["row_length"] is None else split["row_length"]
        return set(range(starts[split["path"]] + offset, starts[split["path"]] + offset + length))

    loader, dataset = create(folder, **options)
    delivered, finished = set(), set()
    for batch in loader:
        delivered |= set(ids([batch]))
        state = dataset.state_dict()
        assert state["epoch"] == 0
        assert state["_num_workers"] == workers
        assert state["_shuffle_seed"] == order.get("shuffle_seed")
        splits = [split for shard in state["completed_shards"] for split in shard["splits"]]
        assert len(splits) <= 32
        finished |= {json.dumps(split) for split in splits}
        assert all(rows_of(split) <= delivered for split in splits)
        assert sum(shard["splits_done"] for shard in state["completed_shards"]) == state["splits_done"]
        done = set().union(*(rows_of(json.loads(split)) for split in finished))
        under_way = state["splits_under_way"]
        for group in under_way:
            rows = set().union(*map(rows_of, group["splits"]))
            assert len(rows) == group["rows"]
            assert len(rows & delivered) == group["rows_delivered"]
        assert len(done) + sum(group["rows_delivered"] for group in under_way) == len(delivered) == state["rows_done"]
        assert len(finished) == state["splits_done"]
    assert len(finished) == state["splits"] == state["splits_done"]


def test_B6_whole_files_have_no_offsets_and_paths_no_machine(folder):
    loader, dataset = create(folder)
    for _ in islice(loader, 20):
        pass
    state = dataset.state_dict()
    first, *_ = state["completed_shards"][0]["splits"]
    assert first == {"path": "part-0000.parquet", "row_offset": None, "row_length": None}
    assert str(folder) not in json.dumps(state)
    (under_way,) = state["splits_under_way"]
    assert under_way["splits"] == [{"path": "part-0003.parquet", "row_offset": None, "row_length": None}]
    assert under_way["rows_delivered"] == 160 - 67


def test_B6_a_state_stays_small_however_many_splits_and_lanes(tmp_path):
    write_files(tmp_path, [40] * 100, ["parquet"])
    for options in ({"split_rows": 10}, {**SHUFFLED, "split_rows": 10, "num_workers": 3}):
        pairs = ranks_of(tmp_path, 40, **options)[:2]
        for loader, dataset in pairs:
            sizes = []
            for _ in loader:
                sizes.append(len(json.dumps(dataset.state_dict())))
            assert max(sizes) < 8000


def spied(monkeypatch):
    """The numbers of the blocks that are read from now on, in this process."""
    read = []
    real = FileBlocks.read
    monkeypatch.setattr(FileBlocks, "read", lambda self, numbers: (read.extend(numbers), real(self, numbers))[1])
    return read


@pytest.mark.parametrize("order", ORDERS, ids=["sequential", "shuffled"])
@pytest.mark.parametrize("percent", [25, 97])
def test_B7_finished_splits_cost_no_reading(folder, order, percent, monkeypatch):
    whole = ids(create(folder, **order)[0])
    batches = len(whole) // 8 * percent // 100
    loader, dataset = create(folder, **order)
    got = ids(islice(loader, batches))
    state = dataset.state_dict()
    read = spied(monkeypatch)
    again, other = create(folder, **order)
    other.load_state_dict(state)
    assert read == []
    rest = ids(again)
    assert got + rest == whole
    starts = other._plan.pipeline.source.index.view.block_starts
    needed = set((np.searchsorted(starts, rest, "right") - 1).tolist())
    assert set(read) <= needed | {int(np.searchsorted(starts, got[-1], "right")) - 1}
    if not order:
        assert min(read) == np.searchsorted(starts, len(got), "right") - 1


def saved(folder, **options):
    loader, dataset = create(folder, **options)
    for _ in islice(loader, 10):
        pass
    return dataset.state_dict()


CHANGES = [
    (SHUFFLED, {**SHUFFLED, "shuffle_seed": 6}, "seed of stage . shuffle, was 5 then and is 6 now|seed of stage"),
    (SHUFFLED, {}, "shuffle"),
    (SHUFFLED, {**SHUFFLED, "shuffle_buffer_size": 30}, "window of stage .*25 then and is 30 now"),
    (SHUFFLED, {**SHUFFLED, "split_rows": 40}, "split_rows of stage .*20 then and is 40 now"),
    ({}, {"columns": ["id", "text"]}, "columns of stage .*'id'.* then and is .*'text'.* now"),
    ({"filters": pc.field("id") > 3}, {"filters": pc.field("id") > 4}, "filter of stage .*> 3.* then .*> 4.* now"),
    ({}, {"filters": pc.field("id") > 4}, "where"),
]


@pytest.mark.parametrize(("then", "now", "message"), CHANGES)
def test_B8_another_pipeline_is_refused_and_named(folder, then, now, message):
    state = saved(folder, **then)
    _, dataset = create(folder, **now)
    with pytest.raises(me.CheckpointMismatchError, match=message) as error:
        dataset.load_state_dict(state)
    assert "start over" in str(error.value)


def test_B8_changed_files_are_named_with_their_rows(tmp_path):
    write_files(tmp_path, [30, 20], ["parquet"])
    state = saved(tmp_path, batch_size=2)
    pq.write_table(pa.table({"id": range(25)}), tmp_path / "part-0001.parquet")
    _, dataset = create(tmp_path)
    with pytest.raises(
        me.CheckpointMismatchError, match=r"part-0001.parquet has 25 rows; the checkpoint .* had 20. .*Restore"
    ):
        dataset.load_state_dict(state)
    (tmp_path / "part-0001.parquet").unlink()
    _, dataset = create(tmp_path)
    for new_files in ("error", "append"):
        with pytest.raises(me.CheckpointMismatchError, match=r"part-0001.parquet is missing"):
            dataset.load_state_dict(state, new_files=new_files)


def test_B8_new_files_are_an_error_unless_they_are_to_be_appended(tmp_path):
    write_files(tmp_path, [30, 20], ["parquet"])
    state = saved(tmp_path, batch_size=2)
    write_files(tmp_path, [30, 20, 5], ["parquet"])
    _, dataset = create(tmp_path)
    with pytest.raises(me.CheckpointMismatchError, match=r"part-0002.parquet is new."):
        dataset.load_state_dict(state)
    with pytest.raises(ValueError, match="new_files is 'ignore'"):
        dataset.load_state_dict(state, new_files="ignore")


def test_B8_another_format_is_refused(tmp_path):
    (tmp_path / "rows.txt").write_text("\n".join(json.dumps({"id": number}) for number in range(50)) + "\n")
    options = {"columns": None, "output_format": "dict"}
    state = saved(tmp_path / "rows.txt", format="jsonl", batch_size=2, **options)
    (_, dataset) = create(tmp_path / "rows.txt", "csv", **options)
    del state["checksum"]
    state["fingerprint"]["data"] |= {
        key: dataset.state_dict()["fingerprint"]["data"][key] for key in ("rows", "digest", "list")
    }
    with pytest.raises(
        me.CheckpointMismatchError, match=r"rows.txt, .*read as 'jsonl' .* read as 'csv' now. Pass format"
    ):
        dataset.load_state_dict(state)


def test_B9_other_ranks_and_workers_keep_the_order_and_other_batch_sizes_the_rows(folder):
    whole = flat(in_lockstep(ranks_of(folder, 2, **SHUFFLED, num_workers=2)))
    pairs = ranks_of(folder, 2, **SHUFFLED, num_workers=2)
    got = flat(in_lockstep(pairs, 4))
    one = create(folder, **SHUFFLED, num_workers=1)
    one[1].load_state_dict(pairs[1][1].state_dict())
    got += flat(in_lockstep([one], 4))
    three = ranks_of(folder, 4, **SHUFFLED)
    for _, dataset in three:
        dataset.load_state_dict(one[1].state_dict())
    assert got + flat(in_lockstep(three)) == whole
    larger, dataset = create(folder, **SHUFFLED, batch_size=13)
    dataset.load_state_dict(one[1].state_dict())
    assert sorted(got + ids(larger)) == list(range(ROWS))


FILTER = {"filters": pc.field("maybe") > 12}


@pytest.mark.parametrize("options", [SHUFFLED, {**SHUFFLED, **FILTER}, FILTER], ids=["rows", "filtered", "in order"])
def test_B10_a_file_a_rank_and_all_in_one_file(folder, options, tmp_path):
    whole = sorted(flat(in_lockstep(ranks_of(folder, 2, **options, num_workers=2))))
    pairs = ranks_of(folder, 2, **options, num_workers=2)
    got = flat(in_lockstep(pairs, 5))
    for rank, (_, dataset) in enumerate(pairs):
        torch.save(dataset.state_dict(), tmp_path / f"rank-{rank}.pt")
    torch.save([dataset.state_dict() for _, dataset in pairs], tmp_path / "all.pt")

    own = ranks_of(folder, 2, **options, num_workers=1)
    for rank, (_, dataset) in enumerate(own):
        dataset.load_state_dict(torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True))
    assert sorted(got + flat(in_lockstep(own))) == whole

    gathered = torch.load(tmp_path / "all.pt", weights_only=True)
    same = ranks_of(folder, 2, **options)
    for rank, (_, dataset) in enumerate(same):
        dataset.load_state_dict(gathered[rank])
    assert sorted(got + flat(in_lockstep(same))) == whole

    merged = me.merge_states(gathered)
    for ranks in (1, 3):
        others = ranks_of(folder, ranks, **options, num_workers=1)
        for _, dataset in others:
            dataset.load_state_dict(merged)
        assert sorted(got + flat(in_lockstep(others))) == whole


def test_B10_nothing_of_torch_distributed_that_communicates_is_called(folder, monkeypatch):
    for name in ("all_gather", "all_gather_object", "all_reduce", "barrier", "broadcast", "broadcast_object_list"):
        monkeypatch.setattr(torch.distributed, name, lambda *_, **__: pytest.fail("communicates"))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    loader, dataset = create(folder, rank=None, num_ranks=None)
    got = ids(islice(loader, 3))
    dataset.load_state_dict(dataset.state_dict())
    assert got + ids(loader) == list(range(ROWS // 2, ROWS))


@pytest.mark.parametrize("order", ORDERS, ids=["sequential", "shuffled"])
def test_B11_one_small_file_and_four_ranks(tmp_path, order):
    write_files(tmp_path, [11], ["parquet"], block=100)
    pairs = ranks_of(tmp_path, 4, **order, batch_size=2, num_workers=1)
    parts = [ids(loader) for loader, _ in pairs]
    assert [len(part) for part in parts] == [3, 3, 3, 2]
    assert sorted(flat(parts)) == list(range(11))
    pairs = ranks_of(tmp_path, 4, **order, batch_size=2)
    got = flat(in_lockstep(pairs, 1))
    alone, dataset = create(tmp_path, **order)
    dataset.load_state_dict(pairs[2][1].state_dict())
    assert sorted(got + ids(alone)) == list(range(11))


@pytest.mark.parametrize("form", ["torch", "numpy", "arrow", "dict"])
def test_B12_ints_with_nulls_keep_their_values(folder, form):
    loader, _ = create(folder, columns=["maybe"], output_format=form)
    values = next(iter(loader))["maybe"]
    found = values.to_pylist() if form == "arrow" else list(values)
    assert found == [None, 1, 2, 3, 4, None, 6, 7]
    assert all(value is None or isinstance(value, int) for value in found)


def test_B12_a_missing_column_is_an_error(folder):
    with pytest.raises(me.SchemaMismatchError, match="nope"):
        create(folder, columns=["id", "nope"])


def test_B12_a_folder_without_matching_files_is_an_error(tmp_path):
    with pytest.raises(me.NoDataError, match="empty"):
        create(tmp_path)
    (tmp_path / "notes.txt").write_text("no data")
    with pytest.raises(me.NoDataError, match=r"notes.txt"):
        create(tmp_path)
    write_files(tmp_path, [10], ["csv"])
    with pytest.raises(me.NoDataError, match=r"no file that ends in \.parquet, \.pq"):
        create(tmp_path, "parquet")


@pytest.mark.parametrize(("method", "persistent"), [("spawn", False), ("forkserver", True), ("fork", True)])
def test_B13_start_methods_and_persistent_workers(folder, method, persistent):
    options = {**SHUFFLED, "num_workers": 2, "multiprocessing_context": method, "persistent_workers": persistent}
    whole, _ = create(folder, **{**SHUFFLED, "num_workers": 2})
    expected = [ids(whole), ids(whole)]
    loader, dataset = create(folder, **options)
    got = ids(islice(loader, 5))
    state = through_json(dataset.state_dict())
    if persistent:
        dataset.load_state_dict(state)
        got += ids(loader)
        assert got == expected[0]
        assert ids(loader) == expected[1]
    dataset.load_state_dict(state)
    assert ids(loader) == expected[0][40:]


def test_a_dataset_without_a_loader(folder):
    dataset = me.StructuredDataset(folder, "parquet", **SHUFFLED, columns=["id"])
    whole = ids(dataset)
    assert sorted(whole) == list(range(ROWS))
    dataset.set_epoch(0)
    got = ids(islice(dataset, 77))
    state = dataset.state_dict()
    assert state["rows_done"] == 77
    dataset.load_state_dict(state)
    assert got + ids(pickle.loads(pickle.dumps(dataset))) == whole
    mapped = dataset.map(lambda row: {"twice": 2 * row["id"]})
    assert isinstance(mapped, me.StructuredDataset)
    assert mapped.state_dict()["_shuffle_seed"] == 5
    again, other = create(folder, **SHUFFLED)
    other.load_state_dict(state)
    assert got + ids(again) == whole


GROWTH = [([131, 90], [131, 90, 77]), ([14] * 16, [14] * 20)]


@pytest.mark.parametrize(("then", "now"), GROWTH, ids=["listed", "many"])
@pytest.mark.parametrize("order", ORDERS, ids=["sequential", "shuffled"])
@pytest.mark.parametrize("percent", [10, 97, 100])
def test_appended_files_come_after_the_rows_of_the_epoch(tmp_path, then, now, order, percent):
    write_files(tmp_path, then, ["parquet"])
    old, new = sum(then), sum(now)
    whole = flat(in_lockstep(ranks_of(tmp_path, 2, **order)))
    pairs = ranks_of(tmp_path, 2, **order)
    got = flat(in_lockstep(pairs, -(-old // 16) * percent // 100))
    state = pairs[0][1].state_dict()
    assert pairs[0][1].epoch == 0
    assert ("list" in state["fingerprint"]["data"]) == (len(then) == 2)
    write_files(tmp_path, now, ["parquet"])

    other = ranks_of(tmp_path, 2, **order)
    for _, dataset in other:
        dataset.load_state_dict(through_json(state), new_files="append")
    rest = flat(in_lockstep(other, 2))
    state = through_json(other[1][1].state_dict())
    assert state["grown"]
    alone, again = create(tmp_path, **order)
    again.load_state_dict(state)
    assert again.state_dict() == state
    rest += ids(alone)
    assert sorted(got + rest) == list(range(new))
    assert [number for number in got + rest if number < old] == whole
    assert sorted(ids(alone)) == list(range(new))
    assert "grown" not in again.state_dict()


def test_a_state_from_between_epochs_takes_new_files_as_they_are(tmp_path):
    write_files(tmp_path, [30, 20], ["parquet"])
    loader, dataset = create(tmp_path, **SHUFFLED)
    list(loader)
    write_files(tmp_path, [30, 20, 10], ["parquet"])
    again, other = create(tmp_path, **SHUFFLED)
    other.load_state_dict(dataset.state_dict(), new_files="append")
    assert "grown" not in other.state_dict()
    whole, reference = create(tmp_path, **SHUFFLED)
    reference.set_epoch(1)
    assert ids(again) == ids(whole)


def test_files_can_be_appended_twice_in_an_epoch_and_between_others(tmp_path):
    def named(name, first, rows):
        pq.write_table(pa.table({"id": range(first, first + rows)}), tmp_path / name, row_group_size=5)

    named("a.parquet", 0, 20)
    named("m.parquet", 20, 20)
    order = {**SHUFFLED, "batch_size": 4}
    whole = ids(create(tmp_path, **order)[0])
    loader, dataset = create(tmp_path, **order)
    got = ids(islice(loader, 3))
    named("c.parquet", 40, 20)
    loader, following = create(tmp_path, **order)
    following.load_state_dict(dataset.state_dict(), new_files="append")
    got += ids(islice(loader, 8))
    named("b.parquet", 60, 20)
    named("z.parquet", 80, 20)
    loader, last = create(tmp_path, **order)
    last.load_state_dict(following.state_dict(), new_files="append")
    state = last.state_dict()
    got += ids(islice(loader, 2))
    alone, reloaded = create(tmp_path, **order)
    reloaded.load_state_dict(last.state_dict())
    got += ids(alone)
    assert sorted(got) == list(range(100))
    assert [number for number in got if number < 40] == whole
    assert max(got[:60]) < 60
    assert state["grown"] == [[[0, 1], [3, 4]], [[2, 3]]]


def test_appending_that_is_not_possible_raises(tmp_path):
    write_files(tmp_path, [30, 20], ["parquet"])
    filters = {"filters": pc.field("id") > 3}
    state = saved(tmp_path, batch_size=2, **filters)
    write_files(tmp_path, [30, 20, 5], ["parquet"])
    with pytest.raises(me.CheckpointMismatchError, match="new_files='append' is not possible: filters leave out"):
        create(tmp_path, **filters)[1].load_state_dict(state, new_files="append")
