"""The digest of an epoch, through resumes, resizes and batch sizes: what is delivered has it, and faults change it."""

import json
from dataclasses import replace
from itertools import islice, zip_longest

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from counted import mixtures, pipelines, write_files
from midepoch.checkpoint.state import LanePositions
from midepoch.dataset import Dataset, plan_of
from midepoch.delivery.reader import ReadLane
from midepoch.delivery.session import Session
from midepoch.delivery.trace import check_digest, predicted_digest
from midepoch.errors import DigestMismatchError
from midepoch.sources.ahead import LaneRows
from midepoch.testing import RankRun

LAYOUTS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    return folder


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


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Documents that are short, long or empty, so that some of them begin several packs."""
    folder = tmp_path_factory.mktemp("documents")
    lengths = np.random.default_rng(1).integers(0, 25, 40) * (np.arange(40) % 7 != 0)
    tokens = [[100 * document + token for token in range(length)] for document, length in enumerate(lengths)]
    table = pa.table({"input_ids": pa.array(tokens, pa.list_(pa.int32()))})
    pq.write_table(table, folder / "documents.parquet", row_group_size=9)
    return folder


@st.composite
def combined_parts(draw, depth=2):
    """A mixture or a concatenation, maybe of such ones."""
    parts = [
        draw(combined_parts(depth=depth - 1)) if depth > 1 and draw(st.integers(0, 3)) == 0 else draw(parts_of_a_file())
        for _ in range(draw(st.integers(2, 3)))
    ]
    stop = draw(st.sampled_from(["first", "all", "one after the other"]))
    weights, seed = draw(st.lists(st.sampled_from([1, 2, 5]), min_size=3, max_size=3)), draw(st.integers(0, 3))

    def build(folder):
        datasets = [part(folder) for part in parts]
        if stop == "one after the other":
            return me.concat(datasets)
        return me.mix(datasets, weights=weights[: len(datasets)], seed=seed, stop=stop)

    return build


@st.composite
def parts_of_a_file(draw):
    level, begin, rows = draw(st.sampled_from(["row", "block"])), draw(st.integers(0, 30)), draw(st.integers(1, 10))
    return lambda folder: me.read(folder).shuffle(3, level=level).skip(begin).take(rows)


@settings(max_examples=40)
@given(
    build=combined_parts(),
    strategy=st.sampled_from(["concat", "concat", "concat", "best_fit", "balanced"]),
    length=st.integers(4, 14),
    overlong=st.sampled_from(["cut", "drop"]),
    eos=st.sampled_from([None, 7]),
    lanes=st.integers(1, 4),
    legs=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), min_size=1, max_size=3),
    epoch=st.integers(0, 1),
)
def test_E10_digests_of_mixtures_cut_into_packs(documents, build, strategy, length, overlong, eos, lanes, legs, epoch):
    options = {} if strategy == "concat" else {"window": 8}
    dataset = build(documents).pack(length, strategy=strategy, overlong=overlong, eos=eos, **options).survey()
    dataset = dataset.lanes(lanes).with_format("python")
    dataset.set_epoch(epoch)
    state, packs, expected = dataset.state_dict(), [], list(dataset)
    for leg, (ranks, steps) in enumerate(legs, 1):
        steps = None if leg == len(legs) else min(steps, max(0, len(expected) - len(packs) - 1) // ranks)
        loaders = [me.Loader(dataset.shard(ranks, rank), digest=True, even=None) for rank in range(ranks)]
        of_ranks = []
        for loader in loaders:
            loader.load_state_dict(state)
            of_ranks.append([])
            for pack in islice(loader, steps):
                of_ranks[-1].append(pack)
                loader.check_digest()
        packs += [pack for step in zip_longest(*of_ranks) for pack in step if pack is not None]
        total = sum(loader.digest() for loader in loaders) % (1 << 64)
        state = json.loads(json.dumps(me.merge_states([loader.state_dict() for loader in loaders])))
    assert packs == expected
    assert total == dataset.digest(epoch=epoch)


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
        return run._replace(keys=np.append(run.keys[:-1], run.keys[0]))

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
    with pytest.raises((DigestMismatchError, AssertionError), match=r"lanes differ|assert"):
        assert run_epoch(dataset, layouts, 0, lambda _: 6) == expected
