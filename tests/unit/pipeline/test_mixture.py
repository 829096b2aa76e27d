"""A mixture of in-memory pipelines: its cursors and its lanes."""

import pytest

import midepoch as me
from in_memory import SCHEMA
from midepoch.pipeline.draws import PartPosition
from midepoch.pipeline.mixture import join_positions
from midepoch.sources.source import EpochCut
from midepoch.stages.functions import Filter
from mixtures import mixture, odd, odd_batches, part


def flow(of, lane=0, cursor=None, lanes=2):
    cut = of.cut(EpochCut(epoch=0, lanes=lanes))
    return cut.flow(of.open(lanes), lane, of.begin if cursor is None else cursor)


def test_a_cursor_holds_the_position_in_each_part():
    of = mixture()
    assert of.begin == (0, 0, 0, 0, 0, 0, 0)
    positions = [PartPosition(5, 1, (7,)), PartPosition(3, 0, (8, 2))]
    assert join_positions(positions) == (5, 1, 7, 3, 0, 8, 2)
    assert of.part_positions((5, 1, 7, 3, 0, 8, 2)) == positions


@pytest.mark.parametrize("stop", ["first", "all"])
@pytest.mark.parametrize("other", [None, odd, odd_batches])
def test_a_lane_resumes_after_any_item(stop, other):
    of = mixture({"a": part("a"), "b": part("b", 8, other)}, stop=stop)
    whole = list(flow(of, lane=1).as_single_items())
    assert whole
    for number, (_, cursor, _) in enumerate(whole, start=1):
        assert list(flow(of, 1, cursor).as_single_items()) == whole[number:]


def test_equal_rows_are_drawn_in_runs_and_give_the_same_items():
    plain = mixture({"a": part("a"), "b": part("b")}, stop="all")
    kept = mixture({"a": part("a"), "b": part("b", stage=lambda of: Filter(call=of.call("filter", bool)))}, stop="all")
    assert plain.schema.equals(SCHEMA)
    assert kept.schema is None
    assert (flow(plain).row_runs is None, flow(kept).row_runs is None) == (False, True)
    assert list(flow(plain).as_single_items()) == list(flow(kept).as_single_items())


@pytest.mark.parametrize("cursor", [(0, 0, 99, 0, 0, 0, 0), (9, 0, 1, 0, 0, 0, 0)])
def test_a_position_that_no_run_can_have_reached_is_known(cursor):
    cut = mixture().cut(EpochCut(epoch=0, lanes=2))
    assert cut.reaches(0, mixture().begin, 1)
    assert not cut.reaches(0, cursor, 1)


def test_a_state_with_appended_files_is_refused():
    with pytest.raises(me.CheckpointMismatchError, match="files that were appended, or its edits"):
        mixture().cut(EpochCut(epoch=0, lanes=1, appended=(((0, 1),),)))


def test_the_parts_that_are_left_share_the_draws_from_zero():
    of = mixture({"a": part("a", 4), "b": part("b", 20), "c": part("c", 20)}, [2, 1, 1], stop="all")
    positions = [of.part_positions(cursor) for _, cursor, _ in flow(of, lanes=1).as_single_items()]
    left = [(second.drawn, third.drawn) for first, second, third in positions if first.times_ended][:20]
    assert [sum(counts) for counts in left] == list(range(1, 21))
    assert all(abs(second - third) <= 1 for second, third in left)
