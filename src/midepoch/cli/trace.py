"""``trace`` and ``find``: which rows came at a step, and when a row comes."""

from argparse import Namespace
from dataclasses import replace
from typing import Any

import pyarrow as pa

from midepoch.cli.checkpoints import dataset_of_state, only_state, run_of_state
from midepoch.cli.main import Answer, table
from midepoch.cli.prepare import open_dataset
from midepoch.dataset import plan_of, position_of
from midepoch.delivery.passes import Pass
from midepoch.delivery.trace import find as find_row
from midepoch.delivery.trace import trace as trace_step


def trace(arguments: Namespace) -> Answer:
    """The rows of a step."""
    run = _run(arguments)
    return _answer(trace_step(run, arguments.step, epoch=arguments.epoch, ranks=arguments.ranks))


def find(arguments: Namespace) -> Answer:
    """The steps of a row."""
    run = _run(arguments)
    found = find_row(run, arguments.file, arguments.row, epoch=arguments.epoch, ranks=arguments.ranks)
    return _answer(found, otherwise="no item of the epoch has this row")


def _run(arguments: Namespace) -> Pass:
    """A pass that would start from the checkpoint, or from the beginning."""
    if arguments.checkpoint is not None:
        given = [name for name in ("batch_size", "lanes", "shuffle") if getattr(arguments, name) is not None]
        if given:
            option = f"--{given[0].replace('_', '-')}"
            raise ValueError(f"{option} is for a run without a checkpoint. The checkpoint knows it: leave it out.")
        found = only_state(arguments.checkpoint)
        dataset, state = dataset_of_state(arguments.data, found, pipeline=arguments.pipeline)
        return run_of_state(dataset, state)
    dataset = open_dataset(arguments.data, pipeline=arguments.pipeline, shuffle=arguments.shuffle)
    if arguments.batch_size is not None:
        dataset = dataset.batch(arguments.batch_size)
    plan = replace(plan_of(dataset), lanes=arguments.lanes or plan_of(dataset).lanes)
    return position_of(dataset).latest(plan)


def _answer(found: pa.Table, otherwise: str = "") -> Answer:
    rows: list[dict[str, Any]] = found.to_pylist()
    return Answer(value=rows, lines=table(rows) or [otherwise], good=bool(rows))
