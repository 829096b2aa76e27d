"""Checkpoints on disk, the midepoch states inside them, and what a state says by itself. No code of theirs is run."""

import io
import json
import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, get_args

from midepoch._common.checks import check_integer
from midepoch.checkpoint.fingerprint import data_difference, rows_of, stage_in_words
from midepoch.checkpoint.state import State, checked_state
from midepoch.cli.prepare import open_dataset
from midepoch.dataset import Dataset, file_rows, plan_of, with_order_step
from midepoch.dataset.read import read
from midepoch.delivery.passes import Pass
from midepoch.delivery.position import Position
from midepoch.errors import CheckpointMismatchError, needs
from midepoch.order.orders import Level, OrderStep, Shuffle, Slice
from midepoch.order.selection import Slices, TrainTestSplit
from midepoch.pipeline.adopt import adopt
from midepoch.stages.batch import Batch
from midepoch.storage.urls import check_plain

KEYS = {"version", "epoch", "lanes", "turn", "cursors", "fingerprint"}
"""The keys by which a state is known."""
MOST_LEVELS = 50
METADATA = ".metadata"
"""The file by which a folder of torch.distributed.checkpoint is known."""
ONE_TO_ONE = ("map", "select_columns", "decode", "read")
"""Stages that change no row's place."""
NOT_WRITTEN = ("digest", "widths", "names", "parts", "in_turn")
"""What a state says of a stage, and a user does not."""


class FoundState(NamedTuple):
    """A state inside a checkpoint."""

    values: dict[str, Any]
    state: State
    facts: dict[str, Any]
    """What the state says by itself, as plain values."""
    order: list[OrderStep | None]
    """The steps of the order among the stages that the state describes; None for any other stage."""


def find_states(checkpoint: str) -> list[FoundState]:
    """All midepoch states in a checkpoint, each once. Raises if there is none."""
    found = []
    for path, values in _states_in(_load(checkpoint), "", 0):
        where = path or "(the whole file)"
        try:
            checked = checked_state(values)
            state = State.from_dict(checked)
            order = [_order_step(step) for step in checked["fingerprint"]["pipeline"]]
            found.append(FoundState(checked, state, {"path": where, **_facts(state, checked)}, order))
        except CheckpointMismatchError as error:
            raise CheckpointMismatchError(f"{checkpoint}, at {where}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # of a fingerprint that was made by hand
            raise CheckpointMismatchError(
                f"{checkpoint}, at {where}: The state is damaged ({type(error).__name__}: {error}). Load an earlier "
                "checkpoint."
            ) from error
    if not found:
        raise CheckpointMismatchError(
            f"{checkpoint} has no midepoch state: no dict with the keys {', '.join(sorted(KEYS))}. Save "
            "loader.state_dict() in it."
        )
    return found


def only_state(checkpoint: str) -> FoundState:
    """The state of a checkpoint. Raises if it has several."""
    found = find_states(checkpoint)
    if any(one.values != found[0].values for one in found):
        names = ", ".join(one.facts["path"] for one in found)
        raise CheckpointMismatchError(
            f"{checkpoint} has {len(found)} different midepoch states, at {names}. If they are those of several "
            "ranks, merge them with midepoch.merge_states and save the result as JSON."
        )
    return found[0]


def _load(checkpoint: str) -> Any:
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
    if content.lstrip()[:1] not in (b"{", b"["):
        return _load_torch(content, str(path))
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointMismatchError(
            f"{path} begins like JSON and is not valid JSON ({error}). It was changed, or not written to its end: "
            "use an earlier checkpoint."
        ) from error


def _load_torch(content: bytes, name: str) -> Any:
    with needs("torch", "torch", "to open a file of torch.save"):
        import torch
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch says of bytes that others wrote is no answer
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # bytes that torch did not write make its reader fail in any way
        raise CheckpointMismatchError(
            f"{name} cannot be opened with weights_only=True ({type(error).__name__}): it is neither JSON nor a "
            "complete file of torch.save, or it holds objects that only code of the checkpoint can make. Save the "
            "state alone: torch.save(loader.state_dict(), ...), or as JSON."
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
    with needs("torch", "torch", "to open a folder of torch.distributed.checkpoint"):
        import torch.distributed.checkpoint.filesystem  # noqa: F401
    try:
        with open(folder / METADATA, "rb") as file:
            metadata = _Metadata(file).load()
        paths, places, kinds = metadata.planner_data or {}, metadata.storage_data, metadata.state_dict_metadata
    except OSError:
        raise
    except Exception as error:  # bytes that torch did not write make pickle fail in any way
        raise CheckpointMismatchError(
            f"{folder / METADATA} cannot be read: {error}. It is damaged, or none of torch.distributed.checkpoint: use "
            "an earlier checkpoint."
        ) from error
    content: dict[Any, Any] = {}
    for index, place in places.items():
        if type(kinds[index.fqn]).__name__ != "BytesStorageMetadata":
            continue
        with open(folder / place.relative_path, "rb") as file:
            file.seek(place.offset)
            value = _load_torch(file.read(place.length), f"{index.fqn} in {folder}")
        *outer, name = paths.get(index.fqn, (index.fqn,))
        reduce(lambda inside, key: inside.setdefault(key, {}), outer, content)[name] = value
    return _as_lists(content)


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


def _facts(state: State, values: Mapping[str, Any]) -> dict[str, Any]:
    """A state as plain facts."""
    fingerprint, progress = values["fingerprint"], state.reader_progress
    return {
        "version": values["version"],
        "epoch": state.epoch,
        "begun": state.lanes is not None,
        "lanes": state.lanes,
        "items": state.turn if progress is None else None,
        "item_rows": state.item_rows,
        "reader": None if progress is None else progress.reader,
        "readers": None if progress is None else progress.readers,
        "files": _files(fingerprint["data"]),
        "rows": rows_of(fingerprint["data"]),
        "pipeline": fingerprint["pipeline"],
        "in_words": pipeline_in_words(fingerprint["pipeline"], state.item_rows),
        "sessions": [dict(record._asdict()) for record in state.history],
    }


def _files(data: Mapping[str, Any]) -> int:
    return sum(map(_files, data["parts"])) if "parts" in data else check_integer("files", data.get("files", 0))


def _order_step(step: Mapping[str, Any]) -> OrderStep | None:
    """The step of the order that a state describes."""
    op, parameters = step["op"], {key: value for key, value in step.items() if key != "op"}
    if op == "shuffle":  # one of splits, which a StructuredDataset makes, is none of these levels
        return Shuffle(**{"window": 1, **parameters}) if step["level"] in get_args(Level) else None
    if op == "split":
        return Slices(intervals=tuple((start, stop) for start, stop in step["rows"]))
    if op == "take":
        return Slice(start=0, stop=check_integer("n", parameters["n"]))
    if op == "skip":
        return Slice(start=check_integer("n", parameters["n"]), stop=None)
    return TrainTestSplit(**parameters) if op == "train_test_split" else None


def pipeline_in_words(steps: Sequence[Mapping[str, Any]], item_rows: int = 1) -> list[str]:
    """The pipeline that a state describes: a line for each stage, after it those of the parts of a mixture.

    ``item_rows`` is the number of rows, or packs, of an item by its batches.
    """
    lines = []
    for step in steps:
        shown = {key: value for key, value in step.items() if key not in NOT_WRITTEN}
        lines.append(stage_in_words(shown))
        for name, part in zip(step.get("names", ()), step.get("parts", ()), strict=True):
            lines += [f"    {name}:", *(f"        {line}" for line in pipeline_in_words(part))]
    batches = item_rows // prod(step["n"] for step in steps if step["op"] == "batch")
    return [*lines, f"batch(n={batches})"] if batches > 1 else lines


def dataset_of_state(paths: Sequence[str], found: FoundState, *, pipeline: str | None = None) -> tuple[Dataset, State]:
    """The dataset of a state: built by the user's function, or, without one, as far as rows and order need it.

    Raises CheckpointMismatchError if the state is of other files, or of another pipeline.
    """
    state, fingerprint = found.state, found.values["fingerprint"]
    if pipeline is not None:
        dataset = open_dataset(paths, pipeline=pipeline)
        own = plan_of(dataset).pipeline
        state = adopt(own, state, fingerprint)
        return dataset if own.item_rows == state.item_rows else _with_batches(dataset, state), state
    if "parts" in fingerprint["data"]:
        raise CheckpointMismatchError("The state is of a mixture: pass --pipeline module:function, which builds it.")
    dataset = read(list(paths))
    view = file_rows(dataset, "midepoch").index.view
    if (difference := data_difference(fingerprint["data"], view.facts, view.fingerprint)) is not None:
        raise CheckpointMismatchError(difference)
    for step, order_step in zip(fingerprint["pipeline"], found.order, strict=True):
        if order_step is not None:
            dataset = with_order_step(dataset, step["op"], order_step)
        elif step["op"] not in ONE_TO_ONE or (step.get("batched") and not step.get("one_to_one")):
            raise ValueError(
                f"The state is of a pipeline with {step['op']}, which cannot be built from the state alone: pass "
                "--pipeline module:function."
            )
    return _with_batches(dataset, state), state


def _with_batches(dataset: Dataset, state: State) -> Dataset:
    if state.item_rows == 1 or any(isinstance(stage, Batch) for stage in plan_of(dataset).pipeline.stages):
        return dataset
    return dataset.batch(state.item_rows)


def run_of_state(dataset: Dataset, state: State, *, ranks: int | None = None) -> Pass:
    """A pass that would start from a state, on the ranks that it was saved with, or on others."""
    if ranks is None:
        ranks = state.history[-1].ranks if state.history else plan_of(dataset).ranks
    plan = replace(plan_of(dataset), ranks=ranks, rank=0, lanes=state.lanes or plan_of(dataset).lanes)
    return Position(state).latest(plan)
