import signal
from pathlib import Path

import pytest
import ray
import ray.train

import midepoch as me
from midepoch.integrations.ray import FILE, RayExecutor, prepare_loader
from worlds import ids, write_files


def test_a_connection_leaves_no_handler_of_sigterm(monkeypatch):
    monkeypatch.setattr(ray, "init", lambda address: signal.signal(signal.SIGTERM, print))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with RayExecutor():
        assert signal.getsignal(signal.SIGTERM) is print
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


class Run:
    """What a training function sees of Ray Train."""

    def __init__(self, folder, rank=0):
        self.folder, self.rank, self.reported = folder, rank, []

    def install(self, monkeypatch):
        given = None if self.folder is None else ray.train.Checkpoint.from_directory(str(self.folder))
        monkeypatch.setattr(ray.train, "get_checkpoint", lambda: given)
        monkeypatch.setattr(ray.train, "get_context", lambda: self)
        monkeypatch.setattr(ray.train, "report", self.report)

    def get_world_rank(self):
        return self.rank

    def report(self, metrics, checkpoint=None):
        files = None if checkpoint is None else {path.name for path in Path(checkpoint.path).iterdir()}
        self.reported.append((metrics, files))


@pytest.mark.parametrize("with_model", [True, False])
def test_a_reported_checkpoint_has_the_state_and_a_new_run_starts_from_it(tmp_path, monkeypatch, with_model):
    data, saved = write_files(tmp_path / "data", [20]), tmp_path / "saved"
    saved.mkdir()
    run = Run(None)
    run.install(monkeypatch)
    loader = prepare_loader(me.Loader(me.read(data), batch_size=4))
    first = ids([next(iter(loader))])
    loader.report({"loss": 1}, saved if with_model else None)
    assert run.reported == [({"loss": 1}, {FILE})]
    if with_model:
        Run(saved).install(monkeypatch)
        assert first + ids(prepare_loader(me.Loader(me.read(data), batch_size=4))) == list(range(20))
        (saved / FILE).write_text("{")
        with pytest.raises(me.CheckpointMismatchError, match=r"loader\.report"):
            prepare_loader(me.Loader(me.read(data), batch_size=4))


def test_other_workers_report_metrics_only(tmp_path, monkeypatch):
    run = Run(None, rank=1)
    run.install(monkeypatch)
    loader = prepare_loader(me.Loader(me.read(write_files(tmp_path / "data", [20])), batch_size=4))
    assert (len(loader), loader.epoch, loader.is_padding, bool(loader)) == (5, 0, False, True)
    loader.set_epoch(2)
    assert loader.epoch == 2
    loader.report({"loss": 1})
    assert run.reported == [({"loss": 1}, None)]
