"""A pipeline of an in-memory source: what it says of its items, and its lanes from any position."""

from dataclasses import replace

import pyarrow as pa

from in_memory import SCHEMA, NumbersSource
from midepoch.pipeline.pipeline import Pipeline
from midepoch.stages.batch import Batch
from midepoch.stages.columns import Convert, Select
from midepoch.stages.functions import Filter, Map, MapBatches
from midepoch.stages.skip import SkipErrors, SkipLog

EMPTY = Pipeline(source=NumbersSource(rows=20))


def is_even(item):
    return item["id"] % 2 == 0


def even_mask(columns):
    return [number % 2 == 0 for number in columns["id"]]


def same(item):
    return item


def twice(columns):
    return {name: [value for value in values for _ in range(2)] for name, values in columns.items()}


MAP = Map(call=EMPTY.call("map", same))
FILTER = Filter(call=EMPTY.call("filter", is_even))
MAP_BATCHES = MapBatches(call=EMPTY.call("map", twice), size=3)
BATCHED_FILTER = Filter(call=EMPTY.call("filter", even_mask), size=3)


def pipeline(*stages):
    return replace(EMPTY, stages=stages)


def test_the_cursor_has_a_number_for_each_stage_with_many_outputs():
    assert pipeline(MAP, Batch(size=2)).begin == (0,)
    assert pipeline(MAP_BATCHES, Batch(size=2), BATCHED_FILTER, MAP_BATCHES).begin == (0, 0, 0)
    skipping = SkipErrors(call=EMPTY.call("process", same), skip_log=SkipLog())
    checks = 2
    assert pipeline(MAP_BATCHES, skipping, MAP_BATCHES, MAP, MAP_BATCHES).begin == (0,) * (1 + 3 + checks)
    assert pipeline(skipping.checking(True), MAP_BATCHES).begin == pipeline(skipping, MAP_BATCHES).begin
    assert pipeline(replace(skipping, skip_log=None), MAP_BATCHES).begin == (0, 0)


def test_the_schema_and_whether_a_mixture_can_interleave_runs():
    text = pa.schema([("text", pa.string())])
    for stages, schema, run_schema in (
        ((), SCHEMA, SCHEMA),
        ((Convert(form="numpy"), Select(names=("text",))), text, text),
        ((FILTER,), SCHEMA, None),
        ((BATCHED_FILTER, Select(names=("text",))), text, None),
        ((MAP,), None, None),
        ((Batch(size=2),), None, None),
    ):
        assert (pipeline(*stages).schema, pipeline(*stages).run_schema) == (schema, run_schema)


def test_the_random_numbers_of_a_function_do_not_depend_on_stages_that_change_no_row():
    salts = [
        pipeline(*stages).call("map", same).salt for stages in ((), (Convert(form="numpy"), Batch(size=2)), (MAP,))
    ]
    assert salts == [1, 1, 2]
    assert pipeline(MAP, Batch(size=2)).call("map", same).number == 3
