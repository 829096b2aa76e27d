"""The data-parallel rank in a mesh: mixed radix over the chosen dimensions, and the others do not matter."""

from itertools import product
from math import prod

import pytest

from midepoch._common.mesh import mesh_shard


class Mesh:
    """A mesh as one of its processes sees it."""

    def __init__(self, sizes, names, coordinate):
        self.sizes, self.mesh_dim_names, self.coordinate = sizes, names, coordinate

    def size(self, mesh_dim=None):
        return prod(self.sizes) if mesh_dim is None else self.sizes[mesh_dim]

    def get_coordinate(self):
        return self.coordinate


SIZES, NAMES = (2, 3, 2), ("dp_replicate", "dp_shard", "tp")


def test_ranks_along_the_chosen_dimensions_differ_and_peers_do_not():
    ranks = {}
    for place in product(*map(range, SIZES)):
        found = mesh_shard(Mesh(SIZES, NAMES, place), ("dp_replicate", "dp_shard"))
        ranks.setdefault(place[:2], set()).add(found)
    assert [ranks[place] for place in sorted(ranks)] == [{(6, rank)} for rank in range(6)]


def test_one_dimension_by_name_or_alone():
    assert mesh_shard(Mesh(SIZES, NAMES, (1, 2, 0)), "dp_shard") == (3, 2)
    assert mesh_shard(Mesh((4,), None, (3,)), None) == (4, 3)


@pytest.mark.parametrize("dim", [("dp",), ("tp", "tp"), (), "dp_replicate,dp_shard"])
def test_dimensions_that_the_mesh_does_not_have_are_named(dim):
    with pytest.raises(ValueError, match="the mesh has the dimensions"):
        mesh_shard(Mesh(SIZES, NAMES, (0, 0, 0)), dim)


def test_a_mesh_of_several_dimensions_needs_dim_and_a_process_in_it():
    with pytest.raises(ValueError, match="pass dim="):
        mesh_shard(Mesh(SIZES, NAMES, (0, 0, 0)), None)
    with pytest.raises(ValueError, match="not in the mesh"):
        mesh_shard(Mesh(SIZES, NAMES, None), "tp")
