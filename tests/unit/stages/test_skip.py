"""Broken samples are skipped and logged, errors of the machine are raised, and the log removes its file."""

import copy
import errno
import gc
import json
import logging
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from midepoch.dataset import with_stage
from midepoch.stages.skip import ALL, LEAST_SAMPLES, SkipErrors, SkipLimit, SkipLog
from midepoch.stages.stage import Call
from midepoch.testing import assert_resumes


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def rows(tmp_path):
    for number in range(2):
        ids = range(10 * number, 10 * number + 10)
        pq.write_table(pa.table({"id": ids}), tmp_path / f"part-{number}.parquet", row_group_size=4)
    return me.read([tmp_path / "part-0.parquet", tmp_path / "part-1.parquet"])


def skipping_errors(rows, function, skip=True, max_skipped=None):
    number = len(rows._plan.pipeline.stages) + 1
    call = Call(function=function, stage="process", number=number)
    stage = SkipErrors(call=call, skip_log=SkipLog() if skip else None, limit=SkipLimit(max_skipped))
    return with_stage(rows, stage), stage


def no_thirds(row):
    if row["id"] % 3 == 0:
        raise ValueError(f"{row['id']} is a third")
    return {"id": row["id"]}


def test_C1_broken_samples_are_skipped_and_logged_with_file_and_row(rows, caplog):
    dataset, stage = skipping_errors(rows, no_thirds)
    assert [item["id"] for item in dataset] == [number for number in range(20) if number % 3]
    noted = stage.skip_log.lines()
    assert [one["where"] for one in noted] == [
        *(f"row {row} of part-0.parquet" for row in (0, 3, 6, 9)),
        *(f"row {row} of part-1.parquet" for row in (2, 5, 8)),
    ]
    assert noted[1] == {"epoch": 0, "where": "row 3 of part-0.parquet", "error": "ValueError: 3 is a third"}
    logged = [record.getMessage() for record in caplog.records]
    assert logged[0] == "A broken sample is skipped: row 0 of part-0.parquet: ValueError: 0 is a third"
    assert logged[3:] == ["Skipped 7 broken samples, of 20 samples of a lane, in epoch 0; metrics() names them."], (
        "after three, only their number"
    )


def test_each_is_counted_once_an_epoch_however_often_it_is_met(rows, caplog):
    dataset, stage = skipping_errors(rows, no_thirds)
    caplog.set_level(logging.CRITICAL)
    assert_resumes(dataset)
    assert len(stage.skip_log.lines()) == 7
    list(dataset)
    list(dataset)
    assert [one["epoch"] for one in stage.skip_log.lines()].count(1) == 7


def test_without_a_log_it_raises_with_the_row(rows):
    dataset, stage = skipping_errors(rows, no_thirds, skip=False)
    with pytest.raises(ValueError, match="0 is a third") as caught:
        list(dataset)
    assert caught.value.__notes__ == ["midepoch: in process(no_thirds), at row 0 of part-0.parquet"]
    assert stage.count(5) == 5
    assert len(dataset) == 20


@pytest.mark.parametrize(
    ("error", "is_skipped"),
    [
        (ValueError("x"), True),
        (KeyError("x"), True),
        (StopIteration(), True),
        (RuntimeError("x"), True),
        (OSError("image file is truncated"), True),
        (FileNotFoundError(errno.ENOENT, "gone"), True),
        (PermissionError(errno.EACCES, "not yours"), True),
        (IsADirectoryError(errno.EISDIR, "a folder"), True),
        (me.NoDataError("gone"), True),
        (OSError(errno.EMFILE, "too many open files"), False),
        (OSError(errno.EIO, "the disk"), False),
        (MemoryError(), False),
        (ConnectionResetError(errno.ECONNRESET, "reset"), False),
        (TimeoutError("slow"), False),
        (me.MissingExtraError("Pillow", "image", "Decoding"), False),
    ],
    ids=repr,
)
def test_what_may_be_over_the_next_time_is_never_left_out(rows, caplog, error, is_skipped):
    caplog.set_level(logging.CRITICAL)

    def fail(row):
        raise error

    def fail_behind(row):
        raise me.NoDataError("cannot be read") from error

    for function in (fail, fail_behind):
        dataset, _ = skipping_errors(rows, function, max_skipped=1.0)
        if is_skipped:
            assert list(dataset) == []
        else:
            with pytest.raises(type(error) if function is fail else me.NoDataError):
                list(dataset)


def fails(row):
    raise ValueError(f"{row['id']} is broken")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_in_which_everything_is_skipped_raises(rows, caplog, workers):
    caplog.set_level(logging.CRITICAL)
    skipped = (
        r"20 samples, and nothing is left in epoch 0\. The first is row \d+ of part-\d.parquet: ValueError: \d+ is"
    )
    for dataset in (skipping_errors(rows, fails)[0], skipping_errors(rows.shuffle(seed=1).lanes(3), fails)[0].batch(4)):
        with pytest.raises(me.TooManySkippedError, match=skipped):
            list(me.Loader(dataset, num_workers=workers))
    dataset, _ = skipping_errors(rows, fails, max_skipped=1.0)
    assert list(me.Loader(dataset, num_workers=workers)) == []


def test_the_rest_of_an_epoch_may_be_skipped_after_a_resume(rows, caplog):
    caplog.set_level(logging.CRITICAL)

    def first_half(row):
        return row if row["id"] < 10 else fails(row)

    whole = skipping_errors(rows, first_half)[0]
    items = iter(whole)
    assert [next(items)["id"] for _ in range(10)] == [*range(10)]
    state = whole.state_dict()
    again = skipping_errors(rows, first_half)[0]
    again.load_state_dict(state)
    assert list(again) == [], "nothing is left of this epoch"
    assert [item["id"] for item in again] == [*range(10)]


def test_a_reader_without_rows_and_an_empty_filter_are_not_about_skipped_samples(rows, caplog):
    caplog.set_level(logging.CRITICAL)
    dataset, _ = skipping_errors(rows.take(3), no_thirds)
    assert [[item["id"] for item in dataset.shard(5, rank)] for rank in (1, 2, 3, 4)] == [[1], [2], [], []]
    with pytest.raises(me.TooManySkippedError, match="1 sample, and nothing is left"):
        list(dataset.shard(5, 0))
    assert [item["id"] for rank in (3, 4) for item in dataset.shard(5, rank)] == [], "others have skipped some"
    assert list(skipping_errors(rows, lambda row: row)[0].filter(lambda row: False)) == []


@pytest.mark.parametrize(("max_skipped", "delivered"), [(0, 0), (0.0, 0), (2, 4), (0.002, 4), (6, 12), (7, 13)])
def test_more_than_the_limit_raise_where_they_are(rows, caplog, max_skipped, delivered):
    caplog.set_level(logging.CRITICAL)
    dataset, _ = skipping_errors(rows, no_thirds, max_skipped=max_skipped)
    got = []
    if delivered == 13:
        got += dataset
    else:
        with pytest.raises(me.TooManySkippedError) as caught:
            got.extend(dataset)  # keeps what came before the error
        assert (
            f"more than max_skipped={max_skipped!r}. The first is row 0 of part-0.parquet: ValueError: 0 is a third"
            in (str(caught.value))
        )
        assert isinstance(caught.value.__cause__, ValueError)
    assert [item["id"] for item in got] == [number for number in range(20) if number % 3][:delivered]


def test_a_survey_counts_what_is_left_without_a_limit(rows, caplog, tmp_path):
    caplog.set_level(logging.CRITICAL)
    dataset, _ = skipping_errors(rows, no_thirds, max_skipped=0)
    with ThreadPoolExecutor(1) as executor:
        surveyed = dataset.survey(folder=tmp_path / "survey", executor=executor)
    assert len(surveyed) == len(list(surveyed)) == 13
    with ThreadPoolExecutor(1) as executor:
        surveyed = skipping_errors(rows, fails)[0].survey(folder=tmp_path / "survey", executor=executor)
    assert len(surveyed) == len(list(surveyed)) == 0


def test_a_state_knows_the_function_and_whether_failures_are_left_out(rows):
    skipping, raising = skipping_errors(rows, no_thirds)[0], skipping_errors(rows, no_thirds, skip=False)[0]
    descriptions = [dataset.state_dict()["fingerprint"]["pipeline"] for dataset in (skipping, raising)]
    assert descriptions == [
        [{"op": "process", "fn": "no_thirds", "on_error": "skip"}],
        [{"op": "process", "fn": "no_thirds"}],
    ]
    with pytest.raises(me.CheckpointMismatchError, match="on_error"):
        raising.load_state_dict(skipping.state_dict())


def test_the_file_goes_with_the_last_dataset_that_has_it(rows, temporary):
    dataset, stage = skipping_errors(rows, no_thirds)
    copies = [copy.copy(dataset), dataset.batch(2), copy.deepcopy(dataset)]
    del dataset, stage
    gc.collect()
    assert len(list(temporary.iterdir())) == 1
    assert len(list(copies[0])) == 13
    assert len(copies[2]._plan.pipeline.stages[0].skip_log.lines()) == 7, "a deep copy notes in the same log"
    del copies
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_a_pickle_shares_the_file_and_does_not_remove_it(temporary):
    log = SkipLog()
    log.add(0, "row 1", ValueError("x"))
    again = pickle.loads(pickle.dumps(log))
    again.add(0, "row 2", ValueError("y"))
    assert [one["where"] for one in log.lines()] == ["row 1", "row 2"]
    del again
    gc.collect()
    assert len(log.lines()) == 2


def test_a_file_that_somebody_removed_stops_nobody_and_is_not_made_again(temporary, caplog):
    log = SkipLog()
    next(temporary.iterdir()).unlink()
    log.add(0, "row 1", ValueError("x"))
    assert "metrics() will miss a skipped sample" in caplog.text
    assert "row 1: ValueError: x" in caplog.text
    assert (log.lines(), list(temporary.iterdir())) == ([], [])


def test_no_folder_to_write_to_raises(monkeypatch):
    def refuse(**_):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(OSError, match=r"on_error='skip' writes skipped samples to a temporary file.*Set TMPDIR"):
        SkipLog()


def write_many(log, name):
    for number in range(200):
        log.add(number, f"row {number} of {name}", ValueError("é" * 300))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_writers_in_many_processes_do_not_tear_each_others_lines(temporary, method):
    log = SkipLog()
    context = multiprocessing.get_context(method)
    writers = [context.Process(target=write_many, args=(log, name), daemon=True) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    path = next(temporary.iterdir())
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 600
    assert len(log.lines()) == 600, "and none of them has removed the file"
    del log, writers, writer
    gc.collect()
    assert list(temporary.iterdir()) == []


FORKED = """
if os.fork() == 0:
    raise SystemExit  # which runs what is due at the end of a process
os.wait()
log.add(0, "row 1", ValueError("x"))
assert len(log.lines()) == 1
"""


@pytest.mark.parametrize(("end", "code"), [("pass", 0), ("raise SystemExit(3)", 3), (FORKED, 0)])
def test_nothing_is_left_at_the_end_of_the_process_that_made_it(temporary, end, code):
    script = f"import os\nfrom midepoch.stages.skip import SkipLog\nlog = SkipLog()\n{end}"
    run = subprocess.run([sys.executable, "-c", script], env=os.environ | {"TMPDIR": str(temporary)}, check=False)
    assert run.returncode == code
    assert list(temporary.iterdir()) == []


def first_too_many(limit, is_broken=lambda number: True, samples=5000):
    """The number of samples that are tried until the limit is exceeded; None if it never is."""
    skipped = 0
    for number in range(samples):
        skipped += is_broken(number)
        if is_broken(number) and SkipLimit(limit).is_exceeded(skipped, number + 1):
            return number + 1
    return None


@pytest.mark.parametrize(
    ("limit", "tried"),
    [(0, 1), (7, 8), (0.0, 1), (0.01, 11), (0.1, 101), (0.5, 501), (0.999, 1000), (None, LEAST_SAMPLES), (ALL, None)],
)
def test_where_everything_is_broken(limit, tried):
    assert first_too_many(limit) == tried


@pytest.mark.parametrize("limit", [-1, -0.1, 1.1, float("nan"), float("inf")])
def test_what_is_no_limit_raises(limit):
    with pytest.raises(ValueError, match="max_skipped is"):
        SkipLimit(limit)
