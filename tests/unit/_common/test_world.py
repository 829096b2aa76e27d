"""The environment is read in one module, and what it says is checked."""

import os
import re
import tempfile
from pathlib import Path

import pytest

import midepoch
from midepoch._common.world import aws_region, default_index_dir, launched_rank, usable_cores

NAMES = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "AWS_REGION", "AWS_DEFAULT_REGION")


@pytest.fixture(autouse=True)
def _bare(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_no_other_module_reads_the_environment():
    package = Path(midepoch.__file__).parent
    readers = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"os\.environ|getenv|import environ", path.read_text())
    ]
    assert readers == ["_common/world.py"]


@pytest.mark.parametrize("names", [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")])
def test_the_rank_comes_from_the_launcher(monkeypatch, names):
    assert launched_rank() is None
    monkeypatch.setenv(names[0], "2")
    assert launched_rank() is None
    monkeypatch.setenv(names[1], "4")
    assert launched_rank() == (2, 4)


def test_torchrun_counts_before_slurm(monkeypatch):
    for name, value in zip(NAMES, ("1", "2", "3", "4"), strict=False):
        monkeypatch.setenv(name, value)
    assert launched_rank() == (1, 2)


@pytest.mark.parametrize(("rank", "world"), [("4", "4"), ("-1", "2"), ("one", "2"), ("0", ""), ("0", "0")])
def test_a_rank_that_cannot_be_is_refused(monkeypatch, rank, world):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(ValueError, match=f"RANK is '{rank}' and WORLD_SIZE is '{world}'.*must be integers"):
        launched_rank()


def test_the_region_of_the_environment(monkeypatch):
    assert aws_region() is None
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert aws_region() == "eu-west-1"
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    assert aws_region() == "us-east-2"


def test_an_index_folder_is_chosen_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MIDEPOCH_INDEX_DIR", str(tmp_path))
    assert default_index_dir() == tmp_path
    monkeypatch.setenv("MIDEPOCH_INDEX_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_index_dir() == tmp_path / "midepoch" / "index"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MIDEPOCH_INDEX_DIR", "~/x")
    assert default_index_dir() == tmp_path / "x"


def test_a_user_without_a_home_has_an_index_in_a_temporary_folder_of_its_own(monkeypatch, tmp_path):
    for name in ("MIDEPOCH_INDEX_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    own = tmp_path / f"midepoch-{os.getuid()}"
    for _ in range(2):
        assert default_index_dir() == own / "index"
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by others"):
        default_index_dir()
    own.rmdir()
    own.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="Set MIDEPOCH_INDEX_DIR"):
        default_index_dir()


def test_cores_that_this_process_may_not_use_do_not_count(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert usable_cores() == 3
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert usable_cores() == 4
