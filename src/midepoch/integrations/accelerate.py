"""accelerate: a Loader that moves batches to the device, and that ``save_state`` and ``load_state`` include.

loader = prepare_loader(accelerator, loader)
"""

from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from typing import Any

from midepoch.distributed import Complete, Received, epoch_is_over, one_epoch, own_state, received
from midepoch.errors import needs
from midepoch.loader import Loader

with needs("accelerate", "accelerate", "midepoch.integrations.accelerate"):
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.state import GradientState
    from accelerate.utils import send_to_device


def prepare_loader(accelerator: Accelerator, loader: Loader) -> "PreparedLoader":
    """Use this in place of ``accelerator.prepare(loader)``, which would replace the loader with another DataLoader.

    ``accelerator`` is the run's Accelerator, and ``loader`` the Loader of this process, whose batches arrive on the
    accelerator's device. ``save_state`` then saves the state of the last batch that the loop received, and
    ``load_state`` goes there, on any number of processes. Do not skip batches yourself. All processes get the same
    number of batches.
    """
    prepared = PreparedLoader(accelerator, loader)
    accelerator.register_for_checkpointing(Complete(prepared))
    return prepared


class PreparedLoader(DataLoaderStateMixin):  # type: ignore[misc]
    """The batches of a loader on the accelerator's device.

    It reads one batch ahead, so that ``accelerator.accumulate`` knows the last batch of an epoch. The state of each
    batch travels with it.
    """

    def __init__(self, accelerator: Accelerator, loader: Loader) -> None:
        self.gradient_state = GradientState()
        self._accelerator, self._loader = accelerator, loader
        self._received: Received | None = None
        self._is_over = False  # the epoch of the state that was loaded

    def __len__(self) -> int:
        """The number of batches that this process gets in an epoch, known without reading."""
        return self._loader.plan.length(self.epoch)

    def __bool__(self) -> bool:
        """True, even if the length is unknown."""
        return True

    @property
    def epoch(self) -> int:
        """The epoch of the last batch that the loop received; after its last batch was loaded, the next epoch."""
        return int(self.state_dict()["epoch"]) + self._is_over

    @property
    def is_padding(self) -> bool:
        """True if the last batch that the loop received is one that keeps processes even. It is in no state."""
        return self._received is not None and self._received.is_padding

    @property
    def dataset(self) -> Any:
        """Refused: ``skip_first_batches`` would use it to skip what ``load_state`` has passed already."""
        raise TypeError(
            "A loader of prepare_loader needs no skip_first_batches: load_state has moved it to after the last batch "
            "that was trained on. Leave out that call."
        )

    def set_epoch(self, epoch: int) -> None:
        """Start the next loop at the beginning of an epoch, or at the state of that epoch that was loaded."""
        self._received, self._is_over = None, False
        self._loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The state of this process after the last batch that the loop received."""
        return own_state(self._loader) if self._received is None else self._received.state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state of all processes. All of them call this."""
        self._loader.load_state_dict(state)
        self._received, self._is_over = None, epoch_is_over(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """A pass from the start point. If nothing is left of the epoch that was loaded, it is the next epoch."""
        if self._is_over:
            self.set_epoch(self.epoch)
        self.begin()
        try:
            batches: Iterator[Any] = chain(received(self._loader, one_epoch(self._loader)), [None])
            for batch, following in pairwise(batches):
                self.end_of_dataloader = following is None
                yield self._hand_over(batch)
            self._received = None  # the loop has asked for more than there is: the next epoch follows
        finally:
            self.end()

    def _hand_over(self, received: Received) -> Any:
        self._received = received
        return send_to_device(received.batch, self._accelerator.device, non_blocking=self._accelerator.non_blocking)
