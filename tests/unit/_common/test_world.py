"""The environment is read in one module, and what it says is checked."""

import os
import re
import tempfile
from itertools import product
from math import prod
from pathlib import Path

import pytest

import midepoch
from midepoch._common.world import default_index_dir, launched_rank, mesh_shard, usable_cores

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


@pytest.mark.parametrize(("rank", "world"), [("4", "4"), ("-1", "2"), ("one", "2"), ("0", ""), ("0", "0")])
def test_a_rank_that_cannot_be_is_refused(monkeypatch, rank, world):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(ValueError, match=f"RANK is '{rank}' and WORLD_SIZE is '{world}'.*must be integers"):
        launched_rank()


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


class Mesh:
    """A mesh as one of its processes sees it."""

    def __init__(self, sizes, names, coordinate):
        self.sizes, self.mesh_dim_names, self.coordinate = sizes, names, coordinate

    def size(self, mesh_dim=None):
        return prod(self.sizes) if mesh_dim is None else self.sizes[mesh_dim]

    def get_coordinate(self):
        return self.coordinate


SIZES, DIMS = (2, 3, 2), ("dp_replicate", "dp_shard", "tp")


def test_ranks_along_the_chosen_dimensions_differ_and_peers_do_not():
    ranks = {}
    for place in product(*map(range, SIZES)):
        found = mesh_shard(Mesh(SIZES, DIMS, place), ("dp_replicate", "dp_shard"))
        ranks.setdefault(place[:2], set()).add(found)
    assert [ranks[place] for place in sorted(ranks)] == [{(6, rank)} for rank in range(6)]


def test_one_dimension_by_name_or_alone():
    assert mesh_shard(Mesh(SIZES, DIMS, (1, 2, 0)), "dp_shard") == (3, 2)
    assert mesh_shard(Mesh((4,), None, (3,)), None) == (4, 3)


@pytest.mark.parametrize("dim", [("dp",), ("tp", "tp"), (), "dp_replicate,dp_shard"])
def test_dimensions_that_the_mesh_does_not_have_are_named(dim):
    with pytest.raises(ValueError, match="the mesh has the dimensions"):
        mesh_shard(Mesh(SIZES, DIMS, (0, 0, 0)), dim)


def test_a_mesh_of_several_dimensions_needs_dim_and_a_process_in_it():
    with pytest.raises(ValueError, match="pass dim="):
        mesh_shard(Mesh(SIZES, DIMS, (0, 0, 0)), None)
    with pytest.raises(ValueError, match="not in the mesh"):
        mesh_shard(Mesh(SIZES, DIMS, None), "tp")
