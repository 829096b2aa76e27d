"""mix and concat: several datasets as one, in exact proportions or one after the other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import isfinite
from typing import Any, Literal

import pyarrow as pa

from midepoch._common.checks import check_choice, check_integer, count, way_to_a_dataset
from midepoch._common.hashing import digest
from midepoch.dataset.dataset import Dataset, Item, from_source, plan_of, with_launched_shard
from midepoch.pipeline.draws import Stop
from midepoch.pipeline.mixture import STOPS, Mixture
from midepoch.pipeline.pipeline import Pipeline
from midepoch.pipeline.schedule import Weights, WeightSchedule, token_weights
from midepoch.pipeline.surveyed import mean_tokens
from midepoch.stages.columns import CastColumns, FillColumns, RenameColumns, Select
from midepoch.stages.functions import Map, MapBatches
from midepoch.stages.stage import Stage
from midepoch.values.features import with_field_features


def mix(
    datasets: Sequence[Dataset[Item]] | Mapping[str, Dataset[Item]],
    weights: Sequence[float] | Mapping[str, float] | WeightSchedule | None = None,
    seed: int = 0,
    stop: Stop = "first",
    *,
    by: Literal["items", "tokens"] = "items",
    column: str = "input_ids",
) -> Dataset[Item]:
    """Draw from several datasets in the proportion of their weights, by default equally.

        mixture = midepoch.mix({"web": dataset, "code": other}, weights=[0.7, 0.3], seed=42)

    ``datasets`` is a list, or a dict of datasets by name. ``weights`` are as many numbers, in a list or by name: at
    least 0, not all 0, and with any sum. A fixed schedule decides, not chance: after any number of items, in every
    lane, each dataset is within one item of its exact share. ``stop="first"`` ends an epoch when the dataset that is
    due has nothing left. ``"all"`` ends it when all datasets have ended; those that are left share the draws. With
    ``"never"`` each dataset starts over with its next epoch. Datasets keep their own shuffles and stages, and may be
    mixtures. Shard, batch and load the mixture. If one of the datasets takes its shard from the launcher by itself, the
    mixture does so instead of it.

    ``seed`` decides at which point of the schedule each lane begins, so that lanes do not all draw from the same
    dataset at once. It is also the seed of functions ``with_rng`` after the mixture. ``weights`` may be a
    :class:`WeightSchedule`, with weights that change with the number of items drawn.

    With ``by="tokens"`` weights are shares of tokens: each is divided by the mean length of the dataset's items, which
    are packs, padded batches, or rows with tokens in ``column``. Lengths must be known: call ``survey()`` on each
    dataset first. ``Loader.metrics()`` counts the same tokens. The quotients are rounded to integers with a sum of at
    most 65,536, which a state holds.

    A state can be loaded with other weights, with one dataset more or with one less: each dataset resumes from its own
    position. Pass a dict to name the datasets; a resume then finds each by its name.
    """
    parts, names, named = _parts("mix", datasets)
    check_choice("stop", stop, STOPS)
    check_choice("by", by, ("items", "tokens"))
    pipelines = tuple(plan_of(part).pipeline for part in parts)
    of_parts = _checked_weights(weights, names, stop)
    if by == "tokens":
        means = [mean_tokens(name, pipeline, column) for name, pipeline in zip(names, pipelines, strict=True)]
        of_parts = replace(of_parts, weights=tuple(token_weights(own, means) for own in of_parts.weights))
    mixture = Mixture(
        parts=pipelines,
        names=names,
        weights=of_parts,
        named=named,
        seed=check_integer("seed", seed, least=None),
        stop=stop,
        tokens_in=column,
    )
    return _joined(mixture, parts)


def concat(datasets: Sequence[Dataset[Item]] | Mapping[str, Dataset[Item]]) -> Dataset[Item]:
    """Read several datasets one after the other, as ``concatenate_datasets`` of `datasets` does.

        dataset = midepoch.concat([easy.shuffle(seed=1), hard.shuffle(seed=1)])

    Each keeps its own shuffle and stages. Every lane reads its share of the first dataset, then of the second, and so
    on, so that all ranks change over at about the same step. To shuffle the rows of several files together, open them
    together: ``midepoch.read([...])``. To interleave datasets, use :func:`mix`.

    Rows have the columns of all datasets. Those that a dataset does not have are None. Which columns a function adds is
    not known before it is called: if only some datasets have them, let a ``map`` add them to the others.

    A state can be loaded with one dataset more or less; those that it knows resume from their own positions. Pass a
    dict to name the datasets.
    """
    parts, names, named = _parts("concat", datasets)
    mixture = Mixture(
        parts=_with_all_columns([plan_of(part).pipeline for part in parts]),
        names=names,
        weights=Weights.constant([1.0] * len(parts)),
        named=named,
        stop="all",
        in_turn=True,
    )
    return _joined(mixture, parts)


def _joined(mixture: Mixture, parts: Sequence[Dataset]) -> Dataset:
    joined = from_source(mixture, Dataset)
    return with_launched_shard(joined) if any(plan_of(part).sharded_by == "launcher" for part in parts) else joined


def _parts(function: str, datasets: Any) -> tuple[list[Dataset], tuple[str, ...], bool]:
    """The datasets, which must fit together, their names, and whether the user named them."""
    if isinstance(datasets, Dataset) or not isinstance(datasets, Iterable):
        raise TypeError(f"{function} takes a list or a dict of datasets, got {type(datasets).__name__}. Pass [a, b].")
    parts = list(datasets.values() if isinstance(datasets, Mapping) else datasets)
    if not parts:
        raise ValueError(f"{function} needs at least one dataset, got none.")
    for part in parts:
        _check_part(function, part)
    names = list(datasets) if isinstance(datasets, Mapping) else _names([plan_of(part).pipeline for part in parts])
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"The names of a mixture's datasets must be strings, got {names}.")
    item_specs = {plan_of(part).pipeline.item_spec for part in parts}
    if len(item_specs) > 1:
        kinds = ", ".join(f"{form} {'batches' if batched else 'items'}" for form, batched in sorted(item_specs))
        raise ValueError(
            f"The datasets yield items of different kinds: {kinds}. Use the same with_format on all of them, and batch "
            "all of them or none; or use both on the mixture."
        )
    return parts, tuple(names), isinstance(datasets, Mapping)


def _check_part(function: str, part: Any) -> None:
    if not isinstance(part, Dataset):
        raise TypeError(f"{function} takes midepoch datasets, got {type(part).__name__}. {way_to_a_dataset(part)}")
    for value, default, method in (
        (1 if plan_of(part).sharded_by == "launcher" else plan_of(part).ranks, 1, "shard"),
        (plan_of(part).lanes, None, "lanes"),
        (plan_of(part).epochs_per_loop, 1, "repeat"),
    ):
        if value != default:
            is_mixed_repeat = method == "repeat" and function == "mix"
            remedy = "Use stop='never' instead." if is_mixed_repeat else f"Use {method} on the mixture."
            raise ValueError(f"A dataset in a mixture cannot have its own {method}(). {remedy}")


def _checked_weights(weights: Any, names: Sequence[str], stop: Stop) -> Weights:
    if not isinstance(weights, WeightSchedule):
        return Weights.constant(_weights(weights, names))
    if stop == "all":
        raise ValueError(
            "A WeightSchedule needs stop='first' or stop='never': with 'all' the shares change by themselves."
        )
    at = tuple(sorted(map(int, weights.weights)))
    of_parts = tuple(tuple(_weights(weights.weights[items], names)) for items in at)
    return Weights(at=at, weights=of_parts, ramp=bool(weights.ramp))


def _weights(weights: Any, names: Sequence[str]) -> list[float]:
    if weights is None:
        return [1.0] * len(names)
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise ValueError(
                f"weights are for {', '.join(map(str, weights))}; the datasets are {', '.join(names)}. "
                "A dict of weights needs a dict of datasets with the same names."
            )
        weights = [weights[name] for name in names]
    try:
        floats = [float(weight) for weight in weights]
    except (TypeError, ValueError) as error:
        raise TypeError(f"weights are {weights!r}; pass a number for each dataset.") from error
    if len(floats) != len(names):
        raise ValueError(f"Got {count('weight', len(floats))} for {count('dataset', len(names))}; pass one for each.")
    if any(not isfinite(weight) or weight < 0 for weight in floats) or not any(floats):
        raise ValueError(f"weights are {floats}; they must be finite, at least 0, and not all 0.")
    return floats


def _with_all_columns(pipelines: Sequence[Pipeline]) -> tuple[Pipeline, ...]:
    """Pipelines whose rows have the columns of all of them, as far as these are known."""
    known = list(map(_columns, pipelines))
    columns = _united(known)
    return tuple(
        pipeline if set(columns.names) <= set(schema.names) else pipeline.with_stages(FillColumns(columns=columns))
        for pipeline, schema in zip(pipelines, known, strict=True)
    )


def _columns(pipeline: Pipeline) -> pa.Schema:
    """The columns of the items, without those that a function adds."""
    if isinstance(pipeline.source, Mixture):
        schema = _united(map(_columns, pipeline.source.parts))
    else:
        schema = pa.schema([]) if pipeline.source.schema is None else with_field_features(pipeline.source.schema)
    for stage in pipeline.stages:
        schema = _columns_after(stage, schema)
    return schema


def _columns_after(stage: Stage, schema: pa.Schema) -> pa.Schema:
    """The known columns of a stage's outputs. It may also name columns that a function before it adds."""
    if isinstance(stage, Map | MapBatches):
        return pa.schema([one for one in schema if one.name not in stage.remove_columns])
    if isinstance(stage, RenameColumns):
        stage = replace(stage, names=tuple(pair for pair in stage.names if pair[0] in schema.names))
    elif isinstance(stage, CastColumns):
        stage = replace(stage, types=tuple(pair for pair in stage.types if pair[0] in schema.names))
    elif isinstance(stage, Select):
        stage = replace(stage, names=tuple(name for name in stage.names if name in schema.names))
    made = stage.item_schema(schema)
    return pa.schema([]) if made is None else made


def _united(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """All columns, in the order in which they first come."""
    columns: dict[str, pa.Field] = {}
    for one in chain.from_iterable(schemas):
        columns.setdefault(one.name, one)
    return pa.schema(list(columns.values()))


def _names(pipelines: Sequence[Pipeline]) -> list[str]:
    """Name each pipeline by what it is, so that it is recognised at another position of the list."""
    names: list[str] = []
    seen: dict[str, int] = {}
    for pipeline in pipelines:
        name = f"{pipeline.source.label}~{digest(repr(pipeline.fingerprint).encode(), size=4).hex()}"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return names
