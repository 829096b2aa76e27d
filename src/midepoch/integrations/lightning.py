"""Lightning: a data module that trains on a Loader, and saves and resumes it with Lightning's checkpoints.

trainer = Trainer(max_steps=10_000)
trainer.fit(model, datamodule=LoaderDataModule(loader), ckpt_path="last")
"""

from collections.abc import Callable, Iterator
from typing import Any

from midepoch.distributed import Received, all_epochs, gather_state, received
from midepoch.errors import needs
from midepoch.loader import Loader

with needs("lightning", "lightning", "midepoch.integrations.lightning"):
    from lightning.pytorch import LightningDataModule


class LoaderDataModule(LightningDataModule):  # type: ignore[misc]
    """The batches of a loader, epoch after epoch, until ``max_steps``.

    ``loader`` is a Loader, or a function of the number of processes and the rank that makes one, for strategies whose
    processes Lightning itself starts. Lightning reads ahead, so each batch carries the state after it; what a
    checkpoint holds is the state of the last batch that was trained on. It fits any number of processes.

    The loader counts epochs, and Lightning steps: to Lightning the whole run is one epoch. ``val_dataloaders`` is what
    ``val_dataloader()`` returns; use it with ``val_check_interval=n`` and ``check_val_every_n_epoch=None``.
    """

    def __init__(self, loader: Loader | Callable[[int, int], Loader], val_dataloaders: Any = None) -> None:
        super().__init__()
        self._given, self._val_dataloaders = loader, val_dataloaders
        self._loader: Loader | None = None
        self._trained: dict[str, Any] | None = None
        self.is_padding = False
        """True if the present batch is one that keeps ranks even. It is in no state."""

    def setup(self, stage: str) -> None:
        """Build the loader, once the trainer knows its processes.

        ``stage`` is what Lightning prepares for. "fit" raises if the trainer has no ``max_steps``.
        """
        if stage == "fit" and self.trainer.max_steps < 1:
            raise ValueError(
                "LoaderDataModule needs Trainer(max_steps=...), for example epochs * len(loader): after a resume "
                "Lightning counts epochs wrongly, and steps rightly."
            )
        if self._loader is None:
            given, trainer = self._given, self.trainer
            self._loader = given if isinstance(given, Loader) else given(trainer.world_size, trainer.global_rank)

    @property
    def loader(self) -> Loader:
        """The loader. A function that makes one is called when the trainer sets up its processes."""
        if self._loader is None:
            raise RuntimeError("The loader is made when the trainer starts: use it in a hook or after that.")
        return self._loader

    @property
    def epoch(self) -> int:
        """The loader's epoch of the last batch that was trained on."""
        return self.loader.epoch if self._trained is None else int(self._trained["epoch"])

    def train_dataloader(self) -> "StepBatches":
        """Every batch with the state after it."""
        return StepBatches(self.loader)

    def val_dataloader(self) -> Any:
        """What was passed as ``val_dataloaders``."""
        return [] if self._val_dataloaders is None else self._val_dataloaders

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Take the state off a batch that is about to be trained on. Lightning fetches batches before that.

        ``batch``, without the state, and ``dataloader_idx``, the number of its data loader, then go to the model's own
        ``on_before_batch_transfer``.
        """
        if isinstance(batch, Received):
            batch, self.is_padding, self._trained = batch
        return self.trainer.lightning_module.on_before_batch_transfer(batch, dataloader_idx)

    def state_dict(self) -> dict[str, Any]:
        """The state of all processes, which Lightning writes into every checkpoint. All processes call this."""
        return gather_state(self.loader if self._trained is None else self._trained)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the position of ``state``, that of a checkpoint. Lightning calls this before it asks for a batch."""
        self.loader.load_state_dict(state)
        self._trained = None


class StepBatches:
    """The batches of a loader without an end. Lightning finds no length, state or sampler of which to keep account."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Received]:
        return received(self._loader, all_epochs(self._loader))
