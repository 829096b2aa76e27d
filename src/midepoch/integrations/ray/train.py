"""Ray Train: a Loader that starts from the run's checkpoint, and whose state is in every checkpoint that is reported.

loader = prepare_loader(midepoch.Loader(dataset.shard(), batch_size=8))
for batch in loader:
    ...
    loader.report({"loss": loss}, folder)
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from midepoch.distributed import epoch_is_over, gather_state, one_epoch
from midepoch.errors import CheckpointMismatchError, MissingExtraError
from midepoch.loader import Loader

try:
    import ray.train
except ImportError as error:
    raise MissingExtraError("ray", "ray", "midepoch.integrations.ray.train") from error

FILE = "midepoch_loader.json"


def prepare_loader(loader: Loader) -> "ReportingLoader":
    """A loader for the training function of a TorchTrainer.

    ``loader`` is the Loader of this worker. It starts from the checkpoint that Ray gives this run, if there is one, on
    any number of workers. All workers call this, and get the same number of batches.
    """
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return ReportingLoader(loader)
    with checkpoint.as_directory() as folder:
        loader.load_state_dict(_read(Path(folder) / FILE))
    return ReportingLoader(loader, is_over=epoch_is_over(loader))


class ReportingLoader:
    """The batches of a loader, and :meth:`report`."""

    def __init__(self, loader: Loader, *, is_over: bool = False) -> None:
        """``is_over`` means that nothing is left of the epoch that was loaded."""
        self.loader, self._is_over = loader, is_over

    def __iter__(self) -> Iterator[Any]:
        """A pass from the start point. If nothing is left of the epoch that was loaded, it is the next epoch."""
        if self._is_over:
            self.set_epoch(self.epoch)
        return one_epoch(self.loader)

    def __len__(self) -> int:
        """The number of batches that this worker gets in an epoch, known without reading."""
        return self.loader.plan.length(self.epoch)

    def __bool__(self) -> bool:
        """True, even if the length is unknown."""
        return True

    @property
    def epoch(self) -> int:
        """The present epoch; after its last batch was loaded, the next one."""
        return self.loader.epoch + self._is_over

    @property
    def is_padding(self) -> bool:
        """True if the last batch is one that keeps workers even. It is in no state."""
        return self.loader.is_padding

    def set_epoch(self, epoch: int) -> None:
        """Start the next loop at the beginning of an epoch, or at the state of that epoch that was loaded."""
        self._is_over = False
        self.loader.set_epoch(epoch)

    def report(self, metrics: dict[str, Any], folder: str | Path | None = None) -> None:
        """``ray.train.report`` with a checkpoint of what is in ``folder``, and of the state of all workers' loaders.

        All workers call this after the same step. ``folder`` is where the worker of rank 0 has saved its model; other
        workers' folders are uploaded too, if they pass one.
        """
        state = gather_state(self.loader)
        is_first = ray.train.get_context().get_world_rank() == 0
        if folder is None and not is_first:
            ray.train.report(metrics)
            return
        with tempfile.TemporaryDirectory() as temporary:
            target = Path(temporary if folder is None else folder)
            if is_first:
                (target / FILE).write_text(json.dumps(state))
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(str(target)))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointMismatchError(
            f"The checkpoint of Ray Train has no {FILE} that can be read ({error}). Report checkpoints with "
            "loader.report(metrics, folder) in place of ray.train.report."
        ) from error
