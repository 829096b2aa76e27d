"""A plan in words: its files, every stage with its parameters, and what is known of its numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from midepoch._common.checks import count
from midepoch.delivery.plan import Plan
from midepoch.pipeline.mixture import Mixture
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.files import FileRows
from midepoch.stages.arguments import name_of
from midepoch.stages.stage import Call, Stage

INTERNAL = ("number", "salt", "checks", "tries", "skip_log", "stage", "values", "digest", "columns", "default_form")
"""Fields of stages that no user sets."""


def describe_plan(name: str, plan: Plan, *, epoch: int, options: Mapping[str, Any] | None = None) -> str:
    """What a dataset or a loader is, one stage a line. Nothing is read or counted for it."""
    lines = [f"<{name} of {plan.pipeline.source}", *_pipeline_lines(plan.pipeline), *_reader_lines(plan)]
    if options:
        lines.append("Loader(" + ", ".join(f"{key}={value!r}" for key, value in options.items()) + ")")
    return "\n  ".join([*lines, f"{_numbers(plan, epoch)}>"])


def _pipeline_lines(pipeline: Pipeline) -> Iterator[str]:
    source = pipeline.source
    if isinstance(source, Mixture):
        for name, part in zip(source.names, source.parts, strict=True):
            yield f"{name}: {part.source}"
            yield from (f"  {line}" for line in _pipeline_lines(part))
        yield "concat()" if source.in_turn else _call({"op": "mix", "seed": source.seed, "stop": source.stop})
    else:
        yield from (_call(dict(step)) for step in source.describe())
    if isinstance(source, FileRows) and source.size != source.index.view.rows:
        yield f"= {count('row', source.size)}"
    yield from map(stage_in_words, pipeline.stages)


def _call(description: dict[str, Any]) -> str:
    name = description.pop("op")
    return f"{name}({', '.join(f'{key}={_short(value)}' for key, value in description.items())})"


def stage_in_words(stage: Stage) -> str:
    """A stage and the parameters that differ from their defaults, as in "batch(8)" and "map(tokenize)"."""
    return f"{stage.name}({', '.join(_parameters(stage))})"


def _parameters(stage: Any) -> Iterator[str]:
    is_first = True
    for field in fields(stage):
        value = getattr(stage, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name in INTERNAL or value is None or (default is not MISSING and value == default):
            continue
        if isinstance(value, Call):
            options: dict[str, Any] = {name: True for name in ("with_indices", "with_rng") if getattr(value, name)}
            options |= {name: shown for name, shown in value.described.items() if name != "fn"}
            options |= {} if value.version is None else {"version": value.version}
            yield ", ".join([value.described["fn"], *(f"{name}={_short(shown)}" for name, shown in options.items())])
        elif is_dataclass(value):
            yield from _parameters(value)
        else:
            shown = name_of(value) if callable(value) else _short(value)
            yield shown if is_first and default is MISSING else f"{field.name}={shown}"
        is_first = False


def _short(value: Any) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 120 else text[:117] + "..."


def _reader_lines(plan: Plan) -> Iterator[str]:
    if plan.lanes is not None:
        yield f"lanes({plan.lanes})"
    if plan.ranks > 1 or plan.sharded_by is not None:
        yield f"shard({plan.ranks}, {plan.rank}{', mode=' + repr(plan.mode) if plan.mode == 'file' else ''})"
    if plan.epochs_per_loop != 1:
        yield f"repeat({'' if plan.epochs_per_loop is None else plan.epochs_per_loop})"


def _finds_lengths(pipeline: Pipeline) -> bool:
    """True if a pack would read the lengths of its rows now, to know whether it is counted."""
    if isinstance(pipeline.source, Mixture):
        return any(map(_finds_lengths, pipeline.source.parts))
    return pipeline.survey is None and pipeline.own_lengths is not None and not pipeline.own_lengths.is_known


def _numbers(plan: Plan, epoch: int) -> str:
    """The number of items where that is known by arithmetic alone, else why it is not known."""
    if _finds_lengths(plan.pipeline):
        return f"epoch {epoch}: the number of items is found out when it is first asked for"
    reason = plan.why_not_counted()
    if reason is not None:
        return f"epoch {epoch}: the number of items is unknown, because {reason}"
    if plan.epochs_per_loop is None or not plan.pipeline.uniform:
        return f"epoch {epoch}: the number of items is known" + (", and has no end" * (plan.epochs_per_loop is None))
    items = count("item", plan.length(epoch))
    return f"epoch {epoch}: {items}" + (f" for rank {plan.rank} of {plan.ranks}" if plan.ranks > 1 else "")
