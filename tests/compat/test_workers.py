"""The worker processes of a Loader: what functions find in them, how far they are ahead, and how they end."""

import gc
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import get_worker_info

import midepoch as me
from forking import children
from worlds import ids, write_files

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("workers") / "data", [20, 0, 7, 33])


def where_am_i(row):
    info = get_worker_info()
    return {"worker": info.id, "workers": info.num_workers, "seed": info.seed, "threads": torch.get_num_threads()}


def with_random_numbers(row):
    return {"numbers": (random.random(), float(np.random.rand()), float(torch.rand(())))}


def test_functions_find_what_they_find_in_workers_of_torch(folder):
    rows = list(me.Loader(me.read(folder).map(where_am_i), num_workers=2))
    assert {(row["worker"], row["workers"], row["threads"]) for row in rows} == {(0, 2, 1), (1, 2, 1)}
    assert len({row["seed"] for row in rows}) == 2
    torch.manual_seed(5)
    first = list(me.Loader(me.read(folder).map(with_random_numbers), num_workers=2))
    torch.manual_seed(5)
    assert list(me.Loader(me.read(folder).map(with_random_numbers), num_workers=2)) == first
    assert len({numbers for row in first for numbers in row["numbers"]}) == 3 * len(first)


def raise_own_error(row):
    class OwnError(Exception):
        pass

    raise OwnError("x" * 200_000 + "the end")


def test_an_error_that_cannot_be_sent_as_it_is_arrives_in_words(folder):
    with pytest.raises(RuntimeError) as caught:
        list(me.Loader(me.read(folder).map(raise_own_error), num_workers=1))
    message = str(caught.value)
    assert all(part in message for part in ("OwnError: xxx", "[...]", "xthe end", "row 0 of part-0000"))
    assert len(message) < 100_000


def test_a_timeout_is_reported_and_a_worker_that_does_not_end_is_stopped(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("midepoch.workers.pool.GRACE_SECONDS", 0.1)
    os.mkfifo(tmp_path / "never")

    def wait_for_ever(row):
        (tmp_path / "never").read_bytes()
        return row

    loader = me.Loader(me.read(folder).map(wait_for_ever), num_workers=1, timeout=0.2, multiprocessing_context="fork")
    batches = iter(loader)
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
        next(batches)


def test_persistent_workers_that_are_interrupted_serve_the_next_loop(folder):
    loader = me.Loader(me.read(folder).shuffle(1).lanes(2).repeat(40), num_workers=2, persistent_workers=True)
    whole = ids(me.read(folder).shuffle(1).lanes(2).repeat(40))
    for cut in (1, 100, 3, 2400, 7):
        assert ids(islice(loader, cut)) == whole[:cut]
        loader.set_epoch(0)


LEAVING = """
import multiprocessing, os, sys
import midepoch as me
if __name__ == "__main__":
    options = {"persistent_workers": sys.argv[2] == "persistent", "multiprocessing_context": sys.argv[3]}
    dataset = me.read(sys.argv[1]).select_columns(["id"]).with_format("torch").repeat()
    loader = me.Loader(dataset, num_workers=2, device="cpu" if sys.argv[4] == "keep" else None, **options)
    rows = iter(loader)
    assert [next(rows)["id"] for _ in range(3)]
    print(os.getpid(), *(process.pid for process in multiprocessing.active_children()), flush=True)
    if sys.argv[4] == "wait":
        sys.stdin.read()
    elif sys.argv[4] == "leave":
        rows = None
    elif sys.argv[4] == "raise":
        raise SystemExit(3)
"""


@pytest.mark.parametrize(("workers", "end"), [("persistent", "keep"), ("passing", "leave"), ("passing", "raise")])
def test_a_program_ends_with_workers_at_work(folder, workers, end):
    """Its output ends when all its processes have ended."""
    command = [sys.executable, "-c", LEAVING, str(folder), workers, "fork", end]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == (3 if end == "raise" else 0), ended.stderr
    assert "Error" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert len(ended.stdout.split()) == 3


def named_memory(process):
    """The files in /dev/shm that a process uses and that have a name, so that somebody would have to delete them."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    for number in os.listdir(f"/proc/{process}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            lines.append(os.readlink(f"/proc/{process}/fd/{number}"))
    return [line for line in lines if "/dev/shm" in line and not line.endswith("(deleted)")]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_end_with_a_killed_trainer_and_leave_nothing(folder, tmp_path, method):
    """The workers are blocked with full memory. The output of the trainer ends when the last of them has ended."""
    script = tmp_path / "trainer.py"
    script.write_text(LEAVING)
    command = [sys.executable, str(script), str(folder), "passing", method, "wait"]
    trainer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    processes = trainer.stdout.readline().split()
    assert len(processes) == 3
    for process in processes:
        assert named_memory(int(process)) == []
    trainer.send_signal(signal.SIGKILL)
    assert trainer.stdout.read() == b""
    trainer.wait()
    trainer.stdin.close()
    trainer.stdout.close()


def test_killed_workers_leave_nothing_and_cost_nothing(tmp_path):
    """Some times a worker is killed while its memory is full, and the loader goes on after its state."""
    dataset = me.read(write_files(tmp_path / "data", [2000])).lanes(2)
    whole = ids(dataset)
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    loader, got = me.Loader(dataset, num_workers=2, prefetch_factor=2, worker_restarts=0), []
    for kill in range(8):
        others = children()
        rows = iter(loader)
        got += ids(islice(rows, 20))
        workers = sorted(children() - others)
        os.kill(workers[kill % 2], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="exited unexpectedly with exit code -9"):
            got.extend(row["id"] for row in rows)
        loader.load_state_dict(loader.state_dict())
    got += ids(islice(loader, 20))
    assert got == whole[: len(got)]
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < files + 6, "a file for each kill is left"


def train(folder, output):
    """Write the numbers of this process and its workers, and a dot for every row."""
    others = children()
    rows = iter(me.Loader(me.read(folder).repeat(), num_workers=2))
    next(rows)
    workers = children() - others
    os.write(output, f"{os.getpid()} {' '.join(map(str, workers))}\n".encode())
    for _ in rows:
        os.write(output, b".")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_many_killed_trainers_leave_nothing(folder):
    """Each is killed at another row. What it writes ends when the last of its workers has ended."""
    for rows in range(0, 24, 3):
        reading, writing = os.pipe()
        trainer = os.fork()
        if trainer == 0:
            try:
                train(folder, writing)
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading, "rb") as output:
            processes = [int(number) for number in output.readline().split()]
            assert processes[0] == trainer
            assert len(processes) == 3
            assert [named_memory(process) for process in processes] == [[], [], []]
            output.read(rows)
            os.kill(trainer, signal.SIGKILL)
            assert set(output.read()) <= set(b".")
        assert os.waitstatus_to_exitcode(os.waitpid(trainer, 0)[1]) == -signal.SIGKILL


def with_process(row):
    return {"id": row["id"], "process": os.getpid()}


@pytest.mark.parametrize("leaves", [False, True])
def test_workers_stay_for_all_epochs_of_a_loop_and_no_longer(folder, leaves):
    dataset = me.read(folder).shuffle(1).lanes(2).map(with_process)
    others = children()
    loader = me.Loader(dataset.repeat(3), num_workers=2)
    rows = list(islice(loader, 150 if leaves else None))
    assert ids(rows) == ids(me.Loader(dataset.repeat(3)))[: len(rows)]
    assert len({row["process"] for row in rows}) == 2
    gc.collect()
    assert children() <= others


def write_wide(folder, files=5, rows=40, width=6_000):
    """Rows of equal numbers, so wide that a batch is large, in small blocks of several files."""
    folder.mkdir()
    for file in range(files):
        numbers = np.arange(file * rows, (file + 1) * rows, dtype=np.int32)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(numbers, width)), width)
        table = pa.table({"x": lists, "number": numbers, "text": [f"row {number}" for number in numbers]})
        with pa.ipc.new_stream(folder / f"{file}.arrow", table.schema) as stream:
            stream.write_table(table, max_chunksize=8)
    return folder


def first_numbers(batch):
    assert (batch["x"] == batch["x"][:, :1]).all()
    assert batch["x"][:, 0].tolist() == batch["number"].tolist()
    return batch["number"].tolist()


@pytest.mark.parametrize(
    ("form", "options"), [("numpy", {}), ("torch", {"prefetch_factor": 2}), ("torch", {"collate_fn": dict})]
)
def test_batches_of_wide_rows_arrive_as_in_process_and_stay_after_any_stop(tmp_path, form, options):
    dataset = me.read(write_wide(tmp_path / "data")).shuffle(3, window=64).with_format(form).lanes(6).batch(6)
    expected = [first_numbers(batch) for batch in me.Loader(dataset)]
    for workers, other in ((2, 0), (1, 3)):
        whole = me.Loader(dataset, num_workers=workers, **options)
        assert [first_numbers(batch) for batch in whole] == expected
        loader = me.Loader(dataset, num_workers=workers, **options)
        held = list(islice(loader, 5))
        resumed = me.Loader(dataset, num_workers=other, collate_fn=options.get("collate_fn"))
        resumed.load_state_dict(loader.state_dict())
        held += resumed
        assert [first_numbers(batch) for batch in held] == expected, "also those that are held for long"
        assert all(np.asarray(batch["x"]).flags.writeable for batch in held)
