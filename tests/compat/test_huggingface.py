"""The Hugging Face front door over the real `datasets`: what is remembered, what is noticed, which rows come."""

import inspect
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fast_hf_loader_simple
import midepoch as me
from hf import fresh, numbered, rows_of, write_parquet
from midepoch.formats import arrow
from midepoch.integrations.huggingface import LoadArguments
from worlds import ids, table

SIZES = [30, 20, 10]


@pytest.fixture
def data(tmp_path):
    return write_parquet(tmp_path / "data", SIZES)


@pytest.fixture
def load(tmp_path, data, monkeypatch):
    """Open the Parquet files as a user would, with caches of this test alone."""
    monkeypatch.setenv("MIDEPOCH_INDEX_DIR", str(tmp_path / "index"))

    def load(path="parquet", **options):
        if path == "parquet" and not {"data_files", "data_dir"} & options.keys():
            options["data_files"] = str(data / "*.parquet")
        return me.fast_load_iterable_dataset(path, **{"cache_dir": str(tmp_path / "cache"), "split": "train"} | options)

    return load


@pytest.fixture
def asked(monkeypatch):
    """How `datasets` was asked, each time it was."""
    calls = []
    original = datasets.load_dataset

    def watched(*arguments, **options):
        calls.append(options)
        return original(*arguments, **options)

    monkeypatch.setattr(datasets, "load_dataset", watched)
    return calls


@pytest.fixture
def warnings(caplog):
    """What was logged since it was last asked."""
    caplog.set_level(logging.WARNING, "midepoch")

    def warnings():
        messages = [record.getMessage() for record in caplog.records if record.name == "midepoch"]
        caplog.clear()
        return messages

    return warnings


def test_A1_the_signature_is_the_promised_one():
    parameters = inspect.signature(me.fast_load_iterable_dataset).parameters
    assert {name: one.default for name, one in parameters.items() if name not in ("path", "load_dataset_kwargs")} == {
        "name": None,
        "split": None,
        "data_files": None,
        "revision": None,
        "force_reindex": False,
        "num_proc": None,
        "index_dir": None,
        "executor": None,
        "trust_shared": False,
    }
    assert next(iter(parameters)) == "path"
    assert parameters["load_dataset_kwargs"].kind is inspect.Parameter.VAR_KEYWORD
    assert all(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in list(parameters.values())[:-1])


def test_A1_it_can_be_imported_by_its_other_name(load):
    assert fast_hf_loader_simple.fast_load_iterable_dataset is me.fast_load_iterable_dataset
    assert type(load()) is fast_hf_loader_simple.SimpleArrowIterableDataset is me.SimpleArrowIterableDataset
    assert fast_hf_loader_simple.__all__ == ["SimpleArrowIterableDataset", "fast_load_iterable_dataset"]


def test_A2_the_first_call_asks_datasets_and_the_second_does_not(load, asked):
    first = load()
    assert ids(first) == list(range(60))
    assert ids(load()) == list(range(60))
    assert len(asked) == 1
    assert load().arrow_files == first.arrow_files
    assert first.column_names == ["id", "text", "tokens", "maybe"]


def test_A2_a_later_process_imports_neither_datasets_nor_torch(load, tmp_path, data):
    load(name="default")
    code = """
        import sys, json
        from fast_hf_loader_simple import fast_load_iterable_dataset
        dataset = fast_load_iterable_dataset(
            "parquet", "default", split="train[:50%]", data_files=sys.argv[1], cache_dir=sys.argv[2]
        )
        ids = [row["id"] for row in dataset.shuffle(1, level="row")]
        state = dataset.state_dict()
        names = {name.split(".")[0] for name in sys.modules}
        print(json.dumps([sorted(ids), sorted(names & {"datasets", "torch", "huggingface_hub"})]))
    """
    rows, heavy = fresh(code, data / "*.parquet", tmp_path / "cache", strict=True)
    assert rows == list(range(30))
    assert heavy == []


def test_A2_index_dir_holds_all_that_is_remembered(load, tmp_path, asked):
    load(index_dir=tmp_path / "elsewhere")
    assert not (tmp_path / "index").exists()
    kinds = sorted(path.suffix for path in (tmp_path / "elsewhere").iterdir())
    assert kinds == [".index", ".json", ".lock", ".lock"]
    load(index_dir=str(tmp_path / "elsewhere"))
    assert len(asked) == 1
    load()
    assert len(asked) == 2


def test_A2_num_proc_is_given_to_datasets(load, asked):
    assert sorted(ids(load(num_proc=2))) == list(range(60))
    assert asked[0]["num_proc"] == 2
    assert sorted(ids(load())) == list(range(60))
    assert len(asked) == 1
    with pytest.raises((ValueError, TypeError), match="num_proc"):
        load(num_proc=0)


def records(folder):
    return sorted(path.name for path in Path(folder).glob("hf-*.json"))


def features(*names):
    kinds = {"id": "int64", "text": "string", "maybe": "int32"}
    found = {name: datasets.Value(kinds[name]) for name in names}
    return datasets.Features({**found, "tokens": datasets.List(datasets.Value("int32"))})


def test_A3_every_argument_that_differs_has_another_record(tmp_path, load, data, asked):
    other = write_parquet(tmp_path / "other", [5], first=100)
    calls = [
        {},
        {"name": "mine"},
        {"data_files": str(data / "part-1.parquet")},
        {"data_files": [str(data / "part-1.parquet"), str(data / "part-0.parquet")]},
        {"data_files": [str(data / "part-0.parquet"), str(data / "part-1.parquet")]},
        {"data_files": {"train": str(data / "part-0.parquet"), "test": str(data / "part-2.parquet")}},
        {"data_files": {"test": str(data / "part-2.parquet"), "train": str(data / "part-0.parquet")}},
        {"data_dir": str(data)},
        {"data_dir": str(other)},
        {"data_dir": str(tmp_path), "data_files": "other/*.parquet"},
        {"data_dir": str(tmp_path), "data_files": "data/*.parquet"},
        {"path": str(data)},
        {"path": str(other)},
        {"revision": "main"},
        {"features": features("id", "text", "maybe")},
        {"features": features("text", "id", "maybe")},
        {"cache_dir": str(tmp_path / "cache2")},
        {"columns": ["id"]},
        {"columns": ["id", "text"]},
    ]
    seen = []
    for number, call in enumerate(calls, start=1):
        dataset = load(**call)
        seen.append((ids(dataset), dataset.column_names))
        assert len(asked) == number, call
        assert len(records(tmp_path / "index")) == number, call
    assert seen[2][0] == list(range(30, 50))
    assert seen[3][0] == [*range(30, 50), *range(30)]
    assert seen[8][0] == seen[9][0] == seen[12][0] == list(range(100, 105))
    assert seen[17][1] == ["id"]
    for call, (rows, columns) in zip(calls, seen, strict=True):
        dataset = load(**call)
        assert (ids(dataset), dataset.column_names) == (rows, columns)
    assert asked[len(calls) :] == []


def test_A3_arguments_that_change_no_row_share_a_record(load, tmp_path, asked):
    secret = "hf_thisisverysecret"
    load(token=secret)
    load(token="another", verification_mode="no_checks", num_proc=1)
    load(token=False, split="train[:3]", streaming=False, keep_in_memory=None)
    assert len(asked) == len(records(tmp_path / "index")) == 1
    for path in (tmp_path / "index").iterdir():
        assert secret.encode() not in path.read_bytes()
        assert secret not in path.name


def test_A3_relative_paths_mean_other_files_in_another_folder(tmp_path, load, asked, monkeypatch):
    write_parquet(tmp_path / "one" / "data", [4])
    write_parquet(tmp_path / "two" / "data", [4], first=50)
    for call in ({"data_files": "data/*.parquet"}, {"data_dir": "data"}, {"path": "data"}, {"path": "./data"}):
        for folder, rows in (("one", range(4)), ("two", range(50, 54)), ("one", range(4))):
            monkeypatch.chdir(tmp_path / folder)
            assert ids(load(**call)) == list(rows)
    assert len(asked) == 6  # ./data is data


def test_A3_a_repository_has_its_own_paths_wherever_one_is(tmp_path, monkeypatch):
    call = {"path": "someone/something", "data_files": "data/*.parquet", "others": {"data_dir": "data"}}
    here, files = LoadArguments(**call).key, LoadArguments(**call).witness()
    write_parquet(tmp_path / "data", [4])
    monkeypatch.chdir(tmp_path)
    assert LoadArguments(**call).key == here
    assert LoadArguments(**call).witness() == files


def test_A3_an_argument_that_says_nothing_of_itself_is_refused(load):
    with pytest.raises(TypeError, match=r"argument filters is .*Pass plain values, or load with datasets and use"):
        load(filters=[lambda row: True])


def grow(data):
    pq.write_table(table(60, 7), data / "part-3.parquet")


def change(data):
    pq.write_table(pa.concat_tables([table(50, 10), table(60, 7)]), data / "part-2.parquet")


@pytest.mark.parametrize("how", [grow, change], ids=["a new file", "a changed file"])
@pytest.mark.parametrize("named_by", ["pattern", "data_dir", "path", "dict"])
def test_A3_data_that_grew_is_noticed(load, data, asked, warnings, how, named_by):
    call = {
        "pattern": {},
        "data_dir": {"data_dir": str(data)},
        "path": {"path": str(data)},
        "dict": {"data_files": {"train": [str(data / "*.parquet")]}},
    }[named_by]
    assert sorted(ids(load(**call))) == list(range(60))
    assert warnings() == []
    how(data)
    assert sorted(ids(load(**call))) == list(range(67))
    (message,) = warnings()
    assert "loaded and indexed again: its source files have changed." in message
    assert sorted(ids(load(**call))) == list(range(67))
    assert (len(asked), warnings()) == (2, [])


@pytest.mark.parametrize("pattern", ["zip://*.parquet::{}", "file://{}", "{}"])
def test_A3_a_local_file_inside_a_url_is_looked_at(data, pattern):
    call = LoadArguments(
        path="parquet", data_files=[pattern.format(data / "part-0.parquet"), "https://example.com/a.parquet"]
    )
    before = call.witness()
    grow(data)
    assert call.witness() == before
    pq.write_table(table(0, 5), data / "part-0.parquet")
    assert call.witness() != before


def test_A3_hidden_files_and_broken_links_below_a_folder_do_not_count(load, data, asked):
    load(path=str(data))
    (data / ".git").mkdir()
    (data / ".git" / "index").write_text("x")
    (data / ".part.parquet.swp").write_text("x")
    (data / "broken.parquet").symlink_to(data / "nowhere")
    assert ids(load(path=str(data))) == list(range(60))
    assert len(asked) == 1


def lose_cache(tmp_path, dataset):
    shutil.rmtree(tmp_path / "cache")


def lose_file(tmp_path, dataset):
    os.unlink(dataset.arrow_files[0])


def rewrite_file(tmp_path, dataset):
    path = dataset.arrow_files[0]
    content = Path(path).read_bytes()
    os.unlink(path)
    Path(path).write_bytes(content)


def spoil(content):
    def spoil_record(tmp_path, dataset):
        (record,) = (tmp_path / "index").glob("hf-*.json")
        made = content(json.loads(record.read_text()))
        record.write_text(made if isinstance(made, str) else json.dumps(made))

    return spoil_record


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lose_cache, "Arrow files are missing from the cache: 1 of 1, such as"),
        (lose_file, "Arrow files are missing from the cache: 1 of 1, such as"),
        (rewrite_file, "Arrow files in the cache were written again: 1 of 1, such as"),
        (spoil(lambda record: json.dumps(record)[:-20]), "is broken"),
        (spoil(lambda record: "\0\1\2"), "is broken"),
        (spoil(lambda record: []), "is broken"),
        (spoil(lambda record: record | {"witness": "none"}), "source files have changed"),
        (spoil(lambda record: record | {"splits": {"train": {"rows": 1}}}), "is broken"),
        (spoil(lambda record: record | {"version": 99}), "another version of midepoch wrote its record"),
    ],
    ids=["cache", "file", "rewritten", "truncated", "garbage", "list", "witness", "splits", "version"],
)
def test_A3_a_record_that_is_out_of_date_is_written_again(tmp_path, load, asked, warnings, harm, message):
    first = load()
    harm(tmp_path, first)
    assert ids(load()) == list(range(60))
    assert [message in one for one in warnings()] == [True]
    assert ids(load()) == list(range(60))
    assert (len(asked), warnings()) == (2, [])


def test_A3_without_a_writable_folder_it_works_too(tmp_path, load, warnings):
    (tmp_path / "file").write_text("no folder")
    assert ids(load(index_dir=tmp_path / "file" / "index")) == list(range(60))
    messages = warnings()
    assert any("No record can be written to" in one for one in messages)
    assert any("The index cannot be kept in" in one for one in messages)


def test_A3_force_reindex_asks_again_and_scans_again(load, asked, monkeypatch):
    from midepoch.index import build as indexing

    load()
    scanned = []
    scan_file = indexing.scan_file
    monkeypatch.setattr(indexing, "scan_file", lambda path, *more: scanned.append(path) or scan_file(path, *more))
    assert ids(load()) == list(range(60))
    assert (len(asked), len(scanned)) == (1, 0)
    assert ids(load(force_reindex=True)) == list(range(60))
    assert (len(asked), len(scanned)) == (2, 1)


@pytest.mark.parametrize("mode", ["force_redownload", datasets.DownloadMode.REUSE_CACHE_IF_EXISTS])
def test_A3_a_download_mode_that_trusts_no_cache_is_obeyed(load, asked, mode):
    load(download_mode="reuse_dataset_if_exists")
    load(download_mode=mode)
    load(download_mode=mode)
    load(download_mode=datasets.DownloadMode.REUSE_DATASET_IF_EXISTS)
    assert len(asked) == 3


PROCESS = """
    import sys, json, time
    from midepoch.integrations import huggingface as hubcache
    import midepoch as me
    if sys.argv[4] == "stuck":
        def stuck(*record):
            print("stuck", flush=True)
            time.sleep(600)
        hubcache._write = stuck
    dataset = me.fast_load_iterable_dataset(
        "parquet", data_files=sys.argv[1], cache_dir=sys.argv[2], index_dir=sys.argv[3], split="train"
    )
    print(json.dumps([[row["id"] for row in dataset], "datasets" in sys.modules]))
"""


def start(data, tmp_path, how="free"):
    import textwrap

    command = [
        sys.executable,
        "-c",
        textwrap.dedent(PROCESS),
        data / "*.parquet",
        tmp_path / "cache",
        tmp_path / "index",
        how,
    ]
    return subprocess.Popen([str(one) for one in command], stdout=subprocess.PIPE, text=True)


def test_A3_processes_at_once_and_one_that_is_killed(tmp_path, data, load, asked):
    """One that is killed after the preparation leaves nothing harmful; of two at once, one waits for the other."""
    with start(data, tmp_path, "stuck") as killed:
        assert killed.stdout.readline() == "stuck\n"
        with start(data, tmp_path) as one, start(data, tmp_path) as other:
            os.kill(killed.pid, signal.SIGKILL)
            results = [json.loads(process.communicate()[0]) for process in (one, other)]
    assert [rows for rows, _ in results] == [list(range(60))] * 2
    assert sorted(imported for _, imported in results) == [False, True]
    assert ids(load()) == list(range(60))
    assert asked == []
    assert [path.name for path in (tmp_path / "index").iterdir() if path.name.startswith(".")] == []


def test_A4_record_batches_lie_in_the_map(load, monkeypatch):
    read, in_map = arrow.ArrowBlocks.read, []

    def noted(self, block):
        data, begin = read(self, block), self._map.address
        places = [one.address for column in data.columns for one in column.buffers() if one is not None]
        in_map.extend(begin <= place < begin + self._map.size for place in places)
        return data

    monkeypatch.setattr(arrow.ArrowBlocks, "read", noted)
    assert len(list(load())) == 60
    assert in_map
    assert all(in_map)


@pytest.fixture
def saved(tmp_path):
    parts = {"train": numbered(60), "test": numbered(9, first=100)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved", num_shards={"train": 4, "test": 1})
    return tmp_path / "saved"


def test_A4_folders_of_save_to_disk(tmp_path, saved, asked):
    train = me.fast_load_iterable_dataset(saved, split="train")
    assert ids(train) == list(range(60))
    assert len(train.arrow_files) == 4
    assert ids(me.fast_load_iterable_dataset(str(saved), split="test+train[:2]")) == [*range(100, 109), 0, 1]
    with pytest.raises(ValueError, match="has the splits train, test: choose with split="):
        me.fast_load_iterable_dataset(saved)
    assert ids(me.fast_load_iterable_dataset(saved / "train")) == list(range(60))
    numbered(60).select([5, 3, 3, 9]).save_to_disk(tmp_path / "selected")
    assert ids(me.fast_load_iterable_dataset(tmp_path / "selected")) == [5, 3, 3, 9]
    assert ids(me.fast_load_iterable_dataset(tmp_path / "selected", split="train[:50%]")) == [5, 3]
    assert asked == []
    with pytest.raises(ValueError, match="is a save_to_disk folder, which has no use for revision"):
        me.fast_load_iterable_dataset(saved, split="train", revision="main")


def test_A4_a_folder_that_was_moved_loads_the_same_state(tmp_path, saved):
    first = me.fast_load_iterable_dataset(saved, split="train+test").shuffle(3)
    whole = ids(first)
    first.set_epoch(0)
    iterator = iter(first)
    got = ids(next(iterator) for _ in range(25))
    state = json.loads(json.dumps(first.state_dict()))
    assert str(tmp_path) not in json.dumps(state)
    shutil.move(saved, tmp_path / "deep" / "moved")
    second = me.fast_load_iterable_dataset(tmp_path / "deep" / "moved", split="train+test").shuffle(3)
    second.load_state_dict(state)
    assert got + ids(second) == whole


def test_A4_an_incomplete_saved_folder_raises(saved):
    os.unlink(saved / "train" / "data-00002-of-00004.arrow")
    with pytest.raises(me.NoDataError, match=r"data-00002-of-00004\.arrow is missing from a save_to_disk folder of 4"):
        me.fast_load_iterable_dataset(saved, split="train")
    (saved / "dataset_dict.json").write_text("{")
    with pytest.raises(me.NoDataError, match=r"dataset_dict\.json cannot be read"):
        me.fast_load_iterable_dataset(saved, split="test")


def test_A4_a_saved_folder_that_was_written_again_is_noticed(saved):
    assert ids(me.fast_load_iterable_dataset(saved, split="test")) == list(range(100, 109))
    shutil.rmtree(saved)
    datasets.DatasetDict({"test": numbered(9, first=200)}).save_to_disk(saved)
    assert ids(me.fast_load_iterable_dataset(saved, split="test")) == list(range(200, 209))


@pytest.mark.parametrize(
    "expression",
    ["train", "train[10%:20%]", "train[-7:]", "train[:5]+train[50:]", "train+train[3:4]", "train[9:4]", "all"],
)
def test_A4_split_expressions_are_those_of_datasets(tmp_path, load, data, expression):
    ours = load(split=expression)
    if expression != "all":
        theirs = datasets.load_dataset(
            "parquet", data_files=str(data / "*.parquet"), cache_dir=str(tmp_path / "cache"), split=expression
        )
        assert ids(ours) == list(theirs["id"])
        assert len(ours) == len(theirs)
    for level in ("file", "row"):
        assert sorted(ids(ours.shuffle(2, level=level))) == sorted(ids(ours))


def test_A4_split_expressions_share_one_index(tmp_path, load, asked):
    call = {"data_files": {"train": "part-[01].parquet", "test": "part-2.parquet"}, "data_dir": str(tmp_path / "data")}
    assert ids(load(**call, split="train[10:12]")) == [10, 11]
    for split in ("train", "train[:10%]", datasets.Split.TRAIN, datasets.ReadInstruction("train", to=5, unit="abs")):
        load(**call, split=split)
    assert len(list((tmp_path / "index").glob("*.index"))) == 1
    both = load(**call, split="test+train[-3:]")
    assert ids(both) == [*range(50, 60), 47, 48, 49]
    assert len(asked) == 1
    with pytest.raises(ValueError, match=r"has no split 'validation'. It has: train, test"):
        load(**call, split="validation")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"streaming": True}, "streaming=True is not possible: a stream has no files"),
        (
            {"length_estimate": "exact"},
            "length_estimate='exact' is not possible: .* use len.dataset.; .*dataset.survey",
        ),
        ({"reset_length_on_iter": True}, "reset_length_on_iter=True is not possible: lengths are exact"),
        ({"keep_in_memory": True}, "keep_in_memory=True is not possible"),
        ({"split": ["train", "test"]}, "open one split at a time"),
        ({"split": "train[5]"}, "write it as"),
    ],
)
def test_A4_arguments_that_are_not_possible_raise(load, options, message):
    with pytest.raises(ValueError, match=message):
        load(**options)


def test_A4_lengths_of_files_are_not_estimated(load):
    with pytest.raises(ValueError, match=r"length_estimate='static' is not possible: .*use len\(dataset\)"):
        me.SimpleArrowIterableDataset(load().arrow_files, length_estimate="static")


def test_A2_features_are_known_without_datasets(tmp_path):
    kinds = datasets.Features({"id": datasets.Value("int64"), "label": datasets.ClassLabel(names=["no", "yes"])})
    datasets.Dataset.from_dict({"id": [1, 2], "label": [0, 1]}, features=kinds).save_to_disk(tmp_path / "saved")
    code = """
        import sys, json, midepoch as me
        dataset = me.fast_load_iterable_dataset(sys.argv[1])
        print(json.dumps([dataset.features["label"].names, "datasets" in sys.modules]))
    """
    assert fresh(code, tmp_path / "saved") == [["no", "yes"], False]


def test_a_split_without_files_raises(tmp_path):
    numbered(0).save_to_disk(tmp_path / "empty")
    with pytest.raises(me.NoDataError, match=r"has no rows in the split train. Choose another"):
        me.fast_load_iterable_dataset(tmp_path / "empty")


def test_rows_of_the_cache_are_those_of_datasets(load, data, tmp_path):
    theirs = datasets.load_dataset("parquet", data_files=str(data / "*.parquet"), cache_dir=str(tmp_path / "c"))[
        "train"
    ]
    assert list(load()) == list(theirs)
    assert rows_of(load().arrow_files[0]) == list(range(60))


def test_A3_a_pattern_that_matches_nothing_is_named(tmp_path):
    with pytest.raises(me.NoDataError, match=r"none/\*.json matches no file; the full path is"):
        me.fast_load_iterable_dataset("json", data_files=str(tmp_path / "none" / "*.json"), split="train")


def test_an_error_of_load_dataset_has_a_note_on_possible_paths(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        me.fast_load_iterable_dataset(str(tmp_path / "nowhere"), split="train", index_dir=tmp_path / "index")
    assert any(str(tmp_path / "nowhere") in note and "save_to_disk" in note for note in error.value.__notes__)
