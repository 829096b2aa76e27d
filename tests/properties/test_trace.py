"""Traces against recorded runs: what every rank received at every step, through resumes, resizes and batch sizes."""

import json
from unittest.mock import patch

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import midepoch as me
from counted import FIRST_ROWS, length_of, mixtures, pipelines
from legs import on
from midepoch.checkpoint.history import SessionRecord
from midepoch.dataset import plan_of, position_of
from midepoch.delivery.session import Session
from midepoch.delivery.trace import find, trace
from midepoch.testing import RankRun

LAYOUTS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4)


def content(item, batched):
    """What identifies the rows of an item: the tokens of each pack, the id of each row."""
    if "attention_mask" in item:  # a padded batch, or several
        batches = [item] if hasattr(item["input_ids"], "shape") else unbatched(item)
        return [row[:size].tolist() for one in batches for row, size in zip(*padded(one), strict=True)]
    if batched:
        columns = item["input_ids"] if "cu_seqlens" in item else [[number] for number in item["id"]]
        return [list(map(int, tokens)) for tokens in columns]
    return [list(map(int, item["input_ids"])) if "cu_seqlens" in item else [item["id"]]]


def padded(batch):
    return batch["input_ids"], batch["lengths"]


def unbatched(batches):
    return [dict(zip(batches, values, strict=True)) for values in zip(*batches.values(), strict=True)]


def traced_content(lines, eos):
    """The same, as the lines of a trace say it."""
    places = {}
    for line in lines:
        number = FIRST_ROWS[line["file"]] + line["row"]
        tokens = [number]
        if line["start"] is not None:
            document = [number] * length_of(number) + ([] if eos is None else [eos])
            tokens = document[line["start"] : line["stop"]]
            assert line["document"] == len(places.get((line["place"], "documents"), ()))
            places.setdefault((line["place"], "documents"), []).append(number)
        places.setdefault(line["place"], []).extend(tokens)
    found = {place: tokens for place, tokens in places.items() if isinstance(place, int)}
    gaps = lines[0]["start"] is not None and not any(line["document"] for line in lines)  # batches of padded batches
    assert gaps or sorted(found) == list(range(len(found)))
    return [found[place] for place in sorted(found)]


def eos_of(dataset):
    specs = [stage.spec for stage in plan_of(dataset).pipeline.stages if hasattr(stage, "spec")]
    return specs[0].eos if specs else None


def recorded_run(build, layouts, epoch, data):
    """Run an epoch on these layouts, each with its dataset. What each rank received, and the state before the last."""
    received, state, first_step = {}, None, 0
    for number, (ranks, workers) in enumerate(layouts):
        dataset = build(number)
        if state is None:
            dataset.set_epoch(epoch)
            state = dataset.state_dict()
        runs = [RankRun(on(dataset, ranks, rank), state, workers) for rank in range(ranks)]
        steps = None if number == len(layouts) - 1 else data.draw(st.integers(0, 6), label=f"steps {number}")
        delivered = [[item for _, item in run.deliver(steps)] for run in runs]
        batched = plan_of(dataset).pipeline.item_spec[1]
        for rank, items in enumerate(delivered):
            for step, item in enumerate(items):
                received[first_step + step, rank] = content(item, batched)
        if steps is not None:
            counts = list(map(len, delivered))
            state = json.loads(json.dumps(runs[counts.index(max(counts))].state_dict()))
            if state["epoch"] != epoch or len(set(counts)) > 1:
                return received, None, None
        first_step += max(map(len, delivered))
    last = on(dataset, layouts[-1][0], 0)
    last.load_state_dict(state)
    return received, first_step, position_of(last).latest(plan_of(last))


def check_traced(build, layouts, epoch, data):
    received, steps, run = recorded_run(build, layouts, epoch, data)
    if run is None:  # the epoch ended in an earlier session
        return
    eos = eos_of(build(0))
    note(f"history {run.progress().session.start.history}")
    lines = []
    for step in range(steps):
        of_step = trace(run, step, epoch=epoch).to_pylist()
        lines += of_step
        for rank in {line["rank"] for line in of_step} | {rank for at, rank in received if at == step}:
            got = traced_content([line for line in of_step if line["rank"] == rank], eos)
            assert got == received[step, rank], f"step {step}, rank {rank}"
    with pytest.raises(IndexError, match="has no step"):
        trace(run, steps, epoch=epoch)
    items = [line["item"] for line in lines]
    assert sorted(set(items)) == list(range(len(received)))
    rows = sorted({(line["file"], line["row"]) for line in lines})
    found = [line for file, row in rows for line in find(run, file, row, epoch=epoch).to_pylist()]

    def key(line):
        return [line[name] if line[name] is not None else "" for name in ("item", "place", "document", "row")]

    assert sorted(found, key=key) == sorted(lines, key=key)


@settings(max_examples=25)
@given(build=pipelines(), layouts=LAYOUTS, lanes=st.integers(1, 5), epoch=st.integers(0, 2), data=st.data())
def test_a_trace_says_what_every_rank_received(files, build, layouts, lanes, epoch, data):
    dataset = build(files).lanes(lanes)
    check_traced(lambda _: dataset, layouts, epoch, data)


@settings(max_examples=25)
@given(build=mixtures(), layouts=LAYOUTS, lanes=st.integers(1, 4), batch=st.sampled_from([0, 3]), data=st.data())
def test_a_trace_of_a_mixture_says_what_every_rank_received(files, build, layouts, lanes, batch, data):
    dataset = build(files).lanes(lanes)
    dataset = dataset.batch(batch) if batch else dataset
    received, steps, run = recorded_run(lambda _: dataset, layouts, 0, data)
    if run is None:
        return
    for step in range(steps):
        of_step = trace(run, step).to_pylist()
        for rank in {rank for at, rank in received if at == step}:
            own = [line for line in of_step if line["rank"] == rank]
            assert traced_content(own, eos_of(dataset)) == received[step, rank]
            for line in own:
                assert line["part"]
                assert line in find(run, line["file"], line["row"]).to_pylist()


@settings(max_examples=25)
@given(
    build=pipelines(batched=False),
    layouts=LAYOUTS,
    batches=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    lanes=st.integers(1, 4),
    data=st.data(),
)
def test_a_trace_knows_the_batch_sizes_of_earlier_sessions(files, build, layouts, batches, lanes, data):
    dataset = build(files).lanes(lanes)
    check_traced(lambda number: dataset.batch(batches[number]), layouts, 1, data)


def planted_runs(files):
    """A resized run whose steps are recorded, traced by whatever is planted."""
    dataset = me.read(files).shuffle(3).lanes(4).batch(2)
    state, first, received = dataset.state_dict(), 0, {}
    for ranks, steps in ((2, 3), (3, 2), (1, 100)):
        runs = [RankRun(on(dataset, ranks, rank), state, 1) for rank in range(ranks)]
        for rank, run in enumerate(runs):
            for step, (_, item) in enumerate(run.deliver(steps)):
                received[first + step, rank] = content(item, True)
        last, state, first = state, runs[0].state_dict(), first + steps
    resumed = on(dataset, 1, 0)
    resumed.load_state_dict(last)
    run = position_of(resumed).latest(plan_of(resumed))
    return received, run


def is_traced_rightly(received, run):
    try:
        return all(
            traced_content([line for line in trace(run, step).to_pylist() if line["rank"] == rank], None) == rows
            for (step, rank), rows in received.items()
        )
    except (ValueError, IndexError, AssertionError):
        return False


def next_after(self, lane, items):
    return right_position(self, lane, max(0, items - 1))


def one_less(self, turns):
    return max(0, right_items(self, turns) - 1)


right_position, right_items = Session.lane_after, Session.items_in


@pytest.mark.parametrize(
    ("target", "name", "planted"),
    [
        (Session, "sequence", lambda self, reader: (self.rounds, 0, self.readers)),
        (Session, "items_in", one_less),
        (Session, "lane_after", next_after),
        (SessionRecord, "ranks", 2),
    ],
    ids=["a phase", "items of turns", "a position", "ranks"],
)
def test_a_planted_bug_is_seen(files, target, name, planted):
    received, run = planted_runs(files)
    assert is_traced_rightly(received, run)
    with patch.object(target, name, planted):
        assert not is_traced_rightly(received, run)
