"""``inspect`` and ``diff``: what a checkpoint holds, and what was delivered between two of them."""

from argparse import Namespace
from collections.abc import Mapping
from itertools import count as count_from
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from midepoch._common.text import count
from midepoch.checkpoint.fingerprint import pipeline_difference, rows_of
from midepoch.checkpoint.lanes import lane_cuts
from midepoch.checkpoint.state import State
from midepoch.cli.checkpoints import FoundState, find_states, only_state
from midepoch.cli.datasets import dataset_of_state, file_difference, open_dataset, order_step_of, run_of_state
from midepoch.cli.drawing import draw_state
from midepoch.cli.output import Answer, table
from midepoch.delivery.steps import steps_of
from midepoch.errors import CheckpointMismatchError

PICTURES = (".png", ".svg", ".pdf")


def inspect(arguments: Namespace) -> Answer:
    """Everything that is known of the states in a checkpoint."""
    if arguments.pipeline is not None and not arguments.data:
        raise ValueError("--pipeline is for comparing the checkpoint with files: pass --data as well.")
    described, lines, good = [], [], True
    for found in find_states(arguments.checkpoint):
        facts = describe_state(found)
        if arguments.data:
            facts |= _against_files(found, arguments)
            good = good and facts["fits"]
        described.append(facts)
        lines += [*_in_words(facts), ""]
    if arguments.png is not None:
        _draw(arguments, fits=good)
        lines += [f"drawn in {arguments.png}", ""]
    return Answer(value=described, lines=lines[:-1], good=good)


def _draw(arguments: Namespace, *, fits: bool) -> None:
    """Draw the state of the checkpoint, with the files if it fits them."""
    if Path(arguments.png).suffix.lower() not in PICTURES:
        raise ValueError(f"--png {arguments.png}: the name must end in {', '.join(PICTURES)}.")
    found = only_state(arguments.checkpoint)
    dataset = None
    if arguments.data and fits:
        dataset = dataset_of_state(arguments.data, found.values, found.state, pipeline=arguments.pipeline)
    draw_state(Path(arguments.png), found.state, rows_of_epoch(found.values["fingerprint"]), dataset)


def describe_state(found: FoundState) -> dict[str, Any]:
    """A state as plain facts."""
    state, fingerprint = found.state, found.values["fingerprint"]
    rows = rows_of_epoch(fingerprint)
    delivered = delivered_rows(state, rows)
    facts: dict[str, Any] = {
        "path": found.path,
        "version": found.values["version"],
        "epoch": state.epoch,
        "begun": state.lanes is not None,
        "lanes": state.lanes,
        "item_rows": state.item_rows,
        "complete": state.reader_progress is None,
        "files": _files_of(fingerprint["data"]),
        "rows": rows,
        "delivered": delivered,
        "percent": None if delivered is None or not rows else round(100 * delivered / rows, 3),
        "pipeline": fingerprint["pipeline"],
        "sessions": [dict(record._asdict()) for record in state.history],
    }
    if state.reader_progress is not None and state.reader_progress.reader is not None:
        facts |= {"reader": state.reader_progress.reader, "readers": state.reader_progress.readers}
    return facts


def delivered_rows(state: State, rows: int) -> int | None:
    """The rows of the epoch that are consumed; None if cursors do not count rows, as in mixtures, or are partial.

    After a short last batch the cursor of a lane is past its end.
    """
    if state.lanes is None:
        return 0
    cursors = [position.cursor for _, position in state.positions.runs]
    if state.reader_progress is not None or any(len(cursor) > 2 for cursor in cursors):
        return None
    if state.mode == "file":
        return min(rows, sum(lanes * position.cursor[0] for lanes, position in state.positions.runs))
    sizes = np.diff(lane_cuts(rows, state.lanes))
    return int(np.minimum(sizes, [position.cursor[0] for position in state.positions.expand()]).sum())


def rows_of_epoch(fingerprint: Mapping[str, Any]) -> int:
    """The rows of an epoch, after all that the order leaves out."""
    rows = rows_of(fingerprint["data"])
    for described in fingerprint["pipeline"]:
        step = order_step_of(described)
        if step is not None:
            rows = step.size(rows)
        elif described["op"] in ("select", "survey"):
            rows = described["rows"]
    return rows


def _files_of(data: Mapping[str, Any]) -> int:
    parts = data.get("parts")
    return sum(map(_files_of, parts)) if parts is not None else int(data.get("files", 0))


def _against_files(found: FoundState, arguments: Namespace) -> dict[str, Any]:
    """Whether a state fits files, or a pipeline of them, and the rows that come next."""
    try:
        if arguments.pipeline:
            open_dataset(arguments.data, pipeline=arguments.pipeline).load_state_dict(found.values)
        elif (difference := file_difference(arguments.data, found.values)) is not None:
            return {"fits": False, "difference": difference}
    except CheckpointMismatchError as error:
        return {"fits": False, "difference": str(error)}
    try:
        return {"fits": True, "next": next_rows(found, arguments, arguments.n)}
    except (ValueError, CheckpointMismatchError) as error:
        return {"fits": True, "next": None, "why_not_next": str(error)}


def next_rows(found: FoundState, arguments: Namespace, number: int) -> list[dict[str, Any]]:
    """The files and rows that come next in the epoch, over all ranks."""
    dataset = dataset_of_state(arguments.data, found.values, found.state, pipeline=arguments.pipeline)
    if (reason := dataset.plan.why_not_counted()) is not None:
        raise ValueError(f"The next rows are known only by reading: {reason}.")
    session = run_of_state(dataset, found.state, ranks=1).progress().session
    if not session.counted:
        raise ValueError("The next rows are known only by reading, until the next epoch: use midepoch trace 0.")
    steps = steps_of(session)
    rows: list[dict[str, Any]] = []
    for step in count_from(0):
        item = steps.at(0, step)
        if item is None or len(rows) >= number:
            break
        traced = steps.items(item[0]).trace(item[1])
        rows += [{"file": file, "row": row} for file, row in zip(traced.files, traced.rows.tolist(), strict=True)]
    return list(islice(rows, number))


def _in_words(facts: Mapping[str, Any]) -> list[str]:
    where = f"epoch {facts['epoch']}" + ("" if facts["begun"] else ", not begun")
    data = f"{count('row', facts['rows'])} in {count('file', facts['files'])}"
    lines = [f"{facts['path']}: state of version {facts['version']}, {where}, of {data}"]
    if facts["percent"] is not None and facts["begun"]:
        lines.append(f"  delivered   {facts['delivered']:,} rows of the epoch ({facts['percent']:.3g} %)")
    if not facts["complete"]:
        whose = f"reader {facts['reader']} of {facts['readers']}" if "reader" in facts else "the workers of one rank"
        lines.append(f"  part        what {whose} delivered; merge_states joins the states of all")
    if facts["begun"]:
        lines.append(f"  read in     {count('lane', facts['lanes'])}, items of {count('row', facts['item_rows'])}")
    steps = [_step_in_words(step) for step in facts["pipeline"]]
    lines += [f"  {'pipeline' if not number else '':<12}{step}" for number, step in enumerate(steps)]
    for number, record in enumerate(facts["sessions"]):
        ranks = count("rank", record["ranks"])
        said = f"{ranks}, {count('row', record['item_rows'])} an item, from turn {record['turn']:,}"
        lines.append(f"  {'run' if not number else '':<12}epoch {record['epoch']}: {said}")
    if "fits" in facts:
        lines.append("  fits        these files" if facts["fits"] else f"  fits not    {facts['difference']}")
    if facts.get("next"):
        lines += ["  next rows", *(f"    {line}" for line in table(facts["next"]))]
    elif facts.get("why_not_next"):
        lines.append(f"  next rows   {facts['why_not_next']}")
    return lines


def _step_in_words(step: Mapping[str, Any]) -> str:
    """A stage as it is written in a pipeline."""
    return f"{step['op']}({', '.join(f'{name}={value!r}' for name, value in step.items() if name != 'op')})"


def diff(arguments: Namespace) -> Answer:
    """What was delivered between two checkpoints, if they are of one run."""
    first, second = only_state(arguments.first), only_state(arguments.second)
    difference = _fingerprints_differ(first, second)
    if difference is not None:
        return Answer(value={"same_run": False, "difference": difference}, lines=[difference], good=False)
    rows = rows_of_epoch(first.values["fingerprint"])
    delivered = [delivered_rows(first.state, rows), delivered_rows(second.state, rows)]
    epochs = second.state.epoch - first.state.epoch
    between = None if delivered[0] is None or delivered[1] is None else epochs * rows + delivered[1] - delivered[0]
    value = {
        "same_run": True,
        "epochs": [first.state.epoch, second.state.epoch],
        "delivered": delivered,
        "rows_between": between,
        "item_rows": [first.state.item_rows, second.state.item_rows],
        "lanes": [first.state.lanes, second.state.lanes],
    }
    lines = [f"from epoch {first.state.epoch} to epoch {second.state.epoch} of {count('row', rows)}"]
    if between is None:
        lines.append("how many rows lie between is unknown: a state is partial, or of a mixture")
    else:
        order = "were delivered between them" if between >= 0 else "lie between them: the second is the earlier one"
        lines.append(f"{count('row', abs(between))} {order}")
    for name, values in (("rows an item", value["item_rows"]), ("lanes", value["lanes"])):
        if values[0] != values[1]:  # type: ignore[index]
            lines.append(f"{name}: {values[0]} in the first, {values[1]} in the second")  # type: ignore[index]
    return Answer(value=value, lines=lines)


def _fingerprints_differ(first: FoundState, second: FoundState) -> str | None:
    then, now = first.values["fingerprint"], second.values["fingerprint"]
    if then["data"] != now["data"]:
        return "The checkpoints are of different files."
    if then["pipeline"] == now["pipeline"]:
        return None
    return f"The checkpoints are of different pipelines: {pipeline_difference(then['pipeline'], now['pipeline'])}."
