"""The dataset that a command is about: files, with the user's stages, or with the order that a state describes."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from midepoch._common.checks import check_integer
from midepoch.checkpoint.fingerprint import data_difference
from midepoch.checkpoint.state import State
from midepoch.cli.checkpoints import FoundState
from midepoch.dataset import Dataset
from midepoch.dataset.reading import read
from midepoch.delivery.passes import Pass
from midepoch.delivery.position import StartPoint
from midepoch.errors import CheckpointMismatchError
from midepoch.order.orders import OrderStep, Shuffle, Slice
from midepoch.order.split import TrainTestSplit
from midepoch.pipeline.adopt import adopt
from midepoch.stages.batch import Batch

ONE_TO_ONE = ("map", "select_columns", "decode", "read")
"""Stages that change no row's place."""


def open_dataset(
    paths: Sequence[str],
    *,
    pipeline: str | None = None,
    shuffle: int | None = None,
    rows: int | None = None,
    first: int = 0,
) -> Dataset:
    """Files, shuffled by a seed, with the stages that the user's function adds.

    Only the first ``rows`` rows of the files are used, and only the rows of the final order from ``first`` on.
    """
    dataset = read(list(paths))
    if rows is not None:
        dataset = dataset.take(rows)
    if shuffle is not None:
        dataset = dataset.shuffle(seed=shuffle)
    if pipeline is not None:
        dataset = _built_by(pipeline, dataset)
    return dataset.with_order_step("--at", Slice(start=first, stop=None)) if first else dataset


def _built_by(pipeline: str, dataset: Dataset) -> Dataset:
    """The dataset with the stages that the user's function adds."""
    function = user_function(pipeline)
    try:
        built = function(dataset)
    except Exception as error:
        error.add_note(f"in {pipeline}, which gets the dataset of the files")
        raise
    if not isinstance(built, Dataset):
        raise ValueError(
            f"{pipeline} returned {type(built).__name__}. It gets the dataset of the files and must return one with "
            "stages added, such as dataset.shuffle(seed=42).map(tokenize)."
        )
    return built


def user_function(name: str) -> Callable[[Dataset], Any]:
    """The function that "module:function" names. Modules are also looked for in the working directory."""
    module, _, function = name.partition(":")
    if not module or not function or module.startswith("."):
        raise ValueError(f"--pipeline is {name!r}; write it as module:function, such as train:pipeline.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        imported = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ValueError(f"--pipeline {name}: {module} imports {error.name}, which is not installed.") from error
        raise ValueError(f"--pipeline {name}: {error}. Start the command in the folder that has the module.") from error
    except Exception as error:
        error.add_note(f"while {module} was imported for --pipeline {name}")
        raise
    found = getattr(imported, function, None)
    if not callable(found):
        wrong = f"{module} has no {function}" if found is None else f"{function} is no function"
        raise ValueError(f"--pipeline {name}: {wrong}. Name a function of {imported.__file__ or module}.")
    return found  # type: ignore[no-any-return]


def dataset_of_state(
    paths: Sequence[str], values: Mapping[str, Any], state: State, *, pipeline: str | None = None
) -> Dataset:
    """The dataset of a state: built by the user's function, or, without one, as far as rows and order need it."""
    if pipeline is not None:
        dataset = open_dataset(paths, pipeline=pipeline)
        return dataset if dataset.plan.pipeline.item_rows == state.item_rows else _with_batches(dataset, state)
    dataset = read(list(paths))
    steps = values["fingerprint"]["pipeline"]
    functions = [step["op"] for step in steps if step["op"] in ("map", "decode")]
    for step in steps:
        order_step = order_step_of(step)
        if order_step is not None:
            dataset = dataset.with_order_step(step["op"], order_step)
        elif step["op"] == "pack" and not functions:
            dataset = dataset.pack(**{name: value for name, value in step.items() if name != "op"})
            if dataset.plan.why_not_counted() is not None and not any("://" in path for path in paths):
                dataset = dataset.survey()  # of the lengths of one column
        elif step["op"] not in ONE_TO_ONE or (step.get("batched") and not step.get("one_to_one")):
            raise ValueError(
                f"The state is of a pipeline with {step['op']}, which cannot be built from the state alone: pass "
                "--pipeline module:function."
            )
    return _with_batches(dataset, state)


def file_difference(paths: Sequence[str], values: Mapping[str, Any]) -> str | None:
    """What differs between files and those of a state; None if they are the same."""
    data = values["fingerprint"]["data"]
    if "parts" in data:
        raise CheckpointMismatchError("The state is of a mixture: pass --pipeline module:function, which builds it.")
    view = read(list(paths)).file_rows("midepoch").index.view
    return data_difference(data, view.facts, view.fingerprint)


def run_of_checkpoint(paths: Sequence[str], found: FoundState, *, pipeline: str | None = None) -> Pass:
    """A pass that would start from a state. Raises if the state is of other files, or of another pipeline."""
    dataset = dataset_of_state(paths, found.values, found.state, pipeline=pipeline)
    state = found.state
    if pipeline is not None:
        state = adopt(dataset.plan.pipeline, state, found.values["fingerprint"])
    elif (difference := file_difference(paths, found.values)) is not None:
        raise CheckpointMismatchError(difference)
    return run_of_state(dataset, state)


def _with_batches(dataset: Dataset, state: State) -> Dataset:
    if state.item_rows == 1 or any(isinstance(stage, Batch) for stage in dataset.plan.pipeline.stages):
        return dataset
    return dataset.batch(state.item_rows)


def order_step_of(step: Mapping[str, Any]) -> OrderStep | None:
    """The step of the order that a state describes; None if it is another stage."""
    try:
        return _order_step(step["op"], {key: value for key, value in step.items() if key != "op"})
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointMismatchError(
            f"The state is damaged: what it says of {step['op']} makes no sense ({error}). Load an earlier checkpoint."
        ) from error


def _order_step(op: str, parameters: dict[str, Any]) -> OrderStep | None:
    if op == "shuffle" and parameters["level"] in ("file", "block", "row"):
        return Shuffle(**{"window": 1, **parameters})
    if op == "take":
        return Slice(start=0, stop=check_integer("n", parameters["n"]))
    if op == "skip":
        return Slice(start=check_integer("n", parameters["n"]), stop=None)
    return TrainTestSplit(**parameters) if op == "train_test_split" else None


def run_of_state(dataset: Dataset, state: State, *, ranks: int | None = None) -> Pass:
    """A pass that would start from a state, on the ranks that it was saved with, or on others."""
    if ranks is None:
        ranks = state.history[-1].ranks if state.history else dataset.plan.ranks
    plan = replace(dataset.plan, ranks=ranks, rank=0, lanes=state.lanes or dataset.plan.lanes)
    return StartPoint(state).latest(plan)
