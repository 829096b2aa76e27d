"""Padded batches: every row once, within the budget, and after a resume those of the uninterrupted run."""

import json
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from counted import ROWS, is_kept, length_of, named, numbers_in
from legs import check_edits
from midepoch.dataset import plan_of
from midepoch.stages import flow
from midepoch.stages.pack import padded, windows
from midepoch.testing import assert_elastic, assert_resumes
from surveys import without_survey
from worlds import FORMATS, write_documents

LAYOUTS = [(2, 2), (3, 1), (1, 3), (4, 1)]


def rows_of(batch):
    """The id and tokens of each row, of which the rest must be padding."""
    assert batch["input_ids"].shape == batch["attention_mask"].shape == batch["loss_mask"].shape
    for tokens, mask, losses, size in zip(
        batch["input_ids"], batch["attention_mask"], batch["loss_mask"], batch["lengths"], strict=True
    ):
        assert mask.tolist() == [1] * size + [0] * (len(mask) - size)
        assert set(tokens[size:].tolist()) <= {-3}
        assert losses.tolist() == [token % 3 for token in tokens[:size].tolist()] + [0] * (len(tokens) - size)
    sizes = batch["lengths"].tolist()
    return [
        (int(number), tuple(row[:size].tolist()))
        for number, row, size in zip(batch["id"], batch["input_ids"], sizes, strict=True)
    ]


@given(
    lengths=st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 13, 40]), min_size=1, max_size=40),
    most=st.sampled_from([4, 8, 20, 50]),
    window=st.sampled_from([1, 5, 16, 64]),
    overlong=st.sampled_from(["cut", "drop", "alone"]),
    rows=st.sampled_from([None, 1, 3]),
    multiple=st.sampled_from([1, 4]),
    shuffled=st.booleans(),
    kinds=st.lists(st.sampled_from(FORMATS), min_size=1, max_size=3),
    lanes=st.integers(1, 4),
)
def test_F6_every_row_once_and_no_batch_too_large(
    lengths, most, window, overlong, rows, multiple, shuffled, kinds, lanes
):
    with tempfile.TemporaryDirectory() as folder:
        dataset = me.read(write_documents(Path(folder), lengths, kinds)).lanes(lanes)
        dataset = dataset.shuffle(3, window=8) if shuffled else dataset
        batches = list(
            dataset.batch_by_tokens(most, window=window, overlong=overlong, max_rows=rows, multiple_of=multiple, pad=-3)
        )
    due, got = Counter(), Counter()
    for number, size in enumerate(lengths):
        tokens = [1000 * number + place for place in range(size)]
        if size <= most or overlong == "alone":
            due.update([(number, tuple(tokens))] * (size > 0))
        elif overlong == "cut":
            due.update((number, tuple(tokens[at : at + most])) for at in range(0, size, most))
    for batch in batches:
        got.update(rows_of(batch))
        count, longest = batch["input_ids"].shape
        assert longest % multiple == 0
        assert longest - batch["lengths"].max() < multiple
        assert count * longest <= most or (overlong == "alone" and count == 1)
        assert rows is None or count <= rows
        assert [number for number, _ in rows_of(batch)] or count == 0
    assert got == due


@pytest.fixture
def folder(tmp_path):
    lengths = np.random.default_rng(5).integers(0, 23, 60).tolist()
    lengths[17] = 300
    return write_documents(tmp_path / "data", lengths)


def batching(folder, **options):
    rows = me.read(folder).shuffle(1, window=20).lanes(3)
    return rows.batch_by_tokens(64, **{"window": 16, "overlong": "cut", "pad": -3, **options}).survey()


def prove(dataset):
    assert_resumes(dataset)
    assert_elastic(dataset, LAYOUTS, steps=2)


def test_F6_at_every_batch_the_state_is_small_and_the_next_batches_are_the_same(folder):
    dataset, sizes = batching(folder), set()
    for _ in dataset:
        sizes.add(len(json.dumps(dataset.state_dict())) if dataset.epoch == 0 else 0)
    assert max(sizes) < 1400
    prove(batching(folder))
    prove(without_survey(batching(folder)))
    assert list(map(repr, batching(folder))) == list(map(repr, without_survey(batching(folder))))


def test_F6_mixtures_before_and_after_and_inside_of_others(folder):
    rows = me.read(folder).shuffle(1, window=20)
    first = rows.batch_by_tokens(64, window=8, overlong="drop")
    inner = me.mix([first, rows.batch_by_tokens(32, window=5, overlong="alone")], [2, 1], seed=1, stop="all")
    prove(me.mix({"inner": inner, "more": first}, [1, 1], stop="all").lanes(2))
    prove(me.mix([rows, me.read(folder).take(30)], [2, 1], stop="all").batch_by_tokens(64, overlong="cut").lanes(2))


def found(dataset):
    with pytest.raises((AssertionError, me.CheckpointMismatchError, me.DigestMismatchError)):
        prove(dataset)


@pytest.mark.parametrize("error", [-1, 1])
def test_a_planted_count_of_delivered_batches(folder, monkeypatch, error):
    right = flow.Group.cursors_and_keys

    def planted(self, count):
        cursors, keys = right(self, count)
        cursors[:-1, -1] = np.maximum(0, cursors[:-1, -1] + error)
        return cursors, keys

    monkeypatch.setattr(flow.Group, "cursors_and_keys", planted)
    found(without_survey(batching(folder)))


def test_a_planted_window_whose_delivered_batches_are_not_dropped(folder, monkeypatch):
    right = flow.resume_groups
    monkeypatch.setattr(windows, "resume_groups", lambda groups, cursor, *more: right(groups, (*cursor[:-1], 0), *more))
    found(without_survey(batching(folder)))


def test_a_planted_shuffle_that_is_another_for_every_reader(folder, monkeypatch):
    keys = np.random.default_rng(0)
    monkeypatch.setattr(padded, "mix64", lambda values: keys.permutation(values))
    found(batching(folder))


def test_a_planted_key_that_counts_the_first_piece_of_a_row_for_all(folder, monkeypatch):
    right = padded.keys_of
    monkeypatch.setattr(
        padded.TokenBatches,
        "keys",
        lambda self, keys, layout, _: right(keys[layout.documents], 0 * layout.starts, layout.owners, len(layout)),
    )
    loader = me.Loader(batching(folder), digest=True)
    for _ in loader:
        pass
    with pytest.raises(me.DigestMismatchError):
        loader.check_digest()


def test_the_digest_is_that_of_the_rows_where_none_is_cut_or_left_out(files):
    rows = me.read(files).shuffle(2).filter(has_tokens).survey()
    assert me.Loader(rows.batch_by_tokens(64).survey(), digest=True).dataset.digest() == rows.digest()


def has_tokens(row):
    return len(row["input_ids"]) > 0


@settings(max_examples=20)
@given(
    window=st.integers(2, 20),
    filtered=st.booleans(),
    lanes=st.integers(1, 3),
    layouts=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2)), min_size=3, max_size=3),
    steps=st.tuples(st.integers(0, 4), st.integers(0, 3)),
    gone=st.lists(st.sets(st.integers(0, ROWS - 1), max_size=15), min_size=2, max_size=2),
)
def test_rows_that_are_left_out_leave_the_layout_as_it_is(files, window, filtered, lanes, layouts, steps, gone):
    rows = me.read(files).shuffle(3, level="row")
    rows = rows.filter(is_kept) if filtered else rows
    dataset = rows.batch_by_tokens(40, window=window).lanes(lanes)
    edits = [(named(one), one) for one in (gone[0], gone[1] - gone[0])]
    check_edits(dataset, dataset, layouts, steps, edits, lambda batch: batch["id"].tolist())


def test_F6_balanced_steps_have_the_same_batches_and_nearer_costs(folder):
    def steps(balance):
        loaders = [
            me.Loader(
                batching(folder).lanes(1).shard(2, rank),
                global_batch_size=4,
                micro_batch_size=1,
                balance=balance,
                even="drop",
            )
            for rank in range(2)
        ]
        of_ranks = [[batch["input_ids"] for batch in loader] for loader in loaders]
        return [[of_rank[at : at + 2] for of_rank in of_ranks] for at in range(0, len(of_ranks[0]), 2)]

    def cost(batches):
        return sum(batch.shape[0] * batch.shape[1] ** 2 for batch in batches)

    plain, balanced = steps(None), steps("cost")
    for one, other in zip(plain, balanced, strict=True):
        assert sorted(str(batch) for rank in one for batch in rank) == sorted(str(b) for rank in other for b in rank)
    apart = [sum(abs(cost(one) - cost(other)) for one, other in of_steps) for of_steps in (plain, balanced)]
    assert apart[1] < apart[0]


@pytest.mark.parametrize("surveyed", [True, False])
def test_a_row_that_does_not_fit_is_named_with_what_to_do(folder, surveyed):
    dataset = batching(folder, overlong="error")
    with pytest.raises(ValueError, match=r"300 tokens.* max_tokens=64.*Pass a larger max_tokens, or") as caught:
        list(dataset if surveyed else without_survey(dataset))
    assert "at row 17 of part-0000" in str(caught.value)
    with pytest.raises(ValueError, match="at row 17 of part-0000"):
        len(dataset)
    assert plan_of(dataset).pipeline.counted


def test_find_names_the_batch_of_a_row(files):
    dataset = me.read(files).shuffle(3).batch_by_tokens(30).lanes(2)
    loader = me.Loader(dataset)
    for step, batch in enumerate(loader):
        assert sorted(numbers_in(loader.trace(step, epoch=0))) == sorted(batch["id"].tolist())
    assert loader.find("0.arrow", 1, epoch=0).num_rows == (length_of(1) > 0)
