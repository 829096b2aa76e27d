"""A file that changes while it is read: an error that names it, and an exact resume once it is restored."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import midepoch as me
from files import KINDS, values, write, write_numbers
from shards import numbered_mds
from tars import numbered_tar

ROWS, BLOCK = 4000, 100


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def _little_at_a_time(monkeypatch):
    """Rows that are in memory already are those of the old file, and rightly delivered: read few at a time."""
    monkeypatch.setattr("midepoch.sources.ahead.STEP_ROWS", 64)
    monkeypatch.setattr("midepoch.sources.ahead.RUN_ROWS", 64)
    monkeypatch.setattr("midepoch.sources.ahead.SCATTERED_ROWS", 64)
    monkeypatch.setattr("midepoch.sources.ahead.NARROW_BYTES", 0)
    monkeypatch.setattr("midepoch.sources.ahead.MADE_BYTES", 0)


def build(folder, kind):
    """Two files of many blocks, so that there is always one that has not been read yet."""
    for number in range(2):
        start = number * ROWS // 2
        write_numbers(folder / f"{number}.arrow", start, start + ROWS // 2, kind, rows=BLOCK)
    return folder / "1.arrow"


def rewrite(path):
    """Other content of the same size, in place."""
    content = path.read_bytes()
    time = path.stat().st_mtime_ns
    with open(path, "r+b") as file:
        file.write(bytes(byte ^ 1 for byte in content))
    os.utime(path, ns=(time, time + 1_000_000))


def replace(path):
    """Another file under the same name, as an atomic writer leaves it."""
    other = write_numbers(path.with_name(".new"), 7, 70, rows=BLOCK)
    other.replace(path)


def grow(path):
    with open(path, "ab") as file:
        file.write(b"more")


def shrink(path):
    os.truncate(path, path.stat().st_size // 2)


def delete(path):
    path.unlink()


CHANGES = [rewrite, replace, grow, shrink, delete]
changes = pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
kinds = pytest.mark.parametrize("kind", KINDS)


def read_until_error(dataset, rows):
    """The values up to the error, the error, and the state then."""
    got = []
    with pytest.raises(me.DataChangedError) as caught:
        got.extend(row["x"] for row in rows)
    return got, caught.value, json.loads(json.dumps(dataset.state_dict()))


def begin(dataset, count):
    rows = iter(dataset)
    return rows, [next(rows)["x"] for _ in range(count)]


@kinds
@changes
@pytest.mark.parametrize(("name", "received"), [("1.arrow", 10), ("0.arrow", 1024)], ids=["before", "in the middle"])
def test_a_file_that_changes_is_named_and_the_run_resumes_exactly(folder, tmp_path, kind, change, name, received):
    """Before its turn; or in the middle: rows come in runs of 1,024, so stop before the next run is read."""
    build(folder, kind)
    path = folder / name
    shutil.copytree(folder, tmp_path / "kept")
    dataset = me.read(folder)
    rows, taken = begin(dataset, received)
    change(path)
    got, error, state = read_until_error(dataset, rows)
    assert str(path) in str(error)
    assert taken + got == list(range(len(taken + got)))
    assert len(taken + got) < ROWS // 2 or name == "1.arrow" or kind == "parquet"
    shutil.copy2(tmp_path / "kept" / path.name, path)
    resumed = me.read(folder)
    resumed.load_state_dict(state)
    assert taken + got + values(resumed) == list(range(ROWS))


@kinds
@pytest.mark.parametrize("level", ["file", "block"])
def test_a_shuffled_and_batched_run_resumes_exactly_after_a_change(folder, tmp_path, kind, level):
    path = build(folder, kind)
    shutil.copytree(folder, tmp_path / "kept")

    def pipeline():
        shuffled = me.read(folder).shuffle(seed=5, level=level, window=256, window_blocks=1)
        return shuffled.filter(lambda row: row["x"] % 3 != 0).batch(7)

    whole = [batch["x"] for batch in pipeline()]
    dataset = pipeline()
    rows, taken = begin(dataset, 20)
    grow(path)
    got, error, state = read_until_error(dataset, rows)
    assert str(path) in str(error)
    assert taken + got == whole[: len(taken + got)]
    assert len(got) < len(whole)
    shutil.copy2(tmp_path / "kept" / path.name, path)
    resumed = pipeline()
    resumed.load_state_dict(state)
    assert taken + got + [batch["x"] for batch in resumed] == whole


@pytest.mark.parametrize("change", [rewrite, replace, grow])
def test_a_change_inside_one_large_mapped_block_is_noticed(folder, change):
    path = write_numbers(folder / "0.arrow", 0, 20_000, rows=20_000)
    dataset = me.read(folder)
    rows, taken = begin(dataset, 1024)
    change(path)
    got, error, _ = read_until_error(dataset, rows)
    assert str(path) in str(error)
    assert taken + got == list(range(len(taken + got)))


def test_truncating_a_large_mapped_block_is_an_error_not_a_crash(folder):
    """Reading a map after the end of its file kills the process (SIGBUS), so this runs in another process."""
    path = write_numbers(folder / "0.arrow", 0, 100_000, rows=100_000)
    code = """
import os, sys
import midepoch as me
rows = iter(me.read(sys.argv[1]))
taken = [next(rows) for _ in range(1024)]
os.truncate(sys.argv[1], 5000)
try:
    list(rows)
except me.DataChangedError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert str(path) in done.stdout


def write_version(path, version, kind):
    """400 rows of which each value is below 1,000 in version 0 and above in version 1; both are equally large."""
    x = np.arange(400) + 1000 * version
    tokens = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(x, 64)), 64).cast(pa.list_(pa.int64()))
    table = pa.table({"x": x, "text": [f"{value + 10_000}" for value in x], "tokens": tokens})
    blocks = table.to_batches(max_chunksize=80)
    if kind == "parquet":
        return write(path, blocks, kind, compression="none", use_dictionary=False, write_statistics=False)
    if kind == "jsonl":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f'{{"x": {value + 10_000}, "text": "{value + 10_000}"}}\n' for value in x))
        return path
    return write(path, blocks, "stream", **({"compression": "lz4"} if kind == "compressed" else {}))


def overwrite(path, content):
    """Write bytes over those of a file, as a program does that opens it with "r+b"."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(file, content, 0)
    finally:
        os.close(file)
    os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 1))  # the clock of a file system may be slower than this test


@pytest.fixture
def versions(folder, tmp_path):
    """A function that writes version 0 of a file, and returns its path and version 1 as bytes."""

    def make(kind):
        suffix = {"parquet": "parquet", "jsonl": "jsonl"}.get(kind, "arrow")
        path = write_version(folder / f"0.{suffix}", 0, kind)
        content = write_version(tmp_path / f"new.{suffix}", 1, kind).read_bytes()
        return path, content

    return make


def numbers_in(item):
    """All numbers of an item of any form, in one list."""
    if isinstance(item, pa.RecordBatch):
        item = item.to_pydict()
    if isinstance(item, dict):
        return [number for value in item.values() for number in numbers_in(value)]
    if isinstance(item, str):
        return [int(item) - 10_000]
    if hasattr(item, "tolist"):
        return numbers_in(item.tolist())
    return [number for value in item for number in numbers_in(value)] if isinstance(item, list) else [item]


def tensors(data):
    return data.select_columns(["x", "tokens"]).with_format("torch")


def mixture(data, other):
    return me.mix([data, other], weights=[2, 1], seed=3, stop="first")


def below_1000(batch):
    return [x < 1000 for x in batch["x"]]


COPIED = {
    "rows": lambda data: data,
    "batches": lambda data: data.batch(30),
    "tensors": lambda data: tensors(data).batch(30),
    "shuffled rows": lambda data: data.shuffle(seed=1, window=100, window_blocks=1),
    "rows shuffled in each block": lambda data: data.shuffle(seed=1, window=1, window_blocks=1),
    "rows shuffled one by one": lambda data: data.shuffle(seed=1, level="row"),
    "shuffled tensors": lambda data: tensors(data.shuffle(seed=1)).batch(30),
    "shuffled arrays": lambda data: data.shuffle(seed=1, window=100, window_blocks=1).with_format("numpy").batch(30),
    "shuffled Arrow": lambda data: data.shuffle(seed=1, window=100, window_blocks=1).with_format("arrow").batch(30),
    "map": lambda data: data.map(lambda row: {"x": row["x"]}),
    "batched map": lambda data: data.map(lambda batch: {"x": batch["x"]}, batched=True, batch_size=25),
    "filter": lambda data: data.filter(lambda row: row["x"] < 1000),
    "batched filter": lambda data: data.filter(below_1000, batched=True),
    "packs": lambda data: data.select_columns(["tokens"]).pack(512, column="tokens", strategy="best_fit", window=64),
    "stream of packs": lambda data: data.select_columns(["tokens"]).pack(512, column="tokens", strategy="concat"),
    "mixture": lambda data: mixture(data, data.shuffle(seed=2, window=100, window_blocks=1)),
    "mixture of tensors": lambda data: tensors(mixture(data, data.skip(7))).batch(30),
}


@pytest.fixture
def assert_one_version(versions, monkeypatch):
    """A function that asserts that no item of version 1 is delivered, whenever a mapped file is rewritten.

    The file is rewritten right after a check of it: after the first, after the second, and so on.
    """
    path, content = versions("arrow")
    kept, status = path.read_bytes(), path.stat()
    check_unchanged = me.index.build.check_unchanged
    checks = rewritten_after = 0

    def check_then_rewrite(*arguments):
        nonlocal checks
        check_unchanged(*arguments)
        checks += 1
        if checks == rewritten_after:
            overwrite(path, content)

    def assert_it(open_dataset):
        nonlocal checks, rewritten_after
        expected = [numbers_in(item) for item in open_dataset(path)]
        monkeypatch.setattr("midepoch.index.build.check_unchanged", check_then_rewrite)
        failed = True
        while failed:
            rewritten_after, checks, failed, got = rewritten_after + 1, 0, False, []
            path.write_bytes(kept)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            dataset = open_dataset(path)
            try:
                got.extend(numbers_in(item) for item in dataset)
            except me.DataChangedError:
                failed = True
            assert got == expected[: len(got)], f"the file was rewritten after check {rewritten_after}"
        assert got == expected
        assert rewritten_after > 2

    return assert_it


@pytest.mark.parametrize("pipeline", COPIED.values(), ids=COPIED)
def test_no_row_of_another_version_is_delivered_whenever_a_mapped_file_is_rewritten(assert_one_version, pipeline):
    assert_one_version(lambda path: pipeline(me.read(path)))


@pytest.mark.parametrize("pipeline", ["rows", "tensors", "shuffled rows", "rows shuffled in each block"])
def test_no_row_of_another_version_passes_filters(assert_one_version, pipeline):
    """Rows of the new version may not match, and are then left out: that must not go unnoticed either."""
    assert_one_version(lambda path: COPIED[pipeline](me.read(path, filters=pc.field("x") < 1000)))


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "compressed"])
@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("block", [0, 3])
def test_no_row_is_delivered_of_a_block_whose_file_is_rewritten_while_it_is_decoded(
    versions, monkeypatch, kind, shuffle, block
):
    path, content = versions(kind)
    dataset = me.read(path).shuffle(seed=1, window=100, window_blocks=1) if shuffle else me.read(path)
    if kind == "jsonl":
        block = 0
    change_before_a_read(monkeypatch, block, lambda: overwrite(path, content))
    got = []
    with pytest.raises(me.DataChangedError, match=f"{path.name} was changed while it was in use"):
        got.extend(row["x"] for row in dataset)
    assert all(number % 10_000 < 1000 for number in got)


def cut_short(path):
    os.truncate(path, 5000)


@pytest.mark.parametrize("change", [rewrite, cut_short])
@pytest.mark.parametrize("kind", ["tar", "mds"])
def test_no_sample_is_delivered_of_a_shard_that_changes_while_it_is_read(folder, monkeypatch, kind, change):
    path = folder / ("0.tar" if kind == "tar" else "shard.00000.mds")
    numbered_tar(path, 0, 200) if kind == "tar" else numbered_mds(folder, 200, 200)
    rows = iter(me.read(path).shuffle(seed=1, window=50))
    change_before_a_read(monkeypatch, 0, lambda: change(path))
    with pytest.raises(me.DataChangedError, match=f"{path.name} was changed while it was in use"):
        next(rows)


def change_before_a_read(monkeypatch, number, change):
    """Change the file after it was checked, right before a block of it is read."""
    find_reader = me.sources.blocks.FileBlocks._reader

    class ChangingReader:
        def __init__(self, reader):
            self._reader = reader

        def read(self, block):
            if block.number == number:
                change()
            return self._reader.read(block)

    monkeypatch.setattr(
        "midepoch.sources.blocks.FileBlocks._reader", lambda self, file: ChangingReader(find_reader(self, file))
    )


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_file_that_is_truncated_while_it_is_decoded_is_an_error_not_a_crash(versions, kind):
    """A read of a map after the end of its file would kill the process (SIGBUS), so this runs in another process."""
    path, _ = versions(kind)
    code = """
import os, sys
import midepoch as me
from midepoch.sources.blocks import FileBlocks
rows = iter(me.read(sys.argv[1]))
find_reader = FileBlocks._reader
def truncate(self, file):
    reader = find_reader(self, file)
    os.truncate(sys.argv[1], 5000)
    return reader
FileBlocks._reader = truncate
try:
    list(rows)
except me.DataChangedError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{path} was changed while it was in use" in done.stdout
