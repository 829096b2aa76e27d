"""A worker that dies is started again where the loop has not received, and no batch, order or state differs."""

import os
import random
import re
import signal
from contextlib import suppress
from functools import partial

import pytest
import torch

import midepoch as me
from midepoch.workers.interface import WorkerDiedError
from midepoch.workers.process import ProcessWorker
from worlds import write_files

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # torch reports the kill once more
]
SIZES = [90, 60, 70]


def die_once(folder, row):
    """End the process at some rows, once at each."""
    if row["id"] % 50 == 7:
        try:
            os.mkdir(folder / str(row["id"]))
        except FileExistsError:
            return row
        if row["id"] % 100 == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
    return row


def die_always(row):
    if row["id"] == 150:
        os.kill(os.getpid(), signal.SIGKILL)
    return row


def as_tokens(row):
    return {"id": row["id"], "input_ids": [row["id"]] * (1 + row["id"] % 7)}


def is_kept(row):
    return row["id"] % 3 != 1


def pipeline(kind, files, function):
    rows = me.read(files).shuffle(1).map(function)
    if kind == "mixture":
        return me.mix([rows.select_columns(["id"]), me.read(files).select_columns(["id"])], weights=[2, 1], seed=3)
    return {
        "rows": rows,
        "filter": rows.filter(is_kept),
        "packs": rows.filter(is_kept).map(as_tokens).pack(32, window=20),
        "stream": rows.map(as_tokens).pack(32, strategy="concat"),
    }[kind]


def with_states(loader):
    batches = iter(loader)
    return [(repr(batch), batches.state_dict()) for batch in batches]


def same(row):
    return row


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", ["rows", "filter", "packs", "stream", "mixture"])
def test_no_batch_differs_if_workers_die(tmp_path, kind, workers):
    files = write_files(tmp_path / "data", SIZES)
    (tmp_path / "died").mkdir()
    for lanes, ranks in ((2, 1), (3, 2)):
        for rank in range(ranks):
            whole = me.Loader(pipeline(kind, files, same).lanes(lanes).shard(ranks, rank), batch_size=2)
            expected = with_states(whole)
            deadly = pipeline(kind, files, partial(die_once, tmp_path / "died")).lanes(lanes).shard(ranks, rank)
            loader = me.Loader(deadly, batch_size=2, num_workers=workers, prefetch_factor=3)
            got = with_states(loader)
            assert [batch for batch, _ in got] == [batch for batch, _ in expected]
            assert [state["cursors"] for _, state in got] == [state["cursors"] for _, state in expected]
    assert len(os.listdir(tmp_path / "died")) >= 4


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_that_stay_are_started_again_in_every_epoch(tmp_path, context, caplog):
    dataset = me.read(write_files(tmp_path / "data", SIZES)).shuffle(1).filter(is_kept).lanes(2)
    expected = [[row["id"] for row in me.Loader(dataset.set_epoch(epoch) or dataset)] for epoch in range(2)]
    dataset.set_epoch(0)
    loader = me.Loader(dataset, num_workers=2, persistent_workers=True, multiprocessing_context=context)
    for epoch in range(2):
        others, got, chosen = set(), [], random.Random(epoch)
        for row in loader:
            got.append(row["id"])
            others = {child.pid for child in torch.multiprocessing.active_children()}
            if len(got) % 40 == 10:
                os.kill(chosen.choice(sorted(others)), signal.SIGKILL)
        assert got == expected[epoch]
        for pid in others:  # between two epochs
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    loader.close()
    assert "exit code -9, SIGKILL) died. It is started again" in caplog.text


def test_a_worker_that_dies_again_and_again_is_named_and_nothing_is_lost(tmp_path, caplog):
    files = write_files(tmp_path / "data", SIZES)
    dataset = me.read(files).lanes(2)
    whole = [row["id"] for row in me.Loader(dataset)]
    loader, got = me.Loader(dataset.map(die_always), num_workers=2, worker_restarts=2), []
    with pytest.raises(RuntimeError, match=f"exited unexpectedly with exit code -{signal.SIGKILL}") as caught:
        got.extend(row["id"] for row in loader)
    assert re.search(r"worker \d of 2 \(pid \d+, exit code -9, SIGKILL\) died 3 times", caught.value.__notes__[0])
    assert "1 restart is left until it sends one" in caplog.text
    assert "0 restarts are left until it sends one" in caplog.text
    assert loader.metrics()["restarts"] >= 2
    assert got == whole[: whole.index(150)][: len(got)]
    dies = die_always.__code__
    try:
        die_always.__code__ = same.__code__  # the function is repaired
        resumed = me.Loader(dataset.map(die_always))
        resumed.load_state_dict(loader.state_dict())
        assert got + [row["id"] for row in resumed] == whole
    finally:
        die_always.__code__ = dies


def test_without_restarts_a_death_is_an_error(tmp_path):
    loader = me.Loader(me.read(write_files(tmp_path / "data", SIZES)).map(die_always), num_workers=1, worker_restarts=0)
    with pytest.raises(RuntimeError, match="exited unexpectedly") as caught:
        list(loader)
    assert "SIGKILL) died. Nothing is lost" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="worker_restarts"):
        me.Loader(loader.dataset, worker_restarts=-1)


def close_while_it_waits(loader, monkeypatch):
    receive = ProcessWorker.receive

    def closing(worker, seconds):
        if seconds:
            loader.close()
            raise WorkerDiedError("gone", who="a worker")
        return receive(worker, 0)

    monkeypatch.setattr(ProcessWorker, "receive", closing)


def test_a_loader_that_is_closed_while_it_waits_starts_no_worker(tmp_path, monkeypatch):
    loader = me.Loader(me.read(write_files(tmp_path / "data", SIZES)), num_workers=1)
    before = set(torch.multiprocessing.active_children())
    close_while_it_waits(loader, monkeypatch)
    with pytest.raises(me.StaleIteratorError, match="its Loader was closed"):
        list(loader)
    assert set(torch.multiprocessing.active_children()) == before
