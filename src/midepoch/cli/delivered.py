"""How much of its epoch a state has delivered: rows, packs, and the parts of a mixture. Nothing is read for it.

A state knows exactly which rows come next. Inside a window of packs it knows how many packs were delivered, and not how
many the window has. There the share of the epoch is estimated from the windows before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from midepoch.checkpoint.fingerprint import rows_of
from midepoch.checkpoint.history import sessions_of
from midepoch.checkpoint.lanes import Cursor, lane_cuts
from midepoch.checkpoint.state import State
from midepoch.cli.datasets import order_step_of
from midepoch.cli.pipelines import part_names
from midepoch.pipeline.draws import split_cursor

Steps = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Amount:
    """How much is delivered of a dataset, of a part of a mixture, or of a mixture."""

    unit: str
    """What it yields: "row", "pack", or "item" if parts of a mixture yield different things."""
    rows: int
    """The rows of an epoch."""
    rows_done: int
    """The rows that are done, those of a window under way not counted."""
    share: float | None
    """The share of the epoch that is done; None if it is unknown, or the epoch never ends."""
    is_exact: bool
    """False if the share is an estimate."""
    most: float | None = None
    """What the share is at most, if it is not known."""
    units: int | None = None
    """The rows or packs that were delivered; None if that is unknown."""
    is_counted: bool = True
    """False if there may be fewer units: turns at a lane that has run out count too."""
    has_ended: bool = False
    """True if a lane, or a part in a lane, has come to its end."""
    parts: tuple[tuple[str, "Amount"], ...] = ()


def amount_of(state: State, fingerprint: Mapping[str, Any]) -> Amount:
    """What a complete state has delivered of its epoch, by all ranks."""
    steps, data = fingerprint["pipeline"], fingerprint["data"]
    cursors = [position.cursor for position in state.positions.expand()] or [_begin(steps)]
    amount = _amount(steps, data, cursors, state, _units_by_turns(state))
    ahead = sum(len(position.delivered_ahead) for position in state.positions.expand())
    if ahead and amount.unit == "row" and amount.is_exact:  # by readers that are ahead of others
        done = min(amount.rows, amount.rows_done + ahead * state.item_rows)
        return replace(amount, rows_done=done, units=done, share=done / max(1, amount.rows))
    return amount


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


def _begin(steps: Steps) -> Cursor:
    """A cursor at the beginning of a lane."""
    is_mixture = bool(steps) and steps[0]["op"] == "mix"
    width = sum(2 + width for width in steps[0]["widths"]) if is_mixture else 1
    return (0,) * (width + sum(map(_groups, steps)))


def _units_by_turns(state: State) -> int:
    """The rows or packs of all items of the epoch so far, by the batch sizes of its sessions."""
    sessions = sessions_of(state.history, state.epoch) or ()
    ends = [*(session.turn for session in sessions), state.turn]
    sizes = [session.item_rows for session in sessions]
    if not sessions:
        return state.turn * state.item_rows
    return sum(size * max(0, end - begin) for size, (begin, end) in zip(sizes, pairwise(ends), strict=True))


def _amount(steps: Steps, data: Mapping[str, Any], cursors: Sequence[Cursor], state: State, units: int) -> Amount:
    """What is delivered of a pipeline, given the cursors of its lanes and how many outputs came."""
    is_mixture = bool(steps) and steps[0]["op"] == "mix"
    amount = (_of_mixture if is_mixture else _of_files)(steps, data, cursors, state)
    grouping = [step for step in steps if _groups(step)]
    if not grouping and not any(step["op"] in ("filter", "where") for step in steps):
        return amount
    unit = "pack" if any(step["op"] == "pack" for step in grouping) else amount.unit
    # The share of the rows that were read is about that of the rows that are kept, or of packs.
    is_counted = len(cursors) == 1 or not amount.has_ended
    amount = replace(amount, unit=unit, units=units, is_exact=False, is_counted=is_counted)
    if not grouping:
        return amount
    inside = sum(cursor[-1] for cursor in cursors)
    if grouping[-1].get("strategy") == "concat" or not inside:
        return amount
    if amount.rows_done and units > inside:
        return _scaled(amount, units / (units - inside))
    group = grouping[-1].get("window", grouping[-1].get("batch_size"))
    is_plain = len(grouping) == 1 and not is_mixture and not any(step["op"] in ("filter", "where") for step in steps)
    unknown = _scaled(amount, None)
    unknown = unknown if amount.rows_done else replace(unknown, units=inside, is_counted=True)
    if group is None or not is_plain:
        return unknown
    sizes = _lane_sizes(amount.rows, cursors, state)
    ends = sum(min(size, cursor[0] + group) for size, cursor in zip(sizes, cursors, strict=True))
    return replace(unknown, most=ends / max(1, amount.rows))


def _scaled(amount: Amount, factor: float | None) -> Amount:
    """The estimate that so many times as much is done; None if nothing is known of the first window but its packs."""
    parts = tuple((name, _scaled(part, factor)) for name, part in amount.parts)
    if factor is None or amount.share is None:
        return replace(amount, share=None, is_exact=False, parts=parts)
    return replace(amount, share=min(1.0, amount.share * factor), is_exact=False, parts=parts)


def _groups(step: Mapping[str, Any]) -> bool:
    """True for a stage with an integer of its own in the cursor: how many outputs of a group were delivered."""
    return step["op"] == "pack" or (step["op"] == "map" and step.get("batched", False) and not step.get("one_to_one"))


def _lane_sizes(rows: int, cursors: Sequence[Cursor], state: State) -> list[int]:
    """The rows of each lane. Lanes of whole files are as long as the files, which a state does not list."""
    if state.mode == "file":
        return [max(cursor[0], rows // len(cursors)) for cursor in cursors]
    return [int(size) for size in np.diff(lane_cuts(rows, len(cursors)))]


def _of_files(steps: Steps, data: Mapping[str, Any], cursors: Sequence[Cursor], state: State) -> Amount:
    rows = rows_of_epoch({"data": data, "pipeline": steps})
    sizes = _lane_sizes(rows, cursors, state)
    done = min(rows, sum(min(size, cursor[0]) for size, cursor in zip(sizes, cursors, strict=True)))
    return Amount(
        unit="row",
        rows=rows,
        rows_done=done,
        share=done / rows if rows else 1.0,
        is_exact=True,
        units=done,
        has_ended=any(cursor[0] >= size for size, cursor in zip(sizes, cursors, strict=True)),
    )


def _of_mixture(steps: Steps, data: Mapping[str, Any], cursors: Sequence[Cursor], state: State) -> Amount:
    mixture, *_ = steps
    by_lane = [split_cursor(cursor, mixture["widths"]) for cursor in cursors]
    amounts: list[Amount] = []
    for number, (part_steps, part_data) in enumerate(zip(mixture["parts"], data["parts"], strict=True)):
        positions = [lane[number] for lane in by_lane]
        drawn = sum(position.drawn for position in positions)
        own = _amount(part_steps, part_data, [position.cursor for position in positions], state, drawn)
        passes = sum(position.times_ended for position in positions)
        if mixture["stop"] == "never" and passes:  # a part that starts over has begun a lane again
            again = passes * own.rows // len(cursors)
            own = replace(own, rows_done=own.rows_done + again, units=drawn if own.units is None else own.units + again)
            own = replace(own, share=own.rows_done / max(1, own.rows), is_exact=False)
        amounts.append(own)
    rows, done = sum(part.rows for part in amounts), sum(part.rows_done for part in amounts)
    units = [part.units for part in amounts]
    shares = [part.share for part in amounts if part.share is not None]
    share: float | None = None
    if mixture["stop"] == "all" and len(shares) == len(amounts):
        weighed = sum((part.share or 0) * part.rows for part in amounts)
        share = weighed / rows if rows else 1.0
    elif mixture["stop"] == "first" and shares:
        share = max(shares)  # the epoch ends with the first part that ends
    kinds = {part.unit for part in amounts}
    return Amount(
        unit=kinds.pop() if len(kinds) == 1 else "item",
        rows=rows,
        rows_done=done,
        share=share,
        is_exact=mixture["stop"] == "all" and all(part.is_exact for part in amounts),
        units=None if None in units else sum(unit or 0 for unit in units),
        is_counted=all(part.is_counted for part in amounts),
        has_ended=any(part.has_ended for part in amounts),
        parts=tuple(zip(part_names(mixture), amounts, strict=True)),
    )
