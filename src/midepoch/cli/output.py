"""What a command prints: lines for people, or one JSON value for programs."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_CHARACTERS = 60
"""A longer cell of a table is cut."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a command."""

    value: Any
    """What ``--json`` prints."""
    lines: Sequence[str] = field(default_factory=list)
    """What people read."""
    good: bool = True
    """False if the answer to the question is no: then the exit code is 1."""


def show(answer: Answer, *, as_json: bool) -> None:
    """Write an answer to standard output."""
    lines = [json.dumps(answer.value, default=str)] if as_json else answer.lines
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def leave_broken_pipe() -> None:
    """Give up standard output that nobody reads any more. Else Python complains about it when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> list[str]:
    """Rows as aligned columns. A column without any value is left out."""
    if not rows:
        return []
    names = [name for name in columns or rows[0] if any(row.get(name) is not None for row in rows)]
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    numbers = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numbers, strict=True)
        ).rstrip()
        for line in cells
    ]


def _cell(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else repr(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
