"""Where this process runs: its rank, its place in a mesh, its torch worker, its cores, and the environment."""

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol


def launched_rank() -> tuple[int, int] | None:
    """This process's rank and the number of ranks: from torch.distributed, else from the launcher's environment."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank_name, world_name in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        rank, world = os.environ.get(rank_name), os.environ.get(world_name)
        if rank is None or world is None:
            continue
        if not (rank.isdecimal() and world.isdecimal()) or int(rank) >= int(world):
            raise ValueError(
                f"{rank_name} is {rank!r} and {world_name} is {world!r} in the environment; both must be integers, "
                f"{rank_name} below {world_name}. Start with a launcher that sets both, unset them, or pass the rank "
                "and the number of ranks."
            )
        return int(rank), int(world)
    return None


def unfinished_launch() -> str | None:
    """What the environment says of several ranks without saying which one this is; None if it says nothing."""
    for given, missing in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if given in os.environ and missing not in os.environ:
            return f"{given} is set in the environment, and {missing} is not"
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if os.environ.get(name, "1") != "1":
            return f"{name} is {os.environ[name]} in the environment, and torch.distributed is not initialised"
    return None


def process_group_store() -> Any | None:
    """The key-value store of torch's process group, or None without one. torch has no public name for it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    accessor = getattr(distributed.distributed_c10d, "_get_default_store", None)
    try:
        return None if accessor is None else accessor()
    except (ValueError, RuntimeError):  # a backend without a store
        return None


def torch_worker() -> tuple[int, int] | None:
    """The number of this DataLoader worker and the number of workers; None in any other process."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return None if info is None else (info.id, info.num_workers)


def usable_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_index_dir() -> Path:
    """``MIDEPOCH_INDEX_DIR``, else a folder in the user's cache."""
    chosen = os.environ.get("MIDEPOCH_INDEX_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    folder = os.path.expanduser(chosen or os.path.join(cache, "midepoch", "index"))
    if folder.startswith("~"):  # there is no such user, as in a container that runs under a number alone
        folder = os.path.join(_own_temporary_folder(), "index")
    return Path(folder)


def trusts_shared_folders() -> bool:
    """``MIDEPOCH_TRUST_SHARED``: whether indexes and cached blocks of other users are used, and made for them too."""
    return os.environ.get("MIDEPOCH_TRUST_SHARED", "").lower() in ("1", "true", "yes")


def _own_temporary_folder() -> str:
    """A folder for temporary files that no other user can have made or can write to."""
    path = os.path.join(tempfile.gettempdir(), f"midepoch-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(
            f"This user has no home folder, and {path} can be written by others. Set MIDEPOCH_INDEX_DIR to a folder "
            "for the indexes of files."
        )
    return path


def aws_region() -> str | None:
    """The region that the environment names for S3, if any."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def aws_keys() -> tuple[str, str, str | None] | None:
    """The key, the secret and the token that the environment has for S3, if it has a key and a secret."""
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    return (key, secret, os.environ.get("AWS_SESSION_TOKEN")) if key and secret else None


def aws_endpoint(*, even_if_ignored: bool = False) -> str | None:
    """The endpoint that the environment names for S3, if any: by the names and the switch of the AWS tools."""
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true" and not even_if_ignored:
        return None
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def azure_settings() -> dict[str, str]:
    """What the environment says of an account of Azure, by the names that adlfs reads, without their prefix."""
    names = ("account_name", "account_key", "sas_token", "connection_string", "anon")
    found = {name: os.environ.get(f"AZURE_STORAGE_{name.upper()}", "") for name in names}
    return {name: value for name, value in found.items() if value}


def store_secrets() -> list[str]:
    """The keys and tokens of object stores that are in the environment. Short ones are words such as "test"."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    azure = azure_settings()
    secrets = [azure.get(name, "") for name in ("account_key", "sas_token", "connection_string")]
    return [value for value in (*(os.environ.get(name, "") for name in names), *secrets) if len(value) >= 8]


def is_starting_a_process() -> bool:
    """Whether a child process is being started: only then can shared memory be pickled."""
    context = sys.modules.get("multiprocessing.context")
    return context is not None and context.get_spawning_popen() is not None


class Mesh(Protocol):
    """What is used of ``torch.distributed.device_mesh.DeviceMesh``."""

    mesh_dim_names: Any

    def size(self, mesh_dim: int | None = None) -> int:
        """The number of processes along a dimension."""

    def get_coordinate(self) -> Sequence[int] | None:
        """The place of this process along each dimension; None if the process is not in the mesh."""


def mesh_shard(mesh: Mesh, dim: str | Sequence[str] | None) -> tuple[int, int]:
    """The number of data-parallel ranks, and the rank of this process among them.

    ``dim`` names the dimensions along which ranks read different data, the first the slowest. Processes that differ
    only along other dimensions, such as tensor- or pipeline-parallel peers, have the same rank.
    """
    names = tuple(mesh.mesh_dim_names or ())
    if dim is None:
        if mesh.size() != mesh.size(0):
            raise ValueError(
                f"The mesh has the dimensions {names}; pass dim= with the names of those along which ranks read "
                "different data, such as dim=('dp_replicate', 'dp_shard')."
            )
        chosen: tuple[int, ...] = (0,)
    else:
        wanted = (dim,) if isinstance(dim, str) else tuple(dim)
        unknown = [name for name in wanted if name not in names]
        if unknown or len(set(wanted)) < len(wanted) or not wanted:
            raise ValueError(f"dim is {dim!r}; the mesh has the dimensions {names}. Pass some of them, each once.")
        chosen = tuple(names.index(name) for name in wanted)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError("This process is not in the mesh. Build the dataset only on processes of the mesh.")
    ranks, rank = 1, 0
    for number in chosen:
        ranks, rank = ranks * mesh.size(number), rank * mesh.size(number) + int(coordinate[number])
    return ranks, rank
