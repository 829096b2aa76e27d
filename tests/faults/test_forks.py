"""Processes that are forked in the middle of a pass: they never wait for a lock or a thread of their parent."""

import gzip
import threading
import time
from itertools import islice

import fsspec
import pytest

import midepoch as me
from files import plain, write_numbers
from forking import children, fork, in_a_forked_process

ROWS, BLOCK = 4000, 100
CHILDREN = 12

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def double(row):
    return {"x": 2 * row["x"]}


def shuffled(dataset):
    return dataset.shuffle(seed=1, window=400)


def filtered(dataset):
    return dataset.filter(lambda row: row["x"] >= 0)


PIPELINES = {
    "in order": lambda dataset: dataset,
    "shuffled": shuffled,
    "mapped": lambda dataset: dataset.map(double),
    "filtered and shuffled": lambda dataset: filtered(shuffled(dataset)),
    "batched": lambda dataset: dataset.batch(7),
    "of a Loader": lambda dataset: me.Loader(dataset, num_workers=0),
    "of a Loader, shuffled and mapped": lambda dataset: me.Loader(shuffled(dataset).map(double), num_workers=0),
    "of a mixture": lambda dataset: me.mix([dataset, dataset.shuffle(seed=2)], weights=[1, 1], seed=1),
}


@pytest.fixture
def _little_at_a_time(monkeypatch):
    """The rows at hand are delivered in a forked process too: keep them few."""
    monkeypatch.setattr("midepoch.sources.ahead.STEP_ROWS", 64)
    monkeypatch.setattr("midepoch.sources.ahead.RUN_ROWS", 64)


@pytest.mark.usefixtures("_little_at_a_time")
@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_forked_process_that_continues_an_iterator_of_its_parent_gets_an_error(tmp_path, kind, pipeline):
    write_numbers(tmp_path / f"0.{kind}", 0, ROWS, "parquet" if kind == "parquet" else "stream", rows=BLOCK)
    rows = iter(pipeline(me.read(tmp_path)))
    next(rows)
    time.sleep(0.05)  # let the thread finish what it reads ahead now
    answer = in_a_forked_process(lambda: len(list(rows)))
    assert "StaleIteratorError: This iterator was started in process" in answer
    assert len(list(rows)) > 0, "the parent continues"


def numbers_in(folder, kind):
    """Where the numbers below ``ROWS`` are, in a file of this kind."""
    if kind == "compressed text":
        lines = "".join(f'{{"x": {number}}}\n' for number in range(ROWS))
        (folder / "0.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        return folder
    path = write_numbers(folder / "0.data", 0, ROWS, "stream" if kind == "arrow" else "parquet", rows=BLOCK)
    if kind != "store":
        return path
    fsspec.filesystem("memory").pipe({f"/{folder.name}/0.parquet": path.read_bytes()})
    return f"memory://{folder.name}/0.parquet"


@pytest.mark.parametrize("kind", ["parquet", "arrow", "compressed text", "store"])
def test_forked_processes_read_to_the_end_while_a_thread_of_their_parent_reads(tmp_path, kind):
    """Half of them open the files themselves, and half use the dataset that the thread reads."""
    data = numbers_in(tmp_path, kind)
    shared = me.read(data)
    stop = threading.Event()

    def read_all_the_time():
        while not stop.is_set():
            for dataset in (shared, shuffled(shared)):
                for _ in dataset:
                    if stop.is_set():
                        return

    thread = threading.Thread(target=read_all_the_time)
    thread.start()
    try:
        for number in range(CHILDREN):
            opened = (lambda: me.read(data)) if number % 2 else (lambda: shared)
            answer = in_a_forked_process(lambda opened=opened: sum(row["x"] for row in opened()))
            assert answer == str(ROWS * (ROWS - 1) // 2)
            time.sleep(0.0002 * number)  # so that the thread is somewhere else
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("child_first", [True, False], ids=["one after the other", "both at once"])
@pytest.mark.parametrize("unfinished", [False, True], ids=["idle workers", "workers in use"])
def test_a_forked_process_leaves_the_persistent_workers_of_its_parent_alone(tmp_path, unfinished, child_first):
    """It inherits their queues: to read from them, or to close them, would hang or stop the parent."""
    write_numbers(tmp_path / "0.arrow", 0, 200, "stream", rows=10)

    def scenario():
        loader = me.Loader(me.read(tmp_path).lanes(2), batch_size=5, num_workers=2, persistent_workers=True)
        whole = numbers(loader)
        assert sorted(whole) == list(range(200))
        workers = children()
        batches = iter(loader) if unfinished else iter(())
        received = numbers(islice(batches, 3))
        child = fork(lambda: [numbers(loader) == whole, numbers(loader) == whole, len(children() - workers)])
        answer = child() if child_first else None
        assert received + numbers(batches) == (whole if unfinished else [])
        assert numbers(loader) == whole
        assert (answer or child()) == "[True, True, 2]"
        assert numbers(loader) == whole, "the workers are still there"
        return children() == workers

    assert in_a_forked_process(scenario) == "True"  # so that a hang of either ends this test


def numbers(batches):
    return [number for batch in batches for number in plain(batch["x"])]
