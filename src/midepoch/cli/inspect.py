"""``inspect`` and ``diff``: what a checkpoint holds, and what was delivered between two of them."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from itertools import count as count_from
from pathlib import Path
from typing import Any

import numpy as np

from midepoch._common.checks import count
from midepoch._common.hashing import I64
from midepoch.checkpoint.fingerprint import pipeline_difference
from midepoch.checkpoint.lanes import lane_cuts
from midepoch.checkpoint.state import State
from midepoch.cli.checkpoints import FoundState, dataset_of_state, find_states, only_state, percent, run_of_state
from midepoch.cli.main import Answer, table
from midepoch.dataset import file_rows, plan_of
from midepoch.delivery.session import Session
from midepoch.errors import CheckpointMismatchError, needs
from midepoch.pipeline.pipeline import cut_of
from midepoch.sources.files import FileRows

PICTURES = (".png", ".svg", ".pdf")
INK, DELIVERED, LEFT = "#22272e", "#2f7fc1", "#dfe5ea"
MOST_LINES, PARTS, MOST_ROWS = 40, 100, 100_000
"""The most lines of a picture; the parts of a line; the most rows that are asked for, evenly over the epoch."""


def inspect(arguments: Namespace) -> Answer:
    """Everything that is known of the states in a checkpoint."""
    _check_data(arguments)
    described, lines = [], []
    for found in find_states(arguments.checkpoint):
        facts = _with_data(found, arguments, arguments.n)
        described.append(facts)
        lines += [*_in_words(facts), ""]
    good = all(facts.get("fits", True) for facts in described)
    if arguments.png is not None:
        _draw(arguments, with_files=bool(arguments.data) and good)
        lines += [f"drawn in {arguments.png}", ""]
    return Answer(value=described, lines=lines[:-1], good=good)


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
    lines += _under("pipeline", facts["code"].splitlines())
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


def _draw(arguments: Namespace, *, with_files: bool) -> None:
    """Draw the state of the checkpoint: its lanes, and with ``with_files`` also the files."""
    if Path(arguments.png).suffix.lower() not in PICTURES:
        raise ValueError(f"--png {arguments.png}: the name must end in {', '.join(PICTURES)}.")
    with needs("matplotlib", "viz", "inspect --png"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.figure import Figure
    found, source = only_state(arguments.checkpoint), None
    if with_files:
        dataset, _ = dataset_of_state(arguments.data, found, pipeline=arguments.pipeline)
        source = file_rows(dataset, "inspect --png")
    pictures = delivered_parts(found.state, found.facts["total"], source)
    heights = [min(0.6 + 0.24 * picture.lines, 8.0) for picture in pictures]
    figure: Any = Figure(figsize=(10, 1.6 * len(heights) + sum(heights)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    title = f"Epoch {found.state.epoch}: {_done_in_words(found.facts)}"
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=13, color=INK)
    colors = LinearSegmentedColormap.from_list("delivered", [LEFT, DELIVERED]).with_extremes(bad="white")
    all_axes = figure.subplots(len(pictures), squeeze=False, height_ratios=heights)[:, 0]
    for axes, picture in zip(all_axes, pictures, strict=True):
        axes.imshow(picture.shares(), aspect="auto", cmap=colors, vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(f"what is delivered of {picture.title}", loc="left", size=11, color=INK)
        axes.set_yticks(range(picture.lines), [name[-40:] for name in picture.line_names()])
        axes.set_xticks([-0.5, PARTS / 2 - 0.5, PARTS - 0.5], ["first row", "middle", "last row"])
        axes.hlines(np.arange(1, picture.lines) - 0.5, -0.5, PARTS - 0.5, color="white", linewidth=2)
        axes.spines[:].set_visible(False)
        axes.tick_params(left=False)
    figure.savefig(arguments.png)


class Parts:
    """How much of each part of some lanes or files is delivered. If there are many, several share a line."""

    def __init__(self, title: str, names: Sequence[str]) -> None:
        self.title, self._names, self.lines = title, names, min(len(names), MOST_LINES)
        self._rows, self._delivered = np.zeros((2, self.lines * PARTS))

    def add(self, numbers: I64, parts: I64, delivered: Any) -> None:
        """Count rows of the lanes or files with these numbers, in these parts of them."""
        cells = numbers * self.lines // len(self._names) * PARTS + parts
        self._rows += np.bincount(cells, minlength=len(self._rows))
        self._delivered += np.bincount(cells[delivered], minlength=len(self._rows))

    def shares(self) -> Any:
        """For each part of each line, from 0 to 1; NaN where the epoch has no rows."""
        with np.errstate(invalid="ignore"):
            return (self._delivered / self._rows).reshape(self.lines, PARTS)

    def line_names(self) -> list[str]:
        """The name of each line."""
        firsts = [-(-line * len(self._names) // self.lines) for line in range(self.lines + 1)]
        sizes = np.diff(firsts).tolist()
        return [
            self._names[first] + (f" … ({size})" if size > 1 else "")
            for first, size in zip(firsts, sizes, strict=False)
        ]


def delivered_parts(state: State, rows: int, source: FileRows | None) -> list[Parts]:
    """How much of each lane is delivered and, if the ``source`` of the rows is known, of each file. Nothing is read."""
    if state.lanes is None:
        raise ValueError("--png has nothing to draw: the epoch has not begun.")
    if state.reader_progress is not None or any(len(position.cursor) > 2 for _, position in state.positions.runs):
        raise ValueError(
            "--png draws complete states of rows of files. This one is of a mixture, or holds what one of several "
            "readers delivered: join the states of all with merge_states."
        )
    if source is None and (state.mode == "file" or state.appended or state.edits):
        raise ValueError("--png needs --data for this state: its lanes follow from the files.")
    cut = None if source is None else source.cut(cut_of(state))
    sizes = np.diff(lane_cuts(rows, state.lanes)).tolist() if cut is None else [*map(cut.size, range(state.lanes))]
    lanes = Parts(count("lane", len(sizes)), [f"lane {lane}" for lane in range(len(sizes))])
    view = None if source is None else source.index.view
    files = None if view is None else Parts(count("file", len(view.names)), view.names)
    step = -(-sum(sizes) // MOST_ROWS) or 1
    for lane, (size, position) in enumerate(zip(sizes, state.positions.expand(), strict=True)):
        positions: I64 = np.arange(-sum(sizes[:lane]) % step, size, step)
        delivered = positions < position.cursor[0]
        if len(position.cursor) == 1:  # cursors with groups say nothing about the rows of the items that are ahead
            items = (positions - position.cursor[0]) // state.item_rows
            delivered |= np.isin(items, np.array(position.delivered_ahead, np.int64))
        lanes.add(np.full_like(positions, lane), positions * PARTS // max(1, size), delivered)
        if files is not None and view is not None and cut is not None:
            found, starts = cut.order(lane).rows(positions), np.asarray(view.file_starts)
            numbers = np.searchsorted(starts, found, "right") - 1
            parts = (found - starts[numbers]) * PARTS // (starts[numbers + 1] - starts[numbers])
            files.add(numbers, parts, delivered)
    return [lanes] if files is None else [lanes, files]
