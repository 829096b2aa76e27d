"""Checkpoints on disk, and the midepoch states inside them. No code of a checkpoint is run."""

import io
import json
import pickle
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from midepoch.checkpoint.state import State
from midepoch.checkpoint.versions import upgrade
from midepoch.errors import CheckpointMismatchError, MissingExtraError
from midepoch.storage.urls import check_plain

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
    content = load(checkpoint)
    found = []
    for path, values in _states_in(content, "", 0):
        where = path or "(the whole file)"
        try:
            upgraded = upgrade(values)
            _check_fingerprint(upgraded["fingerprint"])
            found.append(FoundState(where, upgraded, State.from_dict(upgraded)))
        except CheckpointMismatchError as error:
            raise CheckpointMismatchError(f"{checkpoint}, at {where}: {error}") from error
    if not found:
        raise CheckpointMismatchError(
            f"{checkpoint} has no midepoch state: no dict with the keys {', '.join(sorted(KEYS))}. Save "
            "loader.state_dict() in it."
        )
    return found


def _check_fingerprint(fingerprint: Any) -> None:
    """Raise if no run can have written a fingerprint. Old states have no checksum that would tell."""
    steps = fingerprint.get("pipeline") if isinstance(fingerprint, Mapping) else None
    are_steps = isinstance(steps, list) and all(isinstance(step, Mapping) and "op" in step for step in steps)
    if not are_steps or not _is_data(fingerprint.get("data")):
        raise CheckpointMismatchError(
            "The state is damaged: its fingerprint is incomplete. Load an earlier checkpoint."
        )


def _is_data(data: Any) -> bool:
    if isinstance(data, Mapping) and isinstance(data.get("parts"), list):
        return all(map(_is_data, data["parts"]))
    return isinstance(data, Mapping) and all(type(data.get(name, 0)) is int for name in ("files", "rows"))


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


def load(checkpoint: str) -> Any:
    """What a checkpoint holds: a JSON file, a file of torch.save, or a folder of torch.distributed.checkpoint."""
    if "://" in checkpoint:
        check_plain(checkpoint)
        raise ValueError(f"{checkpoint} is a URL, and checkpoints are read from local files. Download it first.")
    path = Path(checkpoint)
    if path.is_dir():
        if not (path / METADATA).exists():
            raise CheckpointMismatchError(
                f"{path} is a folder without {METADATA}, so it is none of torch.distributed.checkpoint. Name a file."
            )
        return _load_distributed(path)
    content = path.read_bytes()
    if not content.strip():
        raise CheckpointMismatchError(f"{path} is empty: it was never written to its end. Use an earlier checkpoint.")
    if content.lstrip()[:1] in (b"{", b"["):
        return _load_json(content, path)
    return _load_torch(content, str(path))


def _load_json(content: bytes, path: Path) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg}, line {error.lineno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise CheckpointMismatchError(
            f"{path} begins like JSON and is not valid JSON ({reason}). It was changed, or not written to its end: "
            "use an earlier checkpoint."
        ) from error


def _load_torch(content: bytes, name: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch", "to open a file of torch.save") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch says of bytes that others wrote is no answer
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # bytes that torch did not write make its reader fail in any way
        raise CheckpointMismatchError(
            f"{name} cannot be opened with weights_only=True ({_reason(content, error)}). Save the state alone: "
            "torch.save(loader.state_dict(), ...), or as JSON."
        ) from error


def _reason(content: bytes, error: Exception) -> str:
    """Why torch could not read bytes, in few words."""
    if content[:2] != b"PK" and content[:1] != b"\x80":
        return "it is neither JSON nor a file of torch.save"
    if isinstance(error, pickle.UnpicklingError):
        return "it is damaged, or holds objects that only code of the checkpoint can make"
    return "it is damaged, or was not written to its end"


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
    paths, stored_values, kinds = _metadata_of(folder)
    content: dict[Any, Any] = {}
    for index, stored in stored_values.items():
        if type(kinds[index.fqn]).__name__ != "BytesStorageMetadata":
            continue
        with open(folder / stored.relative_path, "rb") as file:
            file.seek(stored.offset)
            value = _load_torch(file.read(stored.length), f"{index.fqn} in {folder}")
        _put(content, paths.get(index.fqn, (index.fqn,)), value)
    return _as_lists(content)


def _metadata_of(folder: Path) -> tuple[dict[str, Any], dict[Any, Any], dict[str, Any]]:
    """The key path, the place and the kind of each value of a distributed checkpoint."""
    try:
        with open(folder / METADATA, "rb") as file:
            metadata = _Metadata(file).load()
        return metadata.planner_data or {}, metadata.storage_data, metadata.state_dict_metadata
    except OSError:
        raise
    except Exception as error:  # bytes that torch did not write make pickle fail in any way
        raise CheckpointMismatchError(
            f"{folder / METADATA} cannot be read: {error}. It is damaged, or none of torch.distributed.checkpoint: use "
            "an earlier checkpoint."
        ) from error


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
