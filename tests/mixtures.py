"""Mixtures of in-memory pipelines."""

from dataclasses import replace

from in_memory import NumbersSource
from midepoch.pipeline.mixture import Mixture
from midepoch.pipeline.pipeline import Pipeline
from midepoch.pipeline.schedule import Weights
from midepoch.stages.functions import Filter, MapBatches


def part(name, rows=12, stage=None):
    of = Pipeline(source=NumbersSource(rows=rows, name=name))
    return of if stage is None else replace(of, stages=(stage(of),))


def odd(of):
    return Filter(call=of.call("filter", lambda item: item["id"] % 2))


def odd_rows(columns):
    rows = [number for number, one in enumerate(columns["id"]) if one % 2]
    return {name: [values[row] for row in rows] for name, values in columns.items()}


def odd_batches(of):
    return MapBatches(call=of.call("map", odd_rows), size=3)


def mixture(parts=None, weights=None, **options):
    parts = {"a": part("a"), "b": part("b", 6, odd_batches)} if parts is None else parts
    weights = Weights.constant([2, 1] if weights is None else weights)
    return Mixture(parts=tuple(parts.values()), names=tuple(parts), weights=weights, **({"named": True} | options))


def fingerprint(of):
    return Pipeline(source=of).fingerprint
