"""A pipeline of an in-memory source: what it says of its items, and its lanes from any position."""

from dataclasses import replace

import pyarrow as pa
import pytest

import midepoch as me
from in_memory import SCHEMA, NumbersSource, Opened, ids_of
from midepoch.checkpoint.lanes import LanePosition
from midepoch.checkpoint.state import LanePositions, State
from midepoch.pipeline.adopt import adopt
from midepoch.pipeline.pipeline import Pipeline, PipelineLanes
from midepoch.sources.source import EpochCut
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


def lanes(of, count=2):
    return PipelineLanes(of, EpochCut(epoch=0, lanes=count))


def test_the_number_of_items_of_a_lane():
    two = pipeline(Batch(size=3), Batch(size=2, drop_last=True))
    assert [two.items(rows) for rows in (-1, 0, 5, 6, 12, 14)] == [0, 0, 1, 1, 2, 2]
    assert two.items(14, item_rows=4) == 4, "with another number of rows an item, the last may have fewer"


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


def test_a_state_remembers_a_batch_size_only_if_cursors_count_its_batches():
    assert pipeline(Batch(size=2)).describe() == []
    assert [each["op"] for each in pipeline(Batch(size=2), MAP_BATCHES).describe()] == ["batch", "map"]
    assert [each["op"] for each in pipeline(MAP_BATCHES, Batch(size=2)).describe()] == ["map"]


def test_rows_are_named_up_to_the_first_stage_that_makes_groups():
    assert pipeline(MAP, FILTER).context(0).rows_until == 3
    assert pipeline(MAP, Batch(size=2), MAP).context(0).rows_until == 2
    assert pipeline(MAP_BATCHES, MAP).context(0).rows_until == 1


def test_items_that_were_delivered_ahead_are_left_out():
    of = pipeline(MAP)
    opened = lanes(of).open(Opened(), 0, LanePosition((2,), delivered_ahead=(1, 3)), 0, 1)
    assert ids_of(opened) == [2, 4, 6, 7, 8, 9]


def state_at(*cursors):
    return State(positions=LanePositions.pack([(1, LanePosition(cursor)) for cursor in cursors]))


def test_a_state_of_the_same_pipeline_is_adopted_unchanged():
    of, state = pipeline(FILTER), state_at((4,), (7,))
    assert adopt(of, state, pipeline(FILTER, Batch(size=3)).fingerprint) == state


@pytest.mark.parametrize(
    ("fingerprint", "message"),
    [
        (None, "has no fingerprint"),
        ({"data": EMPTY.source.fingerprint}, "has no fingerprint"),
        (
            pipeline().fingerprint,
            "The pipeline is not the one of the checkpoint: .*filter.* start over without the state",
        ),
        ({"data": EMPTY.source.fingerprint, "pipeline": 3}, "its description in the state is damaged"),
    ],
)
def test_a_state_of_another_pipeline_is_refused(fingerprint, message):
    with pytest.raises(me.CheckpointMismatchError, match=message):
        adopt(pipeline(FILTER), state_at((4,)), fingerprint)


def test_cursors_of_another_width_are_refused():
    with pytest.raises(me.CheckpointMismatchError, match=r"cursors do not have 1 number\. Load an earlier checkpoint"):
        adopt(pipeline(FILTER), state_at((4, 0)), pipeline(FILTER).fingerprint)
