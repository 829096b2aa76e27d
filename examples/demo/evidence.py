"""What the logs of a run prove: which rows each step received, how often each row came, and whether two runs agree.

A run is a list of sessions: it was started, killed, started again. A step of a killed session that a later session
trained again does not count, because the weights of that step died with it.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

LOSS_TOLERANCE = 1e-3
"""Sums of other numbers of ranks are rounded differently. Steps with other rows differ a hundred times more."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What all ranks received in one step."""

    session: int
    rows: tuple[int, ...]
    loss: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """The steps that count, and what the kills cost."""

    steps: dict[int, Step]
    resumed_at: tuple[int, ...]
    """The first step of each session but the first."""
    repeated_steps: int

    @cached_property
    def rows(self) -> Counter[int]:
        """How often each row was delivered."""
        return Counter(row for step in self.steps.values() for row in step.rows)


def read_run(folder: Path) -> Run:
    """The run whose sessions logged into ``folder``, in the order of their names."""
    sessions = [_read_session(session) for session in sorted(folder.glob("session-*"))]
    steps: dict[int, Step] = {}
    repeated = 0
    for number, lines in enumerate(sessions):
        first = min((line["step"] for line in lines), default=max(steps, default=0) + 1)
        given_up = [step for step in steps if step >= first]
        repeated += len(given_up)
        for step in given_up:
            del steps[step]
        for step in sorted({line["step"] for line in lines}):
            parts = [line for line in lines if line["step"] == step]
            tokens = sum(part.get("tokens", 0) for part in parts)
            loss = sum(part.get("loss", 0.0) for part in parts) / tokens if tokens else 0.0
            rows = tuple(sorted(row for part in parts for row in part["rows"]))
            steps[step] = Step(session=number, rows=rows, loss=loss)
    starts = [min(line["step"] for line in lines) for lines in sessions[1:] if lines]
    return Run(steps=steps, resumed_at=tuple(starts), repeated_steps=repeated)


def problems_of(run: Run, reference: Run, rows: int) -> list[str]:
    """Everything that is wrong with a resumed run, in words. Empty if it is the uninterrupted run, step for step."""
    found = [f"uninterrupted run: {problem}" for problem in _wrong_rows(reference, rows)]
    found += [f"resumed run: {problem}" for problem in _wrong_rows(run, rows)]
    if others := steps_with_other_rows(run, reference):
        found.append(f"resumed run: {len(others)} steps have other rows than without the kills, first step {others[0]}")
    difference = largest_loss_difference(run, reference)
    if not difference <= LOSS_TOLERANCE:  # which also finds NaN
        found.append(f"resumed run: the loss of a step differs by {difference:.2g}")
    return found


def steps_with_other_rows(run: Run, reference: Run) -> list[int]:
    """The steps that did not receive the same rows in both runs, or are in one of them only."""
    both = {step: (run.steps.get(step), reference.steps.get(step)) for step in run.steps | reference.steps}
    return sorted(step for step, (a, b) in both.items() if a is None or b is None or a.rows != b.rows)


def largest_loss_difference(run: Run, reference: Run) -> float:
    """Between the same steps of two runs. NaN if one of the losses is, or if there are none."""
    shared = run.steps.keys() & reference.steps.keys()
    found = [abs(run.steps[step].loss - reference.steps[step].loss) for step in shared]
    return max(found, key=lambda difference: (math.isnan(difference), difference), default=math.nan)


def lost_and_repeated(run: Run, rows: int) -> tuple[int, int]:
    """How many of the rows never came, and how many came more than once."""
    return sum(row not in run.rows for row in range(rows)), sum(times > 1 for times in run.rows.values())


def _wrong_rows(run: Run, rows: int) -> list[str]:
    lost, repeated = lost_and_repeated(run, rows)
    unknown = sum(row not in range(rows) for row in run.rows)
    counts = ((lost, "lost"), (repeated, "delivered more than once"), (unknown, "that are not in the corpus"))
    return [f"{number} rows {what}" for number, what in counts if number]


def _read_session(folder: Path) -> list[dict]:
    logs = [path.read_text() for path in sorted(folder.glob("rank-*.jsonl"))]
    lines = [line for log in logs for line in log.splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]  # a kill may cut the last one
