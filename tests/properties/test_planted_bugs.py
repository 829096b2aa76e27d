"""The tests are themselves tested: each of these mistakes, planted, must be found."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

import midepoch as me
from midepoch.checkpoint import state
from midepoch.checkpoint.lanes import LaneAssignment, LanePosition
from midepoch.delivery import progress, session
from midepoch.delivery.plan import Plan
from midepoch.pipeline import mixture
from midepoch.pipeline.draws import Draws, PartPosition
from midepoch.stages import batch, flow
from midepoch.testing import assert_elastic, assert_resumes
from worlds import is_kept, spread, write_files


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", [20, 7, 33])


@pytest.fixture
def uniform(folder):
    return me.read(folder).shuffle(1, window=20).lanes(3).batch(2)


@pytest.fixture
def filtering(folder):
    return me.read(folder).shuffle(1, window=20).lanes(3).filter(is_kept)


@pytest.fixture
def spreading(folder):
    options = {"batched": True, "batch_size": 5, "remove_columns": ["text", "tokens", "maybe"]}
    return me.read(folder).lanes(2).map(spread, **options)


@pytest.fixture
def mixed(tmp_path):
    parts = [write_files(tmp_path / name, sizes) for name, sizes in (("a", [30]), ("b", [7, 13]), ("c", [20]))]
    return me.mix([me.read(part) for part in parts], [5, 2, 1], stop="all").lanes(2)


@pytest.fixture
def mixed_items(mixed):
    """The same drawn item by item, since a part has a function of its own."""
    source = mixed.plan.pipeline.source
    parts = [me.Dataset(Plan(pipeline=part)) for part in source.parts]
    return me.mix([parts[0].filter(is_kept), *parts[1:]], [5, 2, 1], stop="all").lanes(2)


def prove(dataset):
    assert_resumes(dataset)
    assert_elastic(dataset, [(2, 2), (3, 1), (1, 3), (4, 1)], steps=2)


def test_without_a_planted_bug_all_is_well(uniform, filtering, spreading, mixed, mixed_items):
    for dataset in (uniform, filtering, spreading, mixed, mixed_items):
        prove(dataset)


FOUND = (
    r"differs from the uninterrupted run|is missing from|is one too many in|The state is damaged \(.*no turn was taken"
)


def found(dataset):
    with pytest.raises((AssertionError, me.CheckpointMismatchError), match=FOUND):
        prove(dataset)


@pytest.mark.parametrize("error", [-1, 1])
def test_a_uniform_cursor_that_is_off_by_one_row(uniform, monkeypatch, error):
    right = state.LanePositions.advanced

    def wrong(self, turn, turns, rows):
        moved = right(self, turn, turns, rows)
        shifted = [(count, LanePosition((max(0, at.cursor[0] + error),))) for count, at in moved.runs]
        return state.LanePositions.pack(shifted)

    monkeypatch.setattr(state.LanePositions, "advanced", wrong)
    found(uniform)


@pytest.mark.parametrize("error", [-1, 1])
def test_a_turn_that_is_off_by_one(uniform, monkeypatch, error):
    right = session.Session.after
    monkeypatch.setattr(
        session.Session, "after", lambda self, items: replace(at := right(self, items), turn=max(0, at.turn + error))
    )
    found(uniform)


@pytest.mark.parametrize("error", [-1, 1])
def test_a_filters_cursor_that_is_off_by_one_row(filtering, monkeypatch, error):
    right = LanePosition.after

    def wrong(self, delivered, cursor):
        return right(self, delivered, (max(0, cursor[0] + error), *cursor[1:]) if cursor else cursor)

    monkeypatch.setattr(LanePosition, "after", wrong)
    found(filtering)


def test_a_group_whose_delivered_outputs_are_not_dropped(spreading, monkeypatch):
    right = batch._by_group
    monkeypatch.setattr(
        batch, "_by_group", lambda inputs, size, cursor, *rest: right(inputs, size, (*cursor[:-1], 0), *rest)
    )
    found(spreading)


def test_a_group_that_forgets_where_it_began(spreading, monkeypatch):
    right = flow.outputs_of
    monkeypatch.setattr(batch, "outputs_of", lambda group, start, rows: right(group, (start[0] + 1, *start[1:]), rows))
    found(spreading)


def test_readers_that_start_at_a_neighbours_turn(filtering, monkeypatch):
    right = LaneAssignment.phase
    monkeypatch.setattr(
        LaneAssignment, "phase", lambda self, reader, slot: (right(self, reader, slot) + 1) % self.stride
    )
    found(filtering)


def test_a_state_that_runs_ahead_of_what_was_delivered(filtering, monkeypatch):
    right = progress.Progress.follow

    def eager(self, steps):
        waiting = []
        for item in chain.from_iterable(right(self, steps)):
            waiting.append(item)
            if len(waiting) > 1:
                yield (waiting.pop(0),)
        yield waiting

    monkeypatch.setattr(progress.Progress, "follow", eager)
    found(filtering)


MIXTURES = ["mixed", "mixed_items"]


def plant_in_cursors(monkeypatch, wrong):
    """Read every cursor of a mixture wrongly, but for the one at the beginning."""
    right = mixture.Mixture.part_positions

    def read(self, cursor):
        positions = right(self, cursor)
        return wrong(positions) if any(cursor) else positions

    monkeypatch.setattr(mixture.Mixture, "part_positions", read)
    monkeypatch.setattr(mixture.MixtureLanes, "reaches", lambda *_: True)


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("error", [-1, 1])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_schedules_count_that_is_off_by_one(request, monkeypatch, name, error, part):
    def wrong(positions):
        shifted = positions[part]._replace(drawn=max(0, positions[part].drawn + error))
        return [*positions[:part], shifted, *positions[part + 1 :]]

    plant_in_cursors(monkeypatch, wrong)
    found(request.getfixturevalue(name))


@pytest.mark.parametrize("name", MIXTURES)
def test_the_cursors_of_two_parts_swapped(request, monkeypatch, name):
    def wrong(positions):
        first, second, *others = positions
        return [first._replace(cursor=second.cursor), second._replace(cursor=first.cursor), *others]

    plant_in_cursors(monkeypatch, wrong)
    found(request.getfixturevalue(name))


@pytest.mark.parametrize("name", MIXTURES)
def test_a_part_that_forgets_that_it_has_ended(request, monkeypatch, name):
    plant_in_cursors(monkeypatch, lambda positions: [PartPosition(drawn, 0, cursor) for drawn, _, cursor in positions])
    found(request.getfixturevalue(name))


@pytest.mark.parametrize("error", [-1, 1])
def test_runs_of_a_mixture_with_cursors_one_row_off(mixed, monkeypatch, error):
    right = Draws._interleave

    def wrong(self, parts, waiting):
        run = right(self, parts, waiting)
        return replace(run, cursors=run.cursors + np.array([0, 0, error, 0, 0, 0, 0, 0, 0]))

    monkeypatch.setattr(Draws, "_interleave", wrong)
    monkeypatch.setattr(mixture.MixtureLanes, "reaches", lambda *_: True)
    monkeypatch.setattr(state, "_integer", lambda value, **_: max(0, value))
    with pytest.raises(AssertionError):
        prove(mixed)
