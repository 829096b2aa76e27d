"""The data-parallel rank of this process in a device mesh of torch. No torch is imported: a mesh knows all of it."""

from collections.abc import Sequence
from typing import Any, Protocol


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
