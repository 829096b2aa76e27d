"""``inspect`` and ``diff``: what a checkpoint holds, and what was delivered between two of them."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from itertools import count as count_from
from itertools import islice
from pathlib import Path
from typing import Any

from midepoch._common.text import count
from midepoch.checkpoint.fingerprint import pipeline_difference
from midepoch.checkpoint.state import State
from midepoch.cli.checkpoints import FoundState, find_states, only_state
from midepoch.cli.datasets import dataset_of_state, file_difference, open_dataset, run_of_state
from midepoch.cli.delivered import Amount, amount_of, rows_of_epoch
from midepoch.cli.drawing import draw_state
from midepoch.cli.output import Answer, table
from midepoch.cli.pipelines import pipeline_in_words
from midepoch.delivery.session import Session
from midepoch.errors import CheckpointMismatchError

HOW = "--data and a --pipeline that ends in .survey() say it exactly"
PICTURES = (".png", ".svg", ".pdf")


def inspect(arguments: Namespace) -> Answer:
    """Everything that is known of the states in a checkpoint."""
    _check_data(arguments)
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


def _check_data(arguments: Namespace) -> None:
    if arguments.pipeline is not None and not arguments.data:
        raise ValueError("--pipeline is for comparing the checkpoint with files: pass --data as well.")


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
    facts: dict[str, Any] = {
        "path": found.path,
        "version": found.values["version"],
        "epoch": state.epoch,
        "begun": state.lanes is not None,
        "lanes": state.lanes,
        "item_rows": state.item_rows,
        "complete": state.reader_progress is None,
        "files": _files_of(fingerprint["data"]),
        "rows": rows_of_epoch(fingerprint),
        "endless": any(step["op"] == "mix" and step["stop"] == "never" for step in fingerprint["pipeline"]),
        **_delivered(state, fingerprint),
        "pipeline": fingerprint["pipeline"],
        "code": "\n".join(pipeline_in_words(fingerprint["pipeline"], state.item_rows)),
        "sessions": [dict(record._asdict()) for record in state.history],
    }
    if state.reader_progress is not None and state.reader_progress.reader is not None:
        facts |= {"reader": state.reader_progress.reader, "readers": state.reader_progress.readers}
    return facts


def _delivered(state: State, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """What a state has delivered, by all ranks or, if it is partial, by its own reader since the session began."""
    amount = amount_of(state, fingerprint)
    facts: dict[str, Any] = {"unit": amount.unit, "delivered": None, "delivered_exact": True, "items": None}
    facts |= {"rows_done": None, "percent": None, "exact": False, "at_most_percent": None, "parts": []}
    if state.lanes is None:
        return {**facts, "delivered": 0, "items": 0, "rows_done": 0, "percent": 0.0, "exact": True}
    if (progress := state.reader_progress) is not None:
        return {**facts, "items": progress.turns_taken if progress.reader is not None else sum(progress.items)}
    return {
        **facts,
        "delivered": amount.units,
        "delivered_exact": amount.is_counted,
        "items": state.turn,
        "rows_done": amount.rows_done,
        "percent": _percent(amount.share),
        "exact": amount.is_exact,
        "at_most_percent": _percent(amount.most),
        "parts": [_part(name, part) for name, part in amount.parts],
    }


def _part(name: str, part: Amount) -> dict[str, Any]:
    facts = {"name": name, "unit": part.unit, "delivered": part.units, "rows": part.rows, "rows_done": part.rows_done}
    inner = {"parts": [_part(*one) for one in part.parts]} if part.parts else {}
    return facts | {"percent": _percent(part.share), "exact": part.is_exact} | inner


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 3)


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
        session = counted_session(found, arguments)
        return {"fits": True, "next": next_rows(session, arguments.n), **_counted_by(session)}
    except (ValueError, CheckpointMismatchError) as error:
        return {"fits": True, "next": None, "why_not_next": str(error)}


def counted_session(found: FoundState, arguments: Namespace) -> Session:
    """The session that would start from a state on one rank. Raises if its items are not counted."""
    dataset = dataset_of_state(arguments.data, found.values, found.state, pipeline=arguments.pipeline)
    if (reason := dataset.plan.why_not_counted()) is not None:
        raise ValueError(f"The next rows are known only by reading: {reason}.")
    session = run_of_state(dataset, found.state, ranks=1).progress().session
    if not isinstance(session, Session):
        raise ValueError("The next rows are known only by reading, until the next epoch: use midepoch trace 0.")
    return session


def _counted_by(session: Session) -> dict[str, Any]:
    """What was delivered, exactly: rows or packs. Nothing for pipelines of which the state alone knows it."""
    if session.pipeline.uniform and session.pipeline.source.uniform and session.pipeline.source.has_rows:
        return {}
    if session.is_endless:
        return {}
    lanes, begin = session.lanes, session.pipeline.begin
    total = sum(lanes.units(lane, begin).total() for lane in range(len(session.positions)))
    left = sum(lanes.units(lane, position.cursor).total() for lane, position in enumerate(session.positions))
    done = total - left
    facts = {"delivered": done, "total": total, "percent": _percent(done / total if total else 1.0), "exact": True}
    return {**facts, "delivered_exact": True, "at_most_percent": None}


def next_rows(session: Session, number: int) -> list[dict[str, Any]]:
    """The files and rows that come next in the epoch, over all ranks."""
    rows: list[dict[str, Any]] = []
    for step in count_from(0):
        item = session.item(0, step)
        if item is None or len(rows) >= number:
            break
        traced = session.lane_items(item[0]).trace(item[1])
        rows += [{"file": file, "row": row} for file, row in zip(traced.files, traced.rows.tolist(), strict=True)]
    return list(islice(rows, number))


def _in_words(facts: Mapping[str, Any]) -> list[str]:
    where = f"epoch {facts['epoch']}" + ("" if facts["begun"] else ", not begun")
    data = f"{count('row', facts['rows'])} in {count('file', facts['files'])}"
    lines = [f"{facts['path']}: state of version {facts['version']}, {where}, of {data}"]
    if facts["begun"]:
        lines.append(f"  delivered   {_delivered_in_words(facts)}")
        lines += _under("parts", _parts_in_words(facts["parts"]))
    if not facts["complete"]:
        whose = f"reader {facts['reader']} of {facts['readers']}" if "reader" in facts else "the workers of one rank"
        lines.append(f"  part        what {whose} delivered; merge_states joins the states of all")
    lines += _under("pipeline", facts["code"].splitlines())
    lines += _under("read by", [_session_in_words(record, facts["unit"]) for record in facts["sessions"]])
    if "fits" in facts:
        lines.append("  fits        these files" if facts["fits"] else f"  fits not    {facts['difference']}")
    if facts.get("next"):
        lines += ["  next rows", *(f"    {line}" for line in table(facts["next"]))]
    elif facts.get("why_not_next"):
        lines.append(f"  next rows   {facts['why_not_next']}")
    return lines


def _under(title: str, lines: Sequence[str]) -> list[str]:
    return [f"  {title if not number else '':<12}{line}" for number, line in enumerate(lines)]


def _delivered_in_words(facts: Mapping[str, Any]) -> str:
    """As in "120 rows of the epoch (26.7 %), in 15 batches of 8 rows"."""
    unit, batches = facts["unit"], _batches(facts["items"], facts["item_rows"], facts["unit"])
    if not facts["complete"]:
        return f"{batches} since it last started or resumed"
    amount = "an unknown number of rows"
    if facts["delivered"] is not None:
        amount = ("" if facts["delivered_exact"] else "about ") + count(unit, facts["delivered"])
    if "total" in facts:
        amount = f"{facts['delivered']:,} of {count(unit, facts['total'])}"
    if facts["percent"] is not None:
        share = f" ({'' if facts['exact'] else 'about '}{facts['percent']:.3g} %)"
    elif facts["at_most_percent"] is not None:
        how = f"the first window is under way; {HOW}" if unit == "pack" else "the first group of rows is under way"
        share = f" (at most {facts['at_most_percent']:.3g} %, as {how})"
    else:
        share = f" (their share is not known: {HOW})" if unit == "pack" else ""
    sizes = {record["item_rows"] for record in facts["sessions"] if record["epoch"] == facts["epoch"]}
    is_batched = facts["item_rows"] > 1 and len(sizes) <= 1 and facts["delivered_exact"]
    of_epoch = " of an epoch that never ends" if facts["endless"] else f" of the epoch{share}"
    return amount + of_epoch + (f", in {batches}" if is_batched else "")


def _batches(number: int, size: int, unit: str) -> str:
    return f"{count('batch', number, 'batches')} of {count(unit, size)}" if size > 1 else count(unit, number)


def _parts_in_words(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each part of a mixture, and below it those of its own parts."""
    width = max((len(part["name"]) for part in parts), default=0)
    lines = []
    for part in parts:
        done = f"{part['rows_done']:,} of {count('row', part['rows'])}"
        if part["unit"] == "pack" and part["delivered"] is not None:
            done = f"{count('pack', part['delivered'])} of {count('row', part['rows'])}"
        elif part["percent"] is None:
            done = f"some of its {count('row', part['rows'])}"
        share = "" if part["percent"] is None else f" ({'' if part['exact'] else 'about '}{part['percent']:.3g} %)"
        lines.append(f"{part['name']:<{width}}  {done}{share}")
        lines += [f"  {line}" for line in _parts_in_words(part.get("parts", ()))]
    return lines


def _session_in_words(record: Mapping[str, Any], unit: str) -> str:
    items = f"batches of {count(unit, record['item_rows'])}" if record["item_rows"] > 1 else f"single {unit}s"
    noun = "batch" if record["item_rows"] > 1 else unit
    begin = "the beginning" if not record["turn"] else f"{noun} {record['turn']:,}"
    return f"{count('rank', record['ranks'])}, {items}, from {begin} of epoch {record['epoch']} on"


def diff(arguments: Namespace) -> Answer:
    """What was delivered between two checkpoints, if they are of one run."""
    _check_data(arguments)
    first, second = only_state(arguments.first), only_state(arguments.second)
    difference = _fingerprints_differ(first, second)
    if difference is not None:
        return Answer(value={"same_run": False, "difference": difference}, lines=[difference], good=False)
    facts = [describe_state(first), describe_state(second)]
    if arguments.data:
        facts = [one | _against_files(found, arguments) for one, found in zip(facts, (first, second), strict=True)]
        for one in facts:
            if not one["fits"]:
                return Answer(
                    value={"same_run": True, "difference": one["difference"]}, lines=[one["difference"]], good=False
                )
    between = _between(facts)
    value = {
        "same_run": True,
        "epochs": [one["epoch"] for one in facts],
        "unit": facts[0]["unit"],
        "delivered": [one["delivered"] for one in facts],
        "between": between,
        "rows_between": between if facts[0]["unit"] == "row" else None,
        "percent": [one["percent"] for one in facts],
        "parts": _parts_between(facts),
        "item_rows": [one["item_rows"] for one in facts],
        "lanes": [one["lanes"] for one in facts],
    }
    return Answer(value=value, lines=_difference_in_words(facts, value))


def _between(facts: Sequence[Mapping[str, Any]]) -> int | None:
    """The rows or packs between two states; None if a state is partial, or the number of an epoch is unknown."""
    first, second = facts
    if first["delivered"] is None or second["delivered"] is None:
        return None
    epochs = second["epoch"] - first["epoch"]
    if not epochs:
        return int(second["delivered"] - first["delivered"])
    if epochs == 1 and "total" in first:
        return int(first["total"] - first["delivered"] + second["delivered"])
    if any(one["delivered"] != one["rows_done"] or one["parts"] for one in facts):
        return None
    return int(epochs * first["rows"] + second["delivered"] - first["delivered"])


def _parts_between(facts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    first, second = facts
    if first["epoch"] != second["epoch"] or not first["parts"] or not second["parts"]:
        return []
    return [
        {"name": was["name"], "unit": was["unit"], "between": part["delivered"] - was["delivered"]}
        for was, part in zip(first["parts"], second["parts"], strict=True)
    ]


def _difference_in_words(facts: Sequence[Mapping[str, Any]], value: Mapping[str, Any]) -> list[str]:
    first, second = facts
    epochs = " and ".join(str(epoch) for epoch in dict.fromkeys(value["epochs"]))
    lines = [f"epoch {epochs} of {count('row', first['rows'])}"]
    lines += [f"  {name:<8}  {_delivered_in_words(one)}" for name, one in zip(("first", "second"), facts, strict=True)]
    if value["between"] is not None:
        is_later = value["between"] >= 0
        order = "were delivered between them" if is_later else "lie between them: the second is the earlier one"
        lines.append(f"{count(value['unit'], abs(value['between']))} {order}")
    elif not first["complete"] or not second["complete"]:
        lines.append("how much lies between is unknown: a state holds what one of several ranks delivered")
    else:
        epochs_apart = count("epoch", abs(second["epoch"] - first["epoch"]))
        lines.append(f"they are {epochs_apart} apart, and only reading tells how many {value['unit']}s an epoch has")
    width = max((len(part["name"]) for part in value["parts"]), default=0)
    lines += [f"  {part['name']:<{width}}  {count(part['unit'], part['between'])}" for part in value["parts"]]
    return lines


def _fingerprints_differ(first: FoundState, second: FoundState) -> str | None:
    then, now = first.values["fingerprint"], second.values["fingerprint"]
    if then["data"] != now["data"]:
        return "The checkpoints are of different files."
    if then["pipeline"] == now["pipeline"]:
        return None
    return f"The checkpoints are of different pipelines: {pipeline_difference(then['pipeline'], now['pipeline'])}."
