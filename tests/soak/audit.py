"""What counts as delivered, and whether it is what one uninterrupted process delivers."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

END = 10**9
"""The step of the state that is taken after the loop over an epoch."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What a rank received in a step of a leg."""

    leg: int
    step: int
    rank: int
    values: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The states of all ranks after a step of a leg."""

    step: int
    states: Sequence[Mapping[str, Any]]


def read_leg(folder: Path, leg: int, ranks: int) -> tuple[Checkpoint | None, list[Delivery]]:
    """The newest complete checkpoint of a leg, and what was delivered up to it, in order.

    A rank writes down a step's values before its state after that step, so a state that is there covers lines that are
    there. What ranks received after the newest complete checkpoint is not in the state from which the next leg resumes,
    so it does not count: it has to come again.
    """
    steps = [{int(path.stem.split("-")[1]) for path in folder.glob(f"state-*-{rank}.json")} for rank in range(ranks)]
    complete = set.intersection(*steps)
    if not complete:
        return None, []
    newest = max(complete)
    states = [json.loads((folder / f"state-{newest}-{rank}.json").read_text()) for rank in range(ranks)]
    deliveries = []
    for rank in range(ranks):
        for line in (folder / f"rows-{rank}.jsonl").read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                break  # it was being written when the rank was killed, after any state
            step, values = json.loads(line)
            if 0 < step <= newest:
                deliveries.append(Delivery(leg=leg, step=step, rank=rank, values=values))
    in_order = sorted(deliveries, key=lambda one: (one.step, one.rank))
    return Checkpoint(step=newest, states=states), in_order


def audit(expected: Sequence[int], delivered: Sequence[Delivery], *, order: str | None) -> dict[str, int]:
    """How many values were lost, repeated and out of order; nothing if all is well.

    ``order`` says what is known of it: "global" if all ranks together have the order of one process, "rank" if each
    rank has it in each leg, None if batch sizes changed.
    """
    got = [value for one in delivered for value in one.values]
    wanted, times = Counter(expected), Counter(got)
    lost, repeated = wanted - times, times - wanted
    late = 0
    if order == "global":
        late = sum(one != other for one, other in zip(got, expected, strict=False)) if got != list(expected) else 0
    elif order == "rank":
        places, reached = {value: place for place, value in enumerate(expected)}, Counter[tuple[int, int]]()
        for one in delivered:
            for value in one.values:
                place = places.get(value, -1) + 1
                late += place <= reached[one.leg, one.rank]
                reached[one.leg, one.rank] = place
    found = {"lost": lost.total(), "repeated": repeated.total(), "out of order": late}
    return {name: number for name, number in found.items() if number}
