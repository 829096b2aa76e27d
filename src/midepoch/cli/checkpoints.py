"""Checkpoints on disk, and the midepoch states inside them. No code of a checkpoint is run."""

import io
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from midepoch.checkpoint.migrations import upgrade
from midepoch.checkpoint.state import State
from midepoch.errors import CheckpointMismatchError, MissingExtraError

KEYS = {"version", "epoch", "lanes", "turn", "cursors", "fingerprint"}
"""The keys by which a state is known."""
MOST_LEVELS = 50
METADATA = ".metadata"
"""The file by which a folder of torch.distributed.checkpoint is known."""


class FoundState(NamedTuple):
    """A state inside a checkpoint."""

    path: str
    """Where it is in the checkpoint: the keys that lead to it, with dots."""
    values: dict[str, Any]
    """The state, upgraded to the present version."""
    state: State


def find_states(checkpoint: str) -> list[FoundState]:
    """All midepoch states in a checkpoint, each once. Raises if there is none."""
    content = load(Path(checkpoint))
    found = []
    for path, values in _states_in(content, "", 0):
        upgraded = upgrade(values)
        found.append(FoundState(path or "(the whole file)", upgraded, State.from_dict(upgraded)))
    if not found:
        raise CheckpointMismatchError(
            f"{checkpoint} has no midepoch state: no dict with the keys {', '.join(sorted(KEYS))}. Save "
            "loader.state_dict() in it."
        )
    return found


def only_state(checkpoint: str) -> FoundState:
    """The state of a checkpoint. Raises if it has several."""
    found = find_states(checkpoint)
    if len({json.dumps(one.values, sort_keys=True, default=str) for one in found}) > 1:
        names = ", ".join(one.path for one in found)
        raise CheckpointMismatchError(
            f"{checkpoint} has {len(found)} different midepoch states, at {names}. If they are those of several "
            "ranks, merge them with midepoch.merge_states and save the result as JSON."
        )
    return found[0]


def load(path: Path) -> Any:
    """What a checkpoint holds: a JSON file, a file of torch.save, or a folder of torch.distributed.checkpoint."""
    if path.is_dir():
        if not (path / METADATA).exists():
            raise CheckpointMismatchError(
                f"{path} is a folder without {METADATA}, so it is none of torch.distributed.checkpoint. Name a file."
            )
        return _load_distributed(path)
    content = path.read_bytes()
    if content.lstrip()[:1] in (b"{", b"["):
        return json.loads(content)
    return _load_torch(content, str(path))


def _load_torch(content: bytes, name: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch", "to open a file of torch.save") from error
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # bytes that torch did not write make its reader fail in any way
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointMismatchError(
            f"{name} cannot be opened with weights_only=True ({reason}). Save the state "
            "alone: torch.save(loader.state_dict(), ...), or as JSON."
        ) from error


class _Metadata(pickle.Unpickler):
    """Reads the metadata of torch.distributed.checkpoint, and refuses everything else."""

    ALLOWED = ("torch.distributed.checkpoint.", "torch.distributed.tensor.")
    NAMES = (
        ("torch.serialization", "_get_layout"),
        ("torch", "Size"),
        ("torch", "device"),
        ("collections", "OrderedDict"),
    )

    def find_class(self, module: str, name: str) -> Any:
        import torch

        allowed = module.startswith(self.ALLOWED) or (module, name) in self.NAMES or module.startswith("pathlib")
        if not allowed and not (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no metadata needs")
        return super().find_class(module, name)


def _load_distributed(folder: Path) -> Any:
    """The values that are not tensors, which are stored as bytes of torch.save."""
    try:
        import torch.distributed.checkpoint.filesystem  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("torch", "torch", "to open a folder of torch.distributed.checkpoint") from error
    try:
        with open(folder / METADATA, "rb") as file:
            metadata = _Metadata(file).load()
    except (pickle.UnpicklingError, EOFError, AttributeError) as error:
        raise CheckpointMismatchError(f"{folder / METADATA} cannot be read: {error}.") from error
    paths = metadata.planner_data or {}
    content: dict[Any, Any] = {}
    for index, stored in metadata.storage_data.items():
        if type(metadata.state_dict_metadata[index.fqn]).__name__ != "BytesStorageMetadata":
            continue
        with open(folder / stored.relative_path, "rb") as file:
            file.seek(stored.offset)
            value = _load_torch(file.read(stored.length), f"{index.fqn} in {folder}")
        _put(content, paths.get(index.fqn, (index.fqn,)), value)
    return _as_lists(content)


def _put(content: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    *folders, name = path
    for key in folders:
        content = content.setdefault(key, {})
    content[name] = value


def _as_lists(value: Any) -> Any:
    """Dicts whose keys are 0, 1, 2 … as lists, which torch.distributed.checkpoint takes apart."""
    if not isinstance(value, dict):
        return value
    inner = {key: _as_lists(one) for key, one in value.items()}
    if inner and set(inner) == set(range(len(inner))):
        return [inner[number] for number in range(len(inner))]
    return inner


def _states_in(value: Any, path: str, level: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if level > MOST_LEVELS:
        return
    if isinstance(value, Mapping) and set(value) >= KEYS:
        yield path, value
    elif isinstance(value, Mapping | list | tuple):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in pairs:
            yield from _states_in(inner, f"{path}.{key}" if path else str(key), level + 1)
