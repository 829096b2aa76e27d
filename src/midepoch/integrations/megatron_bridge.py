"""Megatron-Bridge: a Loader as its external data loader, with a state for any data-parallel size.

config.dataset = LoaderProvider(make_loader=make_loader, dataloader_save="states")
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from midepoch.distributed import all_epochs
from midepoch.errors import needs
from midepoch.loader import Loader

with needs("megatron-bridge", "megatron-bridge", "midepoch.integrations.megatron_bridge"):
    from megatron.bridge.data.utils import DatasetProvider


class ExternalLoader:
    """The micro-batches of a Loader, epoch after epoch, as Megatron takes and saves them."""

    def __init__(self, loader: Loader) -> None:
        if loader.plan.ranks > 1 and (reason := loader.plan.why_not_counted()) is not None:
            raise ValueError(f"Megatron-Bridge needs a pipeline whose number of items is known: {reason}.")
        self.loader, self.save_state, self.close = loader, loader.save_state, loader.close
        self._batches = all_epochs(loader)

    def __iter__(self) -> "ExternalLoader":
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state. If it does not fit, this raises and changes nothing."""
        self.loader.restore_state(state)
        self._batches = all_epochs(self.loader)


@dataclass(kw_only=True)
class LoaderProvider(DatasetProvider):  # type: ignore[misc]
    """The data of a training run of Megatron-Bridge: the micro-batches of a Loader, epoch after epoch.

    ``make_loader`` is called with ``dp_world_size`` and ``dp_rank``, by name, and returns the Loader of that rank.
    Megatron-Bridge saves the states of all ranks in the folder ``dataloader_save``; ``resume_from`` is the folder of
    one iteration in it. ``dataloader_type`` stays "external": that lets Megatron-Bridge take the batches as they are.
    """

    make_loader: Callable[..., Loader]
    dataloader_type: str | None = "external"
    dataloader_save: str | None = None
    resume_from: str | None = None

    def build_datasets(self, context: Any) -> tuple[ExternalLoader, None, None]:
        """The data to train on, for the data-parallel rank that this process has in ``context``; no other data."""
        group = context.pg_collection.dp
        loader = ExternalLoader(self.make_loader(dp_world_size=group.size(), dp_rank=group.rank()))
        if self.resume_from is not None:  # every rank's state holds for all, whatever their number was
            saved = torch.load(f"{self.resume_from}/train_dataloader_dprank000.pt", weights_only=True)
            loader.restore_state(saved["dataloader_state_dict"])
        return loader, None, None
