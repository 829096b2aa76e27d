"""A mixture of in-memory pipelines: its cursors and its lanes."""

import pytest

import midepoch as me
from midepoch.sources.source import EpochCut
from mixtures import mixture, part


def flow(of, lane=0, cursor=None, lanes=2):
    cut = of.cut(EpochCut(epoch=0, lanes=lanes))
    return cut.flow(of.open(lanes), lane, of.begin if cursor is None else cursor)


def test_a_state_with_appended_files_is_refused():
    with pytest.raises(me.CheckpointMismatchError, match="files that were appended, or its edits"):
        mixture().cut(EpochCut(epoch=0, lanes=1, appended=(((0, 1),),)))


def test_the_parts_that_are_left_share_the_draws_from_zero():
    of = mixture({"a": part("a", 4), "b": part("b", 20), "c": part("c", 20)}, [2, 1, 1], stop="all")
    positions = [of.part_positions(cursor) for _, cursor, _ in flow(of, lanes=1).as_single_items()]
    left = [(second.drawn, third.drawn) for first, second, third in positions if first.times_ended][:20]
    assert [sum(counts) for counts in left] == list(range(1, 21))
    assert all(abs(second - third) <= 1 for second, third in left)
