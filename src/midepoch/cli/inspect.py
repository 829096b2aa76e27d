"""``inspect``, ``diff``, ``trace`` and ``find``: what a checkpoint holds, and which rows come when."""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from itertools import count as count_from
from typing import Any

import numpy as np
import pyarrow as pa

from midepoch._common.checks import count
from midepoch.checkpoint.fingerprint import pipeline_difference
from midepoch.cli.checkpoints import FoundState, dataset_of_state, find_states, only_state, run_of_state
from midepoch.cli.main import Answer, table
from midepoch.cli.prepare import open_dataset
from midepoch.dataset import plan_of, position_of
from midepoch.delivery import trace as traces
from midepoch.delivery.passes import Pass
from midepoch.delivery.session import Session
from midepoch.errors import CheckpointMismatchError
from midepoch.stages.pack.padded import PaddedSpec


def inspect(arguments: Namespace) -> Answer:
    """Everything that is known of the states in a checkpoint."""
    described = [_with_data(found, arguments, arguments.n) for found in find_states(arguments.checkpoint)]
    lines = [line for facts in described for line in ("", *_in_words(facts))]
    return Answer(value=described, lines=lines[1:], good=all(facts.get("fits", True) for facts in described))


def _with_data(found: FoundState, arguments: Namespace, rows: int = 0) -> dict[str, Any]:
    """What is known of a state. With files: whether it fits them, what is done exactly, and the next ``rows`` rows."""
    if not arguments.data:
        if arguments.pipeline is not None:
            raise ValueError("--pipeline is for comparing the checkpoint with files: pass --data as well.")
        return found.facts
    try:
        dataset, state = dataset_of_state(arguments.data, found, pipeline=arguments.pipeline)
        if (reason := plan_of(dataset).why_not_counted()) is not None:
            raise ValueError(f"The next rows are known only by reading: {reason}.")
        session = run_of_state(dataset, state, ranks=1).progress().session
        if not isinstance(session, Session):
            raise ValueError("The next rows are known only by reading, until the next epoch.")
    except CheckpointMismatchError as error:
        return {**found.facts, "fits": False, "difference": str(error)}
    except ValueError as error:
        return {**found.facts, "fits": True, "next": None, "why_not_next": str(error)}
    return {**found.facts, **_counted(session, found.facts), "fits": True, "next": _next_rows(session, rows)}


def _counted(session: Session, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What is done, exactly: rows or packs. An epoch that never ends has no total."""
    if session.is_endless:
        return {}
    lanes, begin = session.lanes, session.pipeline.begin
    total = sum(lanes.units(lane, begin).total() for lane in range(len(session.positions)))
    left = sum(lanes.units(lane, position.cursor).total() for lane, position in enumerate(session.positions))
    ahead = sum(len(position.delivered_ahead) for position in session.positions) * session.start.item_rows
    ops = set(_ops(facts["pipeline"]))
    unit = "pack" if "pack" in ops else "batch" if PaddedSpec.op in ops else "row"
    return {"unit": unit, "done": min(total, total - left + ahead), "total": total}


def _units(unit: str, number: int) -> str:
    return count(unit, number, "batches" if unit == "batch" else None)


def _ops(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for step in steps:
        yield step["op"]
        yield from chain.from_iterable(map(_ops, step.get("parts", ())))


def _next_rows(session: Session, number: int) -> list[dict[str, Any]]:
    """The files and rows that come next in the epoch, over all ranks."""
    rows: list[dict[str, Any]] = []
    for step in count_from(0):
        item = session.item(0, step)
        if item is None or len(rows) >= number:
            break
        traced = session.lane_items(item[0]).trace(np.array([item[1]]))
        rows += [{"file": file, "row": row} for file, row in zip(traced.files, traced.rows.tolist(), strict=True)]
    return rows[:number]


def _in_words(facts: Mapping[str, Any]) -> list[str]:
    where = f"epoch {facts['epoch']}" + ("" if facts["begun"] else ", not begun")
    data = f"{count('row', facts['rows'])} in {count('file', facts['files'])}"
    lines = [f"{facts['path']}: state of version {facts['version']}, {where}, of {data}"]
    if facts["begun"] and facts["items"] is not None:
        lines.append(f"  done        {_done_in_words(facts)}")
    elif facts["items"] is None:
        reader, readers = facts["reader"], facts["readers"]
        whose = "the workers of one rank" if reader is None else f"reader {reader} of {readers}"
        lines.append(f"  part        what {whose} delivered; merge_states joins the states of all")
    lines += _under("pipeline", facts["in_words"])
    lines += _under("read by", [_session_in_words(record) for record in facts["sessions"]])
    if "fits" in facts:
        lines.append("  fits        these files" if facts["fits"] else f"  fits not    {facts['difference']}")
    if facts.get("next"):
        lines += ["  next rows", *(f"    {line}" for line in table(facts["next"]))]
    elif facts.get("why_not_next"):
        lines.append(f"  next rows   {facts['why_not_next']}")
    return lines


def _under(title: str, lines: Sequence[str]) -> list[str]:
    return [f"  {title if not number else '':<12}{line}" for number, line in enumerate(lines)]


def _done_in_words(facts: Mapping[str, Any]) -> str:
    """As in "120 of 450 rows (26.7 %)"; without files in items, such as batches."""
    if "done" not in facts:
        return f"{count('item', facts['items'])} of {count('row', facts['item_rows'])}; --data says of how many"
    share = f" ({100 * facts['done'] / facts['total']:.3g} %)" if facts["total"] else ""
    return f"{facts['done']:,} of {_units(facts['unit'], facts['total'])}{share}"


def _session_in_words(record: Mapping[str, Any]) -> str:
    items = f"batches of {record['item_rows']:,}" if record["item_rows"] > 1 else "single items"
    begin = "the beginning" if not record["turn"] else f"item {record['turn']:,}"
    return f"{count('rank', record['ranks'])}, {items}, from {begin} of epoch {record['epoch']} on"


def diff(arguments: Namespace) -> Answer:
    """What was delivered between two checkpoints, if they are of one run."""
    pair = only_state(arguments.first), only_state(arguments.second)
    first, second = (_with_data(found, arguments) for found in pair)
    difference = _fingerprints_differ(*pair) or first.get("difference") or second.get("difference")
    if difference is not None:
        return Answer(value={"same_run": False, "difference": difference}, lines=[difference], good=False)
    unit, between = first.get("unit", "item"), _between(first, second)
    if between is None:
        line = "how much lies between is unknown: --data counts rows, and a state of one rank is not enough"
    else:
        order = "were delivered between them" if between >= 0 else "lie between them: the second is the earlier one"
        line = f"{_units(unit, abs(between))} {order}"
    value = {"same_run": True, "unit": unit, "between": between, "first": first, "second": second}
    return Answer(value=value, lines=[*_in_words(first)[:2], *_in_words(second)[:2], line])


def _between(first: Mapping[str, Any], second: Mapping[str, Any]) -> int | None:
    """The rows, packs or items between two states; None if a state is partial, or the epoch's number is unknown."""
    epochs = second["epoch"] - first["epoch"]
    if "done" in first and "done" in second and (epochs in (0, 1) or first["unit"] == "row"):
        return int(epochs * first["total"] + second["done"] - first["done"])
    known = not epochs and first["item_rows"] == second["item_rows"] and None not in (first["items"], second["items"])
    return int(second["items"] - first["items"]) if known else None


def _fingerprints_differ(first: FoundState, second: FoundState) -> str | None:
    then, now = first.values["fingerprint"], second.values["fingerprint"]
    if then["data"] != now["data"]:
        return "The checkpoints are of different files."
    if then["pipeline"] == now["pipeline"]:
        return None
    return f"The checkpoints are of different pipelines: {pipeline_difference(then['pipeline'], now['pipeline'])}."


def trace(arguments: Namespace) -> Answer:
    """The rows of a step."""
    return _rows(traces.trace(_run(arguments), arguments.step, epoch=arguments.epoch, ranks=arguments.ranks))


def find(arguments: Namespace) -> Answer:
    """The steps of a row."""
    run = _run(arguments)
    return _rows(traces.find(run, arguments.file, arguments.row, epoch=arguments.epoch, ranks=arguments.ranks))


def _run(arguments: Namespace) -> Pass:
    """A pass that would start from the checkpoint, or from the beginning."""
    if arguments.checkpoint is not None:
        for name in ("batch_size", "lanes", "shuffle"):
            if getattr(arguments, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise ValueError(f"{option} is for a run without a checkpoint. The checkpoint knows it: leave it out.")
        found = only_state(arguments.checkpoint)
        return run_of_state(*dataset_of_state(arguments.data, found, pipeline=arguments.pipeline))
    dataset = open_dataset(arguments.data, pipeline=arguments.pipeline, shuffle=arguments.shuffle)
    if arguments.batch_size is not None:
        dataset = dataset.batch(arguments.batch_size)
    plan = plan_of(dataset)
    return position_of(dataset).latest(replace(plan, lanes=arguments.lanes or plan.lanes))


def _rows(found: pa.Table) -> Answer:
    rows: list[dict[str, Any]] = found.to_pylist()
    return Answer(value=rows, lines=table(rows) or ["no item of the epoch has this row"], good=bool(rows))
