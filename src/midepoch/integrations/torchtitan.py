"""torchtitan: a Loader as its data loader, with a state that fits any data-parallel degree.

config.dataloader = LoaderDataLoader.Config(make_loader=make_loader)
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from midepoch.distributed import Complete, all_epochs
from midepoch.errors import needs
from midepoch.loader import Loader

with needs("torchtitan", "torchtitan", "midepoch.integrations.torchtitan"):
    if find_spec("torchtitan.components.data"):  # after torchtitan 0.3
        from torchtitan.components.data.loader import BaseDataLoader
    else:
        from torchtitan.components.dataloader import BaseDataLoader


class LoaderDataLoader(BaseDataLoader):  # type: ignore[misc]
    """The batches of a Loader, epoch after epoch.

    torchtitan makes it of ``config``, a :class:`Config`, and of ``given``, what it gives its data loaders:
    dp_world_size, dp_rank, tokenizer, and the size of a batch (``seq_len`` and ``local_batch_size`` in torchtitan 0.3,
    ``max_context_length`` and ``num_tokens_per_batch`` after it). The function ``make_loader`` of the config gets
    these, by name, and returns a Loader whose ``collate_fn`` makes ``(inputs, labels)``, for example of
    ``dataset.shard(dp_world_size=dp_world_size, dp_rank=dp_rank).lanes(64)``.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """What torchtitan builds the data loader from. After ``epochs`` epochs training ends, on all ranks at once."""

        make_loader: Callable[..., Loader]
        epochs: int | None = None

    def __init__(self, config: Config, **given: Any) -> None:
        self.loader = config.make_loader(**given)
        self._epochs = config.epochs
        self._state = Complete(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Batches, without an end unless the config has ``epochs``: torchtitan counts steps."""
        return all_epochs(self.loader, self._epochs)

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks as one value, the same on all of them."""
        return self._state.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the position of ``state_dict``; with an empty one, which torchtitan may pass, nowhere."""
        if state_dict:
            self._state.load_state_dict(state_dict)

    def close(self) -> None:
        """Stop the workers."""
        self.loader.close()
