"""Complete states of all ranks, gathered by torch.distributed. Nothing else in midepoch waits for other ranks."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from midepoch.checkpoint.merge import merge_states
from midepoch.checkpoint.state import State
from midepoch.dataset import Dataset
from midepoch.delivery.reader import take_turns
from midepoch.errors import CheckpointMismatchError, needs
from midepoch.loader import Loader

with needs("torch", "torch", "midepoch.distributed"):
    import torch.distributed

AnyDataset = TypeVar("AnyDataset", bound=Dataset)
Stateful = Loader[Any] | Dataset[Any]


def gather_state(loader: Stateful | Mapping[str, Any]) -> dict[str, Any]:
    """One complete state from the loaders, or from the states, of all ranks. Any number of ranks can resume from it.

        state = midepoch.distributed.gather_state(loader)  # on every rank; then one of them saves it

    ``loader`` is the Loader or the dataset of this rank, or its state. All ranks must call this at the same step: it
    communicates. Without an initialised process group it returns the loader's own state. The state of a uniform
    pipeline is complete on every rank; this checks that the ranks agree.
    """
    state = dict(loader) if isinstance(loader, Mapping) else own_state(loader)
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return state
    states: list[dict[str, Any]] = [{} for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather_object(states, state)
    return merge_states(states)


def own_state(loader: Stateful) -> dict[str, Any]:
    """The state of this rank alone, without the warning that it is one of several: for adapters of frameworks.

    ``loader`` is the Loader or the dataset of this rank.
    """
    return loader._own_state() if isinstance(loader, Loader) else loader.state_dict()


def split_dataset_by_node(dataset: AnyDataset, rank: int, world_size: int) -> AnyDataset:
    """The shard of a rank, under the name that `datasets` has for it: ``dataset.shard(world_size, rank)``.

        from midepoch.distributed import split_dataset_by_node

        dataset = split_dataset_by_node(dataset, rank=0, world_size=8)

    ``dataset`` is a midepoch dataset, ``rank`` counts from 0, and ``world_size`` is the number of ranks. Shards are
    disjoint and together complete, for any number of files. Nothing is communicated.
    """
    if not isinstance(dataset, Dataset):
        raise TypeError(f"split_dataset_by_node takes a midepoch dataset, got {type(dataset).__name__}.")
    return dataset.shard(num_shards=world_size, index=rank)


def in_step(loader: Loader) -> Iterator[Any]:
    """The batches of a loader, as many on every rank: for pipelines that filter, pack or mix.

        for batch in in_step(loader):
            loss = model(batch) * (0 if loader.is_padding else 1)

    ``loader`` is the Loader of this rank. Ranks run out of batches at different steps. Those that have none left repeat
    the first batch of the epoch, marked by ``loader.is_padding``, until all ranks have delivered all of their own. All
    ranks must iterate at the same time: each step communicates one number. Without a process group these are just the
    batches.
    """
    batches, epoch = iter(loader), loader.epoch
    padding: Any = None
    try:
        while True:
            batch = next(batches, _NONE_LEFT)
            if not _any_rank(batch is not _NONE_LEFT):
                return
            if batch is _NONE_LEFT:
                loader.position.waits_for_ranks = True
                if padding is None:
                    padding = repeated_batch(loader, epoch)
                batch = padding
            yield batch
    finally:
        loader.position.waits_for_ranks = False


def repeated_batch(loader: Loader, epoch: int) -> Any:
    """The batch that ranks without one repeat, to stay in step: the first of an epoch. It is in no state."""
    return loader._padding_batch(loader.plan.begin(State(epoch=epoch)).session)


def all_epochs(loader: Loader, epochs: int | None = None) -> Iterator[Any]:
    """The batches of epoch after epoch, as many on every rank: for trainers that count steps.

        for step, batch in zip(range(10_000), midepoch.distributed.all_epochs(loader)):
            pass

    ``loader`` is the Loader of this rank. The batches end before epoch ``epochs``, the first being 0; without it, only
    if an epoch has none at all.
    """
    passes_without_batches = 0
    while passes_without_batches < 2 and (epochs is None or loader.epoch < epochs):  # one may be the end of an epoch
        passes_without_batches += 1
        for batch in one_epoch(loader):
            passes_without_batches = 0
            yield batch


def one_epoch(loader: Loader) -> Iterator[Any]:
    """The batches of a pass, as many on every rank.

        for batch in midepoch.distributed.one_epoch(loader):
            pass

    ``loader`` is the Loader of this rank. The batches come from :func:`in_step` if their number is not known.
    """
    return iter(loader) if loader.plan.counted or loader.plan.ranks == 1 else in_step(loader)


class Received(NamedTuple):
    """A batch, whether it only keeps ranks even, and the state of this rank after it."""

    batch: Any
    is_padding: bool
    state: dict[str, Any]


def received(loader: Loader, batches: Iterable[Any]) -> Iterator[Received]:
    """Batches of a loader, each with the state after it: for frameworks that read ahead of the training step."""
    for batch in batches:
        yield Received(batch, loader.is_padding, own_state(loader))


def read_state(path: Path, remedy: str) -> Any:
    """What an adapter wrote into a checkpoint, as JSON. If it cannot be read, this raises with a ``remedy``."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointMismatchError(f"{path} cannot be read ({error}). {remedy}") from error


def epoch_is_over(loader: Loader) -> bool:
    """True if the loader is in the middle of an epoch, and no rank has a batch left of it.

        if midepoch.distributed.epoch_is_over(loader):
            loader.set_epoch(loader.epoch + 1)

    ``loader`` is the Loader of this rank. A state of the last batch of an epoch restores the end of that epoch, so the
    next pass yields nothing. This is for adapters of frameworks that must not see such a pass. All ranks must call this
    at the same step: it communicates one number. If the number of batches is not known, each rank reads its next one.
    """
    state, left = loader.position.latest(loader.plan).state(), loader.batches_left
    if state.lanes is None:
        left = 1  # the epoch has not begun
    elif left is None:
        turns = take_turns(loader.plan.begin(state))
        left = any(len(one.items) for one in turns)
    return not _any_rank(bool(left))


def _any_rank(value: bool) -> bool:
    """True if the value is true on any rank."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return value
    device = torch.accelerator.current_accelerator() if torch.distributed.get_backend() == "nccl" else "cpu"
    flag = torch.tensor(int(value), device=device)
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
    return bool(flag)


_NONE_LEFT = object()


class Complete:
    """A loader for torch.distributed.checkpoint.

        dcp.save({"model": model_state, "loader": Complete(loader)}, checkpoint_id=folder)
        dcp.load({"model": model_state, "loader": Complete(loader)}, checkpoint_id=folder)

    ``loader`` is the Loader or the dataset of this rank. The state is complete on every rank, and one value.
    """

    def __init__(self, loader: Stateful) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks, as JSON. All ranks must call this at the same step."""
        return {"midepoch": json.dumps(gather_state(self._loader))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the position of ``state_dict``, which is what :meth:`state_dict` returned."""
        try:
            values = json.loads(state_dict["midepoch"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            reason = f"it is not what state_dict() returned ({type(error).__name__}: {error})"
            raise CheckpointMismatchError.damaged(reason) from error
        self._loader.load_state_dict(values)
