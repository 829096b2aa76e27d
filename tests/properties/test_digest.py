"""The digest of an epoch, through resumes, resizes and batch sizes: what is delivered has it, and faults change it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from counted import mixtures, pipelines
from midepoch.checkpoint.state import LanePositions
from midepoch.dataset import Dataset, plan_of
from midepoch.delivery.reader import ReadLane
from midepoch.delivery.session import Session
from midepoch.delivery.trace import check_digest, predicted_digest
from midepoch.errors import DigestMismatchError
from midepoch.sources.ahead import LaneRows
from midepoch.testing import RankRun

LAYOUTS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4)


def digesting(dataset, ranks=1, rank=0):
    plan = plan_of(dataset)
    return Dataset(replace(plan, pipeline=replace(plan.pipeline, digest=True), ranks=ranks, rank=rank))


def run_epoch(dataset, layouts, epoch, draw):
    """Run an epoch on these layouts, and check the digest on every rank before each resume and at the end."""
    state, total = None, 0
    for number, (ranks, workers) in enumerate(layouts):
        of_ranks = [digesting(dataset, ranks, rank) for rank in range(ranks)]
        if state is None:
            of_ranks[0].set_epoch(epoch)
            state = of_ranks[0].state_dict()
        runs = [RankRun(of_rank, state, workers) for of_rank in of_ranks]
        steps = None if number == len(layouts) - 1 else draw(st.integers(0, 6))
        counts = [sum(1 for _ in run.deliver(steps)) for run in runs]
        total = sum(check_digest(run.progress) for run in runs) % (1 << 64)
        if len(set(counts)) > 1:  # some ranks have run dry, and the states of others do not hold for them
            return None if steps is not None else total
        state = json.loads(json.dumps(me.merge_states([run.state_dict() for run in runs])))
    return total


@settings(max_examples=25)
@given(build=st.one_of(pipelines(), mixtures()), layouts=LAYOUTS, epoch=st.integers(0, 2), data=st.data())
def test_E10_what_ranks_deliver_has_the_digest_that_was_predicted(files, build, layouts, epoch, data):
    dataset = build(files).lanes(data.draw(st.integers(1, 5)))
    total = run_epoch(dataset, layouts, epoch, data.draw)
    assert total is None or total == predicted_digest(plan_of(dataset), epoch)


def reads_a_row_twice(monkeypatch):
    """A reader takes the row of the first position again at the second."""
    init = LaneRows.__init__

    def planted(self, fetcher, order, *arguments):
        init(self, fetcher, OneRowTwice(order), *arguments)

    monkeypatch.setattr(LaneRows, "__init__", planted)


class OneRowTwice:
    """An order that is wrong at one position."""

    def __init__(self, order):
        self._order = order

    def __getattr__(self, name):
        return getattr(self._order, name)

    def rows(self, positions):
        return self._order.rows(np.where(positions == 1, 0, positions))


def repeats_an_item(monkeypatch):
    """A reader delivers an item again, in place of a later one."""
    take = ReadLane.take

    def planted(self, count):
        run = take(self, count)
        return run if run.hashes is None else run._replace(hashes=np.append(run.hashes[:-1], run.hashes[0]))

    monkeypatch.setattr(ReadLane, "take", planted)


def exchanges_ranks(monkeypatch):
    """All ranks take the turns of the first."""
    sequence = Session.sequence
    monkeypatch.setattr(Session, "sequence", lambda self, reader: sequence(self, 0))


def moves_a_cursor(monkeypatch):
    """A resume begins a row too late."""
    expand = LanePositions.expand

    def planted(self):
        positions = expand(self)
        return [position._replace(cursor=(position.cursor[0] + bool(position.cursor[0]),)) for position in positions]

    monkeypatch.setattr(LanePositions, "expand", planted)


@pytest.mark.parametrize("plant", [reads_a_row_twice, repeats_an_item, exchanges_ranks, moves_a_cursor])
def test_planted_faults_change_the_digest(files, monkeypatch, plant):
    dataset = me.read(files).shuffle(3).lanes(2)
    layouts = [(2, 1), (2, 1)]
    assert run_epoch(dataset, layouts, 0, lambda _: 6) == predicted_digest(plan_of(dataset), 0)
    expected = predicted_digest(plan_of(dataset), 0)
    plant(monkeypatch)
    with pytest.raises((DigestMismatchError, AssertionError), match=r"digest differs|assert"):
        assert run_epoch(dataset, layouts, 0, lambda _: 6) == expected
