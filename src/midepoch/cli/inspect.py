"""``inspect`` and ``diff``: what a checkpoint holds, and what was delivered between two of them."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from itertools import count as count_from
from typing import Any

import numpy as np

from midepoch._common.checks import count
from midepoch.checkpoint.fingerprint import pipeline_difference
from midepoch.cli.checkpoints import (
    FoundState,
    dataset_of_state,
    find_states,
    only_state,
    percent,
    pipeline_in_words,
    run_of_state,
)
from midepoch.cli.main import Answer, table
from midepoch.dataset import plan_of
from midepoch.delivery.session import Session
from midepoch.errors import CheckpointMismatchError


def inspect(arguments: Namespace) -> Answer:
    """Everything that is known of the states in a checkpoint."""
    _check_data(arguments)
    described, lines = [], []
    for found in find_states(arguments.checkpoint):
        facts = _with_data(found, arguments, arguments.n)
        described.append(facts)
        lines += [*_in_words(facts), ""]
    return Answer(value=described, lines=lines[:-1], good=all(facts.get("fits", True) for facts in described))


def _check_data(arguments: Namespace) -> None:
    if arguments.pipeline is not None and not arguments.data:
        raise ValueError("--pipeline is for comparing the checkpoint with files: pass --data as well.")


def _with_data(found: FoundState, arguments: Namespace, rows: int = 0) -> dict[str, Any]:
    """What is known of a state. With files: whether it fits them, what is done exactly, and the next ``rows`` rows."""
    if not arguments.data:
        return found.facts
    try:
        dataset, state = dataset_of_state(arguments.data, found, pipeline=arguments.pipeline)
    except CheckpointMismatchError as error:
        return {**found.facts, "fits": False, "difference": str(error)}
    except ValueError as error:
        return {**found.facts, "fits": True, "next": None, "why_not_next": str(error)}
    try:
        if (reason := plan_of(dataset).why_not_counted()) is not None:
            raise ValueError(f"The next rows are known only by reading: {reason}.")
        session = run_of_state(dataset, state, ranks=1).progress().session
        if not isinstance(session, Session):
            raise ValueError("The next rows are known only by reading, until the next epoch.")
    except (ValueError, CheckpointMismatchError) as error:
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
    done = min(total, total - left + ahead)
    unit = "pack" if facts["packs"] else "row"
    return {"unit": unit, "done": done, "total": total, "percent": percent(done, total)}


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
    lines = [f"{facts['path']}: state of version {facts['version']}, {where}, of {count('file', facts['files'])}"]
    if not facts["complete"]:
        whose = "the workers of one rank"
        if facts["reader"] is not None:
            whose = f"reader {facts['reader']} of {facts['readers']}"
        lines.append(f"  part        what {whose} delivered; merge_states joins the states of all")
    elif facts["begun"]:
        lines.append(f"  done        {_done_in_words(facts)}")
        lines += _under("parts", [f"{part['name']}: {_done_in_words(part)}" for part in facts["parts"]])
    lines += _under("pipeline", pipeline_in_words(facts["pipeline"], facts["item_rows"]))
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
    """As in "120 of 450 rows (26.7 %)"."""
    unit = facts.get("unit", "row")
    share = "" if facts["percent"] is None else f" ({facts['percent']:.3g} %)"
    hint = ", without those of a window under way; --data counts packs" if facts.get("packs") and unit == "row" else ""
    return f"{facts['done']:,} of {count(unit, facts['total'])}{share}{hint}"


def _session_in_words(record: Mapping[str, Any]) -> str:
    items = f"batches of {record['item_rows']:,}" if record["item_rows"] > 1 else "single items"
    begin = "the beginning" if not record["turn"] else f"item {record['turn']:,}"
    return f"{count('rank', record['ranks'])}, {items}, from {begin} of epoch {record['epoch']} on"


def diff(arguments: Namespace) -> Answer:
    """What was delivered between two checkpoints, if they are of one run."""
    _check_data(arguments)
    pair = only_state(arguments.first), only_state(arguments.second)
    facts = [_with_data(found, arguments) for found in pair]
    difference = _fingerprints_differ(*pair) or next((one["difference"] for one in facts if "difference" in one), None)
    if difference is not None:
        return Answer(value={"same_run": False, "difference": difference}, lines=[difference], good=False)
    first, second = facts
    between = _between(first, second)
    parts = []
    if between is not None and first["epoch"] == second["epoch"]:
        pairs = zip(first["parts"], second["parts"], strict=True)
        parts = [{"name": was["name"], "between": part["done"] - was["done"]} for was, part in pairs]
    value = {
        "same_run": True,
        "unit": first["unit"],
        "between": between,
        "parts": parts,
        **{name: [first[name], second[name]] for name in ("epoch", "done", "percent", "item_rows", "lanes")},
    }
    lines = [
        f"{name}: epoch {one['epoch']}, {_done_in_words(one) if one['complete'] else 'what one reader delivered'}"
        for name, one in zip(("first", "second"), facts, strict=True)
    ]
    if between is None:
        lines.append("how much lies between is unknown: states of one rank, or packs of more than one epoch")
    else:
        order = "were delivered between them" if between >= 0 else "lie between them: the second is the earlier one"
        lines.append(f"{count(first['unit'], abs(between))} {order}")
    return Answer(value=value, lines=[*lines, *(f"  {part['name']}: {part['between']:,}" for part in parts)])


def _between(first: Mapping[str, Any], second: Mapping[str, Any]) -> int | None:
    """The rows or packs between two states; None if a state is partial, or the number of an epoch is unknown."""
    epochs = second["epoch"] - first["epoch"]
    is_known = epochs in (0, 1) or (first["unit"] == "row" and not first["parts"])
    if first["done"] is None or second["done"] is None or not is_known:
        return None
    return int(epochs * first["total"] + second["done"] - first["done"])


def _fingerprints_differ(first: FoundState, second: FoundState) -> str | None:
    then, now = first.values["fingerprint"], second.values["fingerprint"]
    if then["data"] != now["data"]:
        return "The checkpoints are of different files."
    if then["pipeline"] == now["pipeline"]:
        return None
    return f"The checkpoints are of different pipelines: {pipeline_difference(then['pipeline'], now['pipeline'])}."
