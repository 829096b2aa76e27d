"""mix: several data sets as one, in exact proportions."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from midepoch._common.checks import check_integer
from midepoch._common.hashing import digest
from midepoch.dataset import Dataset
from midepoch.pipeline.draws import Stop
from midepoch.pipeline.mixture import STOPS, Mixture
from midepoch.pipeline.pipeline import Pipeline


def mix(
    datasets: Sequence[Dataset] | Mapping[str, Dataset],
    weights: Sequence[float] | Mapping[str, float] | None = None,
    seed: int = 0,
    stop: Stop = "first",
) -> Dataset:
    """Draw from several data sets in the proportion of their weights, by default equally.

    After any number of items each data set has given its exact share, to within one item, in every lane: a fixed
    schedule, no coin flips. ``stop="first"`` ends an epoch when the data set that is due has nothing left, ``"all"``
    when all have ended (those that are left share the draws), and ``"never"`` begins each again with its next epoch.
    Data sets keep their own shuffles and stages, and may be mixtures; shard, batch and load the mixture.

    A state of it can be loaded with other weights, with a data set more, or without one: each goes on from its own
    position. A dict gives the data sets names, by which they are known then.
    """
    if isinstance(datasets, Dataset) or not isinstance(datasets, Iterable):
        raise TypeError(f"mix takes a list or a dict of data sets, got {type(datasets).__name__}. Pass [a, b].")
    named = isinstance(datasets, Mapping)
    parts = list(datasets.values() if isinstance(datasets, Mapping) else datasets)
    if not parts:
        raise ValueError("mix needs at least one data set, got none.")
    for part in parts:
        _check_part(part)
    names = list(datasets) if isinstance(datasets, Mapping) else _names([part.plan.pipeline for part in parts])
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"The names of a mixture's data sets must be strings, got {names}.")
    if stop not in STOPS:
        raise ValueError(f"stop is {stop!r}; it can be {', '.join(map(repr, STOPS))}.")
    item_specs = {part.plan.pipeline.item_spec for part in parts}
    if len(item_specs) > 1:
        told = ", ".join(f"{form}{' batches' if batched else ''}" for form, batched in sorted(item_specs))
        raise ValueError(
            f"The data sets give items of different looks: {told}. Use the same with_format on all of them, and batch "
            "all of them or none; or use both on the mixture."
        )
    mixture = Mixture(
        parts=tuple(part.plan.pipeline for part in parts),
        names=tuple(names),
        weights=tuple(_weights(weights, names)),
        named=named,
        seed=check_integer("seed", seed, least=None),
        stop=stop,
    )
    return Dataset.from_source(mixture)


def _check_part(part: Dataset) -> None:
    if not isinstance(part, Dataset):
        raise TypeError(f"mix takes midepoch data sets, got {type(part).__name__}. Make one with midepoch.read(...).")
    for value, default, method in (
        (part.plan.ranks, 1, "shard"),
        (part.plan.lanes, None, "lanes"),
        (part.plan.passes, 1, "repeat"),
    ):
        if value != default:
            way = "Use stop='never' instead." if method == "repeat" else f"Use {method} on the mixture."
            raise ValueError(f"A data set in a mixture cannot have its own {method}(). {way}")


def _weights(weights: Sequence[float] | Mapping[str, float] | None, names: Sequence[str]) -> list[float]:
    if weights is None:
        return [1.0] * len(names)
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise ValueError(
                f"weights are for {', '.join(map(str, weights))}; the data sets are {', '.join(names)}. "
                "A dict of weights goes with a dict of data sets, of the same names."
            )
        weights = [weights[name] for name in names]
    try:
        found = [float(weight) for weight in weights]
    except (TypeError, ValueError) as error:
        raise TypeError(f"weights are {weights!r}; give a number for each data set.") from error
    if len(found) != len(names):
        raise ValueError(f"There are {len(found)} weights for {len(names)} data sets; give one for each.")
    if any(not isfinite(weight) or weight < 0 for weight in found) or not any(found):
        raise ValueError(f"weights are {found}; they must be finite, at least 0, and not all 0.")
    return found


def _names(pipelines: Sequence[Pipeline]) -> list[str]:
    """A name for each pipeline by what it is, so that the same one is known again at another place of the list."""
    names: list[str] = []
    seen: dict[str, int] = {}
    for pipeline in pipelines:
        name = f"{pipeline.source.label}~{digest(repr(pipeline.fingerprint).encode(), size=4).hex()}"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return names
