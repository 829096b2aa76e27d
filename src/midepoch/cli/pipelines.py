"""The pipeline that a state describes, as a person would write it: calls with the arguments that are not defaults."""

import inspect
import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from midepoch._common.text import count
from midepoch.dataset import Dataset

MOST_CHARACTERS = 100
"""A pipeline that is longer has a line for each stage."""
MADE_NAME = re.compile(r"~[0-9a-f]{8}$")
"""What ends a name that the user did not choose."""
NOT_WRITTEN = ("op", "digest", "widths", "whole_lane")


def pipeline_in_words(steps: Sequence[Mapping[str, Any]], item_rows: int = 1) -> list[str]:
    """The lines of a pipeline. ``item_rows`` is the number of rows, or packs, of an item by its batches."""
    first = steps[0] if steps else {"op": "read"}
    options = [f", {key}={value!r}" for key, value in first.items() if key != "op"] if first["op"] == "read" else []
    lines = _mixture(first) if first["op"] == "mix" else [f"read(…{''.join(options)})"]
    calls = [_call(step) for step in steps if step["op"] not in ("mix", "read")]
    batches = item_rows // prod(step["n"] for step in steps if step["op"] == "batch")
    calls += [f"batch({batches})"] if batches > 1 else []
    whole = ".".join([lines[-1], *calls])
    if len(whole) <= MOST_CHARACTERS:
        return [*lines[:-1], whole]
    return [*lines, *(f"    .{call}" for call in calls)]


def part_names(mixture: Mapping[str, Any]) -> list[str]:
    """The names of the parts of a mixture. Parts that the user did not name are counted from 0."""
    return [
        f"part {number} ({MADE_NAME.sub('', name)})" if MADE_NAME.search(name) else name
        for number, name in enumerate(mixture["names"])
    ]


def _mixture(mixture: Mapping[str, Any]) -> list[str]:
    named = not any(map(MADE_NAME.search, mixture["names"]))
    lines = []
    for name, steps in zip(mixture["names"], mixture["parts"], strict=True):
        first, *others = pipeline_in_words(steps)
        lines += [f"    {name!r}: {first}" if named else f"    {first}", *(f"    {line}" for line in others)]
        lines[-1] += ","
    arguments = "" if mixture.get("in_turn") else f", {_mix_arguments(mixture)}"
    name = "concat" if mixture.get("in_turn") else "mix"
    return [f"{name}({'{' if named else '['}", *lines, f"{'}' if named else ']'}{arguments})"]


def _mix_arguments(mixture: Mapping[str, Any]) -> str:
    weights = mixture["weights"]
    shown = [f"weights={weights!r}"]
    if any(isinstance(weight, Mapping) for weight in weights):  # weights that change
        at = [items for items, _ in weights[0]["at"]]
        by_step = {items: [weight["at"][number][1] for weight in weights] for number, items in enumerate(at)}
        shown = [f"weights=WeightSchedule({by_step!r}{', ramp=True' if weights[0]['ramp'] else ''})"]
    elif len(set(weights)) == 1:
        shown = []
    shown.append(f"seed={mixture['seed']}")
    return ", ".join(shown + ([] if mixture["stop"] == "first" else [f"stop={mixture['stop']!r}"]))


def _call(step: Mapping[str, Any]) -> str:
    """A stage as it is called. What a state describes by a digest alone is left out."""
    name, given = step["op"], {key: value for key, value in step.items() if key not in NOT_WRITTEN}
    if step.get("whole_lane"):
        given["batch_size"] = None
    if name == "train_test_split":
        return f"train_test_split({given['test_size']!r}, seed={given['seed']}).{given['half']}"
    positional = _positional(name, given)
    defaults = _defaults(name)
    keywords = [f"{key}={value!r}" for key, value in given.items() if key not in defaults or defaults[key] != value]
    return f"{name}({', '.join(positional + keywords)})"


def _positional(name: str, given: dict[str, Any]) -> list[str]:
    """The arguments that come first, which are taken out of those that are given."""
    if name == "shuffle":
        return [f"seed={given.pop('seed')}"]
    if "fn" in given:
        return [str(given.pop("fn"))]
    if name in ("rename_column", "rename_columns", "remove_columns"):
        pairs = given.pop("columns")
        if name == "rename_column":
            return [repr(text) for text in pairs[0]]
        return [repr([old for old, _ in pairs] if name == "remove_columns" else dict(pairs))]
    if name in ("cast", "cast_column"):
        types = given.pop("types")
        return [repr(text) for text in types[0]] if name == "cast_column" else [repr(dict(types))]
    if name == "add_column":
        given.pop("values")
        return [repr(given.pop("column")), "…"]
    if name in ("select", "survey", "without", "deletes"):
        return [count("row", given.pop("rows"))]
    first = {"take": "n", "skip": "n", "batch": "n", "pack": "length", "select_columns": "columns"}.get(name)
    return [] if first is None else [repr(given.pop(first))]


def _defaults(name: str) -> dict[str, Any]:
    method = getattr(Dataset, name, None)
    if method is None:
        return {}
    defaults = {key: parameter.default for key, parameter in inspect.signature(method).parameters.items()}
    return {**defaults, "drop_last": False}
