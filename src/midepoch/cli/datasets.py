"""The dataset that a command is about: files, with the user's stages, or with the order that a state describes."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from midepoch.checkpoint.state import State
from midepoch.dataset import Dataset
from midepoch.delivery.passes import Pass
from midepoch.delivery.start_point import StartPoint
from midepoch.order.orders import OrderStep, Shuffle, Slice
from midepoch.order.split import TrainTestSplit
from midepoch.reading import read
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

    Only the first ``rows`` rows of the files are used, and only the order's rows from ``first`` on.
    """
    dataset = read(list(paths))
    if rows is not None:
        dataset = dataset.take(rows)
    if shuffle is not None:
        dataset = dataset.shuffle(seed=shuffle)
    if first:
        dataset = dataset.with_order_step("--at", Slice(start=first, stop=None))
    if pipeline is None:
        return dataset
    built = user_function(pipeline)(dataset)
    if not isinstance(built, Dataset):
        raise ValueError(
            f"{pipeline} returned {type(built).__name__}. It gets the dataset of the files and must return one with "
            "stages added, such as dataset.shuffle(seed=42).map(tokenize)."
        )
    return built


def user_function(name: str) -> Callable[[Dataset], Any]:
    """The function that "module:function" names. Modules are also looked for in the working directory."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"--pipeline is {name!r}; write it as module:function, such as train:pipeline.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--pipeline {name}: {error}. Start the command in the folder that has the module.") from error
    if not callable(found):
        raise ValueError(f"--pipeline {name} is no function.")
    return found  # type: ignore[no-any-return]


def dataset_of_state(
    paths: Sequence[str], values: Mapping[str, Any], state: State, *, pipeline: str | None = None
) -> Dataset:
    """The dataset of a state: built by the user's function, or, without one, as far as rows and order need it."""
    if pipeline is not None:
        dataset = open_dataset(paths, pipeline=pipeline)
        return dataset if dataset.plan.pipeline.item_rows == state.item_rows else _with_batches(dataset, state)
    dataset = read(list(paths))
    for step in values["fingerprint"]["pipeline"]:
        order_step = order_step_of(step)
        if order_step is not None:
            dataset = dataset.with_order_step(step["op"], order_step)
        elif step["op"] not in ONE_TO_ONE or (step.get("batched") and not step.get("one_to_one")):
            raise ValueError(
                f"The state is of a pipeline with {step['op']}, which cannot be built from the state alone: pass "
                "--pipeline module:function."
            )
    return _with_batches(dataset, state)


def _with_batches(dataset: Dataset, state: State) -> Dataset:
    if state.item_rows == 1 or any(isinstance(stage, Batch) for stage in dataset.plan.pipeline.stages):
        return dataset
    return dataset.batch(state.item_rows)


def order_step_of(step: Mapping[str, Any]) -> OrderStep | None:
    """The step of the order that a state describes; None if it is another stage."""
    op, parameters = step["op"], {key: value for key, value in step.items() if key != "op"}
    if op == "shuffle" and parameters["level"] in ("file", "block", "row"):
        return Shuffle(**{"window": 1, **parameters})
    if op == "take":
        return Slice(start=0, stop=parameters["n"])
    if op == "skip":
        return Slice(start=parameters["n"], stop=None)
    return TrainTestSplit(**parameters) if op == "train_test_split" else None


def run_of_state(dataset: Dataset, state: State, *, ranks: int | None = None) -> Pass:
    """A pass that would start from a state, on the ranks that it was saved with, or on others."""
    if ranks is None:
        ranks = state.history[-1].ranks if state.history else dataset.plan.ranks
    plan = replace(dataset.plan, ranks=ranks, rank=0, lanes=state.lanes or dataset.plan.lanes)
    return StartPoint(state).latest(plan)
