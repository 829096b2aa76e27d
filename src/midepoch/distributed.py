"""Complete states across ranks, over torch.distributed. Nothing else in midepoch communicates."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from midepoch.checkpoint.merge import merge_states
from midepoch.errors import MissingExtraError

try:
    import torch.distributed
except ImportError as error:
    raise MissingExtraError("torch", "torch", "midepoch.distributed") from error


class Stateful(Protocol):
    """A Loader or a Dataset."""

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go there."""


def gather_state(loader: Stateful | Mapping[str, Any]) -> dict[str, Any]:
    """One complete state of a loader, or of each rank's state, from which any number of ranks can go on.

    All ranks must call it at the same step: it communicates. Without an initialised process group it is the loader's
    own state. A uniform pipeline's state is complete on every rank anyway; this also checks that the ranks agree.
    """
    state = dict(loader) if isinstance(loader, Mapping) else loader.state_dict()
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return state
    states: list[dict[str, Any]] = [{} for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather_object(states, state)
    return merge_states(states)


class Complete:
    """A loader as torch.distributed.checkpoint wants it: complete on every rank, and one value of constant shape.

    dcp.save({"model": model_state, "loader": Complete(loader)}, checkpoint_id=folder)
    dcp.load({"model": model_state, "loader": Complete(loader)}, checkpoint_id=folder)
    """

    def __init__(self, loader: Stateful) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks, as text. All ranks must call it at the same step."""
        return {"midepoch": json.dumps(gather_state(self._loader))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where the state of all ranks says."""
        self._loader.load_state_dict(json.loads(state["midepoch"]))
