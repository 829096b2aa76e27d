"""Tokens and items of metrics and progress: at every cut those that were really delivered, also after resumes."""

import pickle
from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch.dataset import plan_of
from midepoch.pipeline import draws
from midepoch.sources.lane import CountedFileRows
from midepoch.stages.pack.padded import PlannedBatches, TokenBatches
from midepoch.testing import RankRun
from worlds import through_json

ROWS = 40
PARTS = ("web", "code", "books")
EOS, PAD = 9999, -3


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Rows of each part, as Arrow and as Parquet: row ``id`` has up to 12 times the token ``id``."""
    folder = tmp_path_factory.mktemp("parts")
    for number, name in enumerate(PARTS):
        ids = [1000 * number + row for row in range(ROWS - 7 * number)]
        lists = pa.array([[one] * (one * 7919 % 13) for one in ids], pa.list_(pa.int32()))
        table = pa.table({"id": pa.array(ids, pa.int64()), "input_ids": lists})
        for kind in ("arrow", "parquet"):
            (folder / kind / name).mkdir(parents=True)
        pq.write_table(table, folder / "parquet" / name / "0.parquet", row_group_size=5)
        with pa.ipc.new_file(folder / "arrow" / name / "0.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=5)
    return folder


def is_kept(row):
    return row["id"] % 3 != 0


def add_nothing(row):
    return {"id": row["id"]}


def packed(dataset, form, eos=None):
    if form == "padded":
        return dataset.batch_by_tokens(24, window=7, pad=PAD, overlong="cut")
    window = {} if form == "concat" else {"window": 6}
    overlong = "drop" if form == "best_fit" else "cut"
    return dataset.pack(9, strategy=form, overlong=overlong, pad=PAD, eos=eos, **window)


FORMS = st.sampled_from(["best_fit", "balanced", "concat", "padded"])


@st.composite
def part_rows(draw, name, surveys):
    kind = draw(st.sampled_from(["arrow", "parquet"] if surveys else ["arrow"]))
    order, take = draw(st.sampled_from(["none", "row", "block"])), draw(st.sampled_from([None, 11]))
    kept = surveys and draw(st.booleans())

    def build(folder):
        dataset = me.read(folder / kind / name)
        dataset = dataset if order == "none" else dataset.shuffle(2, level=order)
        dataset = dataset if take is None else dataset.take(take)
        return dataset.filter(is_kept) if kept else dataset

    return build


@st.composite
def datasets(draw):
    """What makes a dataset, and whether its items are rows of which each comes once, or a part of a mixture packs."""
    surveys, outer, own = draw(st.booleans()), draw(st.none() | FORMS), draw(st.none() | FORMS)
    own = None if outer else own
    if surveys and own is None and outer is None:
        outer = "padded"  # so that lengths are known
    rows = {name: draw(part_rows(name, surveys)) for name in PARTS}
    shape, stop = draw(st.sampled_from(["one", "flat", "nested"])), draw(st.sampled_from(["first", "all", "never"]))
    eos = draw(st.sampled_from([None, EOS])) if shape == "one" else None
    weights = draw(st.lists(st.integers(1, 4), min_size=3, max_size=3))

    def build(folder):
        parts = {}
        for name, of_rows in rows.items():
            dataset = of_rows(folder) if own is None else packed(of_rows(folder), own, eos)
            parts[name] = dataset.survey() if surveys and own else dataset
        if shape == "one":
            dataset = parts["web"]
        elif shape == "flat":
            dataset = me.mix(parts, weights, seed=1, stop=stop)
        else:
            inner = me.mix({name: parts[name] for name in PARTS[1:]}, weights[1:], seed=2, stop="all")
            dataset = me.mix({"web": parts["web"], "inner": inner}, weights[:2], seed=1, stop=stop)
        if outer is None:
            return dataset
        return packed(dataset, outer, eos).survey() if surveys else packed(dataset, outer, eos)

    return build


def rows_of(item):
    """The tokens of each row, or piece of a row, of an item."""
    if "cu_seqlens" in item:
        bounds = pairwise(item["cu_seqlens"].tolist())
        return [item["input_ids"][begin:end].tolist() for begin, end in bounds]
    if "attention_mask" in item:
        return [row[:size].tolist() for row, size in zip(item["input_ids"], item["lengths"].tolist(), strict=True)]
    return [list(item["input_ids"])]


def paths(number, nested):
    name = PARTS[number]
    return ["inner", f"inner/{name}"] if nested and number else [name]


class Delivered:
    """What was delivered: the tokens, and the tokens and items of each part."""

    def __init__(self, nested):
        self.nested, self.tokens, self.items, self.all_tokens = nested, Counter(), Counter(), 0

    def add(self, item):
        rows = rows_of(item)
        self.all_tokens += sum(map(len, rows))
        for row in rows:
            for path in paths(min(token for token in row) // 1000, self.nested) if row and EOS not in row else []:
                self.tokens[path] += len(row)
        numbers = {int(item["id"]) // 1000} if "id" in item and len(rows) == 1 and "lengths" not in item else set()
        numbers = numbers or {row[0] // 1000 for row in rows if row and EOS not in row}
        for number in numbers if len(numbers) == 1 else ():  # else the item is made of several parts
            for path in paths(number, self.nested):
                self.items[path] += 1


def check(loader, delivered, *, of_items, is_mixture):
    metrics = loader.metrics()
    assert metrics["tokens"] == delivered.all_tokens
    assert loader.progress().tokens == delivered.all_tokens
    if is_mixture:
        for name in (name for name in metrics if name.startswith("tokens_") and name != "tokens_per_second"):
            assert metrics[name] == delivered.tokens[name.removeprefix("tokens_")], name
        assert {f"tokens_{name}" for name in delivered.tokens} <= set(metrics)
    if of_items:
        for name in (name for name in metrics if name.startswith("items_")):
            assert metrics[name] == delivered.items[name.removeprefix("items_")], name
        assert {f"items_{name}" for name in delivered.items} <= set(metrics)


def run(dataset, legs, state=None, items=()):
    """Deliver the epoch in legs of ranks, batch sizes and steps, and check the figures after every step.

    It begins at a state, before which these items were delivered. The last leg goes to the end of the epoch.
    """
    pipeline = plan_of(dataset).pipeline
    is_mixture, nested = bool(pipeline.parts), any(part.parts for part in pipeline.parts)
    of_items = is_mixture and all(stage.length_column is None for stage in pipeline.stages)
    delivered, state, total = Delivered(nested), state or dataset.state_dict(), None
    for item in items:
        delivered.add(item)
    for number, (ranks, size, steps) in enumerate(legs):
        loaders = [
            me.Loader(dataset.shard(ranks, rank), batch_size=size, collate_fn=list, even=None) for rank in range(ranks)
        ]
        for loader in loaders:
            loader.load_state_dict(state)
        epoch_tokens = loaders[0].progress().epoch_tokens
        assert total in (None, epoch_tokens)
        total, iterators = epoch_tokens, list(map(iter, loaders))
        ends = number == len(legs) - 1 and total is not None
        for _ in range(1000 if ends else steps):
            batches = [next(batches, None) for batches in iterators]
            had = [loader for loader, batch in zip(loaders, batches, strict=True) if batch is not None]
            for item in (item for batch in batches for item in batch or ()):
                delivered.add(item)
            for loader in had:
                check(loader, delivered, of_items=of_items, is_mixture=is_mixture)
            if not all(batch is not None for batch in batches):
                assert total in (None, delivered.all_tokens)
                return
        state = loaders[-1].state_dict()


LEGS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 5)), min_size=1, max_size=4)


@settings(max_examples=15)
@given(build=datasets(), legs=LEGS, lanes=st.integers(1, 4))
def test_F6_F7_metrics_are_the_sums_of_what_was_delivered_at_every_cut(folders, build, legs, lanes):
    dataset = build(folders).lanes(lanes)
    try:
        run(dataset, legs)
    except ValueError as error:
        if "had no items in 10 passes" not in str(error):  # an endless mixture needs an item in every lane
            raise


def nested(folder, form="padded", kind="arrow"):
    """A mixture of a mixture, whose rows are packed after they are mixed."""
    web, code, books = (me.read(folder / kind / name).shuffle(2) for name in PARTS)
    inner = me.mix({"code": code, "books": books}, [2, 1], seed=2, stop="all")
    return packed(me.mix({"web": web, "inner": inner}, [1, 1], seed=1, stop="all"), form).lanes(3)


@pytest.mark.parametrize("form", ["best_fit", "concat", "padded"])
def test_items_that_were_delivered_ahead_of_others_count(folders, form):
    """Ranks that were out of step had no survey. The state that is merged of theirs loads with one."""
    dataset = nested(folders, form, "parquet")
    runs = [RankRun(dataset.shard(2, rank), dataset.state_dict(), 1) for rank in range(2)]
    items = [item for run, steps in zip(runs, (7, 2), strict=True) for _, item in run.deliver(steps)]
    state = me.merge_states(through_json([run.state_dict() for run in runs]))
    assert "done" in str(state["cursors"])
    run(dataset.survey(), [(2, 1, 3), (1, 1, 0)], state, items)


def test_a_planted_position_that_is_one_row_late(folders, monkeypatch):
    right = CountedFileRows.passed
    monkeypatch.setattr(
        CountedFileRows,
        "passed",
        lambda self, cursor, *more, **options: right(self, (cursor[0] + 1,), *more, **options),
    )
    with pytest.raises(AssertionError):
        run(nested(folders), [(2, 1, 2), (1, 1, 0)])


def test_a_planted_part_that_is_missing(folders, monkeypatch):
    right = draws.amounts_of_parts
    monkeypatch.setattr(draws, "amounts_of_parts", lambda parts: right(parts[:-1]))
    with pytest.raises(AssertionError):
        run(nested(folders), [(2, 1, 2), (1, 1, 0)])


def test_planted_tokens_of_padding(folders, monkeypatch):
    right = PlannedBatches._begun

    def planted(self, documents, delivered):
        rows, tokens = right(self, documents, delivered)
        return rows, tokens.max(initial=0) + 0 * tokens

    with monkeypatch.context() as patched:
        patched.setattr(PlannedBatches, "_begun", planted)
        with pytest.raises(AssertionError):
            run(nested(folders), [(2, 1, 2), (1, 1, 0)])
    monkeypatch.setattr(TokenBatches, "sizes", lambda self, lengths: -(-lengths // 4) * 4)
    with pytest.raises(AssertionError):
        run(nested(folders), [(2, 1, 2), (1, 1, 0)])


def test_what_is_left_out_does_not_count(folders):
    rows = me.read(folders / "arrow" / "web").shuffle(2)
    dataset, delivered = (
        me.mix({"web": rows, "code": me.read(folders / "arrow" / "code")}, stop="all"),
        Delivered(False),
    )
    loader = me.Loader(dataset, batch_size=4, collate_fn=list)
    batches = iter(loader)
    for item in next(batches) + next(batches):
        delivered.add(item)
    gone = loader.trace(5).select(["part", "file", "row"]).to_pylist()
    edited = me.Loader(
        dataset.without([(line["part"], line["file"], line["row"]) for line in gone]), batch_size=4, collate_fn=list
    )
    edited.load_state_dict(loader.state_dict())
    total = edited.progress().epoch_tokens
    assert total < loader.progress().epoch_tokens
    for batch in edited:
        for item in batch:
            delivered.add(item)
        assert edited.metrics()["tokens"] == delivered.all_tokens
        assert edited.metrics()["tokens_web"] == delivered.tokens["web"]
        assert edited.metrics()["items_web"] == delivered.items["web"]
    assert total == delivered.all_tokens


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_make_no_difference(folders, workers):
    loader, tokens = me.Loader(nested(folders), num_workers=workers), 0
    for pack in loader:
        tokens += int(pack["lengths"].sum())
        assert loader.metrics()["tokens"] == tokens
    figures = loader.metrics()
    assert figures["tokens_per_second"] == pytest.approx(tokens / figures["seconds"])


def test_without_lengths_there_are_items_and_without_counts_what_there_was(folders):
    parts = {name: me.read(folders / "parquet" / name) for name in PARTS}
    loader = me.Loader(me.mix(parts), batch_size=2)
    next(iter(loader))
    figures = loader.metrics()
    assert sum(figures[f"items_{name}"] for name in PARTS) == 2
    assert not [name for name in figures if "token" in name]
    assert loader.progress().tokens is loader.progress().epoch_tokens is None
    mapped = me.Loader(me.read(folders / "arrow" / "web").map(add_nothing), batch_size=2)
    uncounted = me.Loader(packed(parts["web"], "concat"))
    for loader in (mapped, uncounted):
        next(iter(loader))
        assert "tokens" not in loader.metrics()
        assert loader.progress().tokens is None
    assert uncounted.metrics()["tokens_per_second"] > 0


def test_progress_prints_tokens_and_is_still_three_numbers(folders):
    loader = me.Loader(packed(me.read(folders / "arrow" / "web"), "concat"))
    batches = iter(loader)
    next(batches)
    progress = loader.progress()
    epoch, step, steps = progress
    next(batches)
    total = sum(one * 7919 % 13 for one in range(ROWS))
    assert (progress.tokens, progress.epoch_tokens) == (9, total), "it says what was delivered when it was asked for"
    assert str(progress) == f"epoch {epoch}, step {step} of {steps} (3.8%), 9 of {total} tokens"
    assert pickle.loads(pickle.dumps(progress)) == progress
    endless = me.Loader(me.mix([me.read(folders / "arrow" / "web")], stop="never"))
    next(iter(endless))
    assert str(endless.progress()) == "epoch 0, 1 step, 0 tokens"


def test_balanced_ranks_know_the_tokens_of_all(folders):
    dataset = packed(me.read(folders / "arrow" / "web").shuffle(2), "balanced").lanes(3)
    loaders = [
        me.Loader(dataset.shard(2, rank), global_batch_size=4, micro_batch_size=1, balance="cost", even="drop")
        for rank in range(2)
    ]
    tokens = steps = 0
    for batches in zip(*loaders, strict=True):
        tokens, steps = tokens + sum(int(batch["cu_seqlens"][0][-1]) for batch in batches), steps + 1
        assert [loader.metrics()["tokens"] for loader in loaders] == [tokens] * 2
    assert steps > 4


def test_the_column_of_a_mixture_has_its_tokens_and_each_epoch_its_own(tmp_path):
    table = pa.table({"tokens": pa.array([[row] * (row % 5) for row in range(ROWS)], pa.list_(pa.int32()))})
    with pa.ipc.new_file(tmp_path / "0.arrow", table.schema) as writer:
        writer.write_table(table)
    mixture = me.mix({"web": me.read(tmp_path).shuffle(1)}, by="tokens", column="tokens").repeat(2)
    loader, counts = me.Loader(mixture, batch_size=ROWS // 2, collate_fn=list), []
    for batch in loader:
        counts.append((loader.metrics()["tokens_web"], sum(len(row["tokens"]) for row in batch)))
    (one, first), (both, second), (again, third), (_, _) = counts
    assert (one, both, again) == (first, first + second, third)
    assert loader.metrics()["tokens_per_second"] > 0
