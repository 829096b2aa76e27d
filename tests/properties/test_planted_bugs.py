"""The tests are themselves tested: each of these mistakes, planted, must be found."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

import midepoch as me
from midepoch.checkpoint import state
from midepoch.checkpoint.lanes import LaneAssignment, LanePosition
from midepoch.dataset import plan_of, with_plan
from midepoch.delivery import passes
from midepoch.delivery.plan import Plan
from midepoch.delivery.rounds import Rounds
from midepoch.delivery.session import Session
from midepoch.pipeline import mixture
from midepoch.pipeline.draws import Draws, PartPosition
from midepoch.pipeline.pipeline import Pipeline
from midepoch.pipeline.schedule import DrawTable
from midepoch.stages import flow, functions
from midepoch.stages.counted import Groups, Kept
from midepoch.stages.pack.stream import PlannedStream
from midepoch.stages.pack.windows import PlannedWindows
from midepoch.testing import assert_elastic, assert_resumes, same
from surveys import surveyed
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
    source = plan_of(mixed).pipeline.source
    parts = [me.Dataset(Plan(pipeline=part)) for part in source.parts]
    return me.mix([parts[0].filter(is_kept), *parts[1:]], [5, 2, 1], stop="all").lanes(2)


def prove(dataset):
    assert_resumes(dataset)
    assert_elastic(dataset, [(2, 2), (3, 1), (1, 3), (4, 1)], steps=2)


def test_without_a_planted_bug_all_is_well(uniform, filtering, spreading, mixed, mixed_items):
    for dataset in (uniform, filtering, spreading, mixed, mixed_items):
        prove(dataset)


FOUND = (
    r"differs from the uninterrupted run|is missing from|is one too many in|The state is damaged \(.*no turn was taken|"
    r"is after the lane's end"
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
    right = Session.after
    monkeypatch.setattr(
        Session, "after", lambda self, items: replace(at := right(self, items), turn=max(0, at.turn + error))
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
    right = flow.resume_groups
    monkeypatch.setattr(
        functions, "resume_groups", lambda groups, cursor, *rest: right(groups, (*cursor[:-1], 0), *rest)
    )
    found(spreading)


def test_a_group_that_forgets_where_it_began(spreading, monkeypatch):
    right = flow.Group.cursors_and_keys

    def wrong(group, outputs):
        return right(group._replace(start=(group.start[0] + 1, *group.start[1:])), outputs)

    monkeypatch.setattr(flow.Group, "cursors_and_keys", wrong)
    found(spreading)


def test_readers_that_start_at_a_neighbours_turn(filtering, monkeypatch):
    right = LaneAssignment.phase
    monkeypatch.setattr(
        LaneAssignment, "phase", lambda self, reader, slot: (right(self, reader, slot) + 1) % self.stride
    )
    found(filtering)


def test_a_state_that_runs_ahead_of_what_was_delivered(filtering, monkeypatch):
    right = passes.Progress.follow

    def eager(self, steps):
        waiting = []
        for item in chain.from_iterable(right(self, steps)):
            waiting.append(item)
            if len(waiting) > 1:
                yield (waiting.pop(0),)
        yield waiting

    monkeypatch.setattr(passes.Progress, "follow", eager)
    found(filtering)


MIXTURES = ["mixed", "mixed_items"]


def plant_in_cursors(monkeypatch, wrong):
    """Read every cursor of a mixture wrongly, but for the one at the beginning."""
    right = mixture.Mixture.part_positions

    def read(self, cursor):
        positions = right(self, cursor)
        return wrong(positions) if any(cursor) else positions

    monkeypatch.setattr(mixture.Mixture, "part_positions", read)


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
    monkeypatch.setattr(Pipeline, "counted", property(lambda pipeline: pipeline.uniform))  # counts take no cursors
    monkeypatch.setattr(mixture.MixtureLanes, "reaches", lambda *_: True)
    monkeypatch.setattr(state, "_integer", lambda value, **_: max(0, value))
    with pytest.raises(AssertionError):
        prove(mixed)


COUNTED = ["kept", "packed", "streamed", "drawn"]


@pytest.fixture
def pairs(folder):
    """Pipelines with a survey and without, by name."""
    rows = me.read(folder).shuffle(1, window=20)
    kept = rows.filter(is_kept)
    of_rows = {
        "kept": kept,
        "packed": kept.pack(5, column="tokens", window=4),
        "streamed": kept.pack(5, column="tokens", strategy="concat"),
    }
    pairs = {name: (surveyed(dataset), dataset) for name, dataset in of_rows.items()}
    parts = [rows.take(rows_of_part).filter(is_kept) for rows_of_part in (12, 20, 16)]
    pairs["drawn"] = tuple(me.mix(both, [3, 2, 2], stop="all") for both in (map(surveyed, parts), parts))
    return {name: tuple(dataset.lanes(3) for dataset in pair) for name, pair in pairs.items()}


def prove_counted(dataset, plain):
    """Counted items are those of the pipeline without a survey, and the state of any rank restores all."""
    assert dataset.counted
    assert same(list(me.Dataset(plan_of(dataset))), list(me.Dataset(plan_of(plain)))), (
        "differs from the uninterrupted run"
    )
    prove(dataset)


def found_counted(dataset, plain):
    """Counts that are wrong lead to other items, to an error that says so, or to items that do not exist."""
    errors = (AssertionError, IndexError, RuntimeError, ValueError, me.CheckpointMismatchError, me.SurveyMismatchError)
    with pytest.raises(errors):
        prove_counted(dataset, plain)


@pytest.mark.parametrize("name", COUNTED)
def test_without_a_planted_bug_what_is_counted_is_well(pairs, name):
    prove_counted(*pairs[name])


def changed_survey(dataset, **arrays):
    pipeline = plan_of(dataset).pipeline
    survey = replace(pipeline.survey, **arrays)
    return with_plan(dataset, replace(plan_of(dataset), pipeline=replace(pipeline, survey=survey)))


@pytest.mark.parametrize(
    ("name", "row"), [("kept", 21), ("kept", 22), ("packed", 21), ("packed", 22), ("streamed", 21)]
)
def test_a_bit_of_the_survey_flipped(pairs, name, row):
    dataset, plain = pairs[name]
    mask = plan_of(dataset).pipeline.survey.mask.copy()
    mask[row] = not mask[row]
    found_counted(changed_survey(dataset, mask=mask), plain)


@pytest.mark.parametrize("name", ["packed", "streamed"])
@pytest.mark.parametrize("error", [-1, 1])
def test_a_length_of_the_survey_off_by_one(pairs, name, error):
    dataset, plain = pairs[name]
    lengths = plan_of(dataset).pipeline.survey.row_lengths.copy()
    lengths[23] += error
    found_counted(changed_survey(dataset, row_lengths=lengths), plain)


def test_the_plan_of_the_window_before(pairs, monkeypatch):
    right = PlannedWindows._look_up
    monkeypatch.setattr(PlannedWindows, "_look_up", lambda self, group: right(self, max(0, group - 1)))
    found_counted(*pairs["packed"])


@pytest.mark.parametrize("error", [-1, 1])
def test_a_counted_schedule_off_by_one(pairs, monkeypatch, error):
    right = DrawTable.parts
    monkeypatch.setattr(DrawTable, "parts", lambda self, first, stop: right(self, first + error, stop + error))
    found_counted(*pairs["drawn"])


@pytest.mark.parametrize("error", [-1, 1])
def test_an_item_of_a_part_found_one_draw_off(pairs, monkeypatch, error):
    right = DrawTable.draw_of
    monkeypatch.setattr(DrawTable, "draw_of", lambda self, part, number: right(self, part, number) + error)
    found_counted(*pairs["drawn"])


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("error", [-1, 1])
def test_a_segment_that_ends_one_round_off(pairs, monkeypatch, name, error):
    right_has, right_total = Session.has, Session.total
    monkeypatch.setattr(Session, "has", lambda self, lane, ordinal: right_has(self, lane, max(0, ordinal - error)))
    monkeypatch.setattr(
        Session, "total", lambda self, lane: max(0, total + error) if (total := right_total(self, lane)) else 0
    )
    found_counted(*pairs[name])


@pytest.mark.parametrize("name", COUNTED)
def test_wanted_items_one_off(pairs, monkeypatch, name):
    right = Rounds.runs

    def wrong(self, numbers, most_rounds):
        for run in right(self, numbers, most_rounds):
            yield run._replace(ordinals=[ordinal + 1 for ordinal in run.ordinals])

    monkeypatch.setattr(Rounds, "runs", wrong)
    found_counted(*pairs[name])


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("error", [-1, 1])
def test_a_counted_turn_that_is_off_by_one(pairs, monkeypatch, name, error):
    right = Session._turn_after
    monkeypatch.setattr(Session, "_turn_after", lambda self, number: max(0, right(self, number) + error))
    found_counted(*pairs[name])


@pytest.mark.parametrize(("name", "kind"), [("kept", Kept), ("packed", Groups), ("streamed", PlannedStream)])
@pytest.mark.parametrize("error", [-1, 1])
def test_a_counted_cursor_that_is_off_by_one(pairs, monkeypatch, name, kind, error):
    right = kind.cursor

    def wrong(self, items):
        *before, last = right(self, items)
        return (*before, max(0, last + error))

    monkeypatch.setattr(kind, "cursor", wrong)
    found_counted(*pairs[name])
