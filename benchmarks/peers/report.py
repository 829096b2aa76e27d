"""Medians, ratios, and the report in Markdown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.peers.scenarios import Scenario

OURS = "midepoch"
SAYS = {"not_offered": "not offered", "not_measured": "not measured", "refused": "refused", "error": "failed"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one contender reached in one column: figures of all rounds, or why there are none."""

    values: tuple[float, ...] = ()
    reason: str = ""
    says: str = ""

    @property
    def middle(self) -> float | None:
        """The median of the rounds."""
        return median(self.values) if self.values else None

    def text(self) -> str:
        """The median, and the lowest and highest round where there were several."""
        if not self.values:
            return self.says
        text = number(median(self.values))
        if len(self.values) > 1 and number(min(self.values)) != number(max(self.values)):
            text += f" ({number(min(self.values))} – {number(max(self.values))})"
        return text


Table = dict[str, dict[str, Cell]]  # column -> contender -> cell


def cell(answers: Sequence[Mapping[str, Any]], figure: str, scale: float = 1.0) -> Cell:
    """The cell of one figure. One round without an answer is enough to have no figure."""
    for answer in answers:
        for key, says in SAYS.items():
            if key in answer:
                return Cell(reason=str(answer[key]), says=says)
    return Cell(values=tuple(answer["figures"][figure] / scale for answer in answers))


def number(value: float) -> str:
    """Three digits, or whole numbers with commas."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def ratio(ours: Cell, theirs: Cell, *, more: bool) -> float | None:
    """How much better ours is: above 1 is better, whichever direction is good. None without two figures above 0."""
    mine, other = ours.middle, theirs.middle
    if mine is None or other is None or mine <= 0 or other <= 0:
        return None
    return mine / other if more else other / mine


def best_other(table: Mapping[str, Cell], *, more: bool) -> str | None:
    """The best contender that is not ours."""
    reached = {name: found.middle for name, found in table.items() if name != OURS and found.middle is not None}
    if not reached:
        return None
    return (max if more else min)(reached, key=lambda name: reached[name])


def behind(scenario: Scenario, table: Table, labels: Mapping[str, str]) -> list[str]:
    """A line for each column in which another contender is ahead of ours."""
    lines = []
    for column, cells in table.items():
        name = best_other(cells, more=scenario.more)
        mine = cells.get(OURS)
        if name is None or mine is None or mine.middle is None:
            continue
        other = cells[name].middle
        assert other is not None
        if (other > mine.middle) if scenario.more else (other < mine.middle):
            share = ratio(mine, cells[name], more=scenario.more)
            by = f"{share:.2f} × of it" if share else f"{number(mine.middle)} against {number(other)}"
            lines.append(f"{scenario.title}, {column or scenario.unit}: {labels[name]} is ahead; midepoch has {by}.")
    return lines


def failed(scenario: Scenario, table: Table, labels: Mapping[str, str]) -> list[str]:
    """A line for each column in which a contender failed."""
    return [
        f"{scenario.title}, {column or scenario.unit}: {labels[name]}: {' '.join(found.reason.split())[:200]}"
        for column, cells in table.items()
        for name, found in cells.items()
        if found.says == SAYS["error"]
    ]


def section(scenario: Scenario, table: Table, labels: Mapping[str, str], picture: str | None) -> str:
    """A scenario in Markdown: table, reasons, picture."""
    columns = list(table)
    names = [name for name in labels if any(name in cells for cells in table.values())]
    lines = [f"## {scenario.title}", "", f"{scenario.note} In {scenario.unit}; {_direction(scenario)} is better.", ""]
    lines += [f"| | {' | '.join(column or scenario.unit for column in columns)} |"]
    lines += ["| --- |" + " ---: |" * len(columns)]
    for name in names:
        cells = [table[column].get(name, Cell(says="not run")) for column in columns]
        lines.append(f"| {labels[name]} | {' | '.join(found.text() for found in cells)} |")
    reasons = {
        (labels[name], found.says, " ".join(found.reason.split())[:200]): None
        for name in names
        for column in columns
        if (found := table[column].get(name)) and found.reason
    }
    if reasons:
        lines += ["", *(f"- {label}, {says}: {reason}" for label, says, reason in reasons)]
    if picture:
        lines += ["", f"![{scenario.title}]({picture})"]
    return "\n".join(lines) + "\n"


def _direction(scenario: Scenario) -> str:
    return "more" if scenario.more else "less"


def as_json(tables: Mapping[str, Table], about: Mapping[str, Any]) -> str:
    """All figures of all rounds."""
    plain = {
        key: {column: {name: asdict(found) for name, found in cells.items()} for column, cells in table.items()}
        for key, table in tables.items()
    }
    return json.dumps({"about": dict(about), "figures": plain}, indent=1) + "\n"


def from_json(text: str) -> dict[str, Table]:
    """The tables of :func:`as_json`."""
    plain = json.loads(text)["figures"]
    return {
        key: {
            column: {name: Cell(**{**found, "values": tuple(found["values"])}) for name, found in cells.items()}
            for column, cells in table.items()
        }
        for key, table in plain.items()
    }
