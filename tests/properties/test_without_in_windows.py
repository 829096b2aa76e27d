"""Rows that are left out while windows of packs are under way: the layout stays, and all other tokens come once."""

from collections import Counter
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from counted import ROWS, is_kept, is_odd, length_of, named, numbers_in, same_columns
from legs import check_edits
from midepoch.stages.pack.packs import Packs
from midepoch.testing import assert_elastic, assert_resumes

LAYOUTS = st.tuples(st.integers(1, 3), st.integers(1, 2))
GONE = st.sets(st.integers(0, ROWS - 1), max_size=15)


def tokens_of(item):
    """The tokens of a pack, or of a batch of packs."""
    rows = item["input_ids"]
    return [int(token) for row in (rows if hasattr(rows[0], "__len__") else [rows]) for token in row]


def packs(files, strategy, filtered, mixed, window, batch):
    rows = me.read(files).shuffle(3, level="row")
    rows = rows.filter(is_kept) if filtered else rows
    if mixed:
        rows = me.mix({"x": rows.filter(is_odd), "y": me.read(files).filter(is_even)}, weights=[1, 2], stop="all")
    options = {} if strategy == "concat" else {"window": window}
    dataset = rows.pack(16, strategy=strategy, **options)
    return dataset.batch(batch) if batch else dataset


def is_even(row):
    return row["id"] % 2 == 0


def parts_of(numbers, mixed):
    parts = ("y", "x")
    return [(parts[number % 2], *named([number])[0]) if mixed else named([number])[0] for number in sorted(numbers)]


@settings(max_examples=30)
@given(
    strategy=st.sampled_from(["best_fit", "concat", "balanced"]),
    filtered=st.booleans(),
    mixed=st.booleans(),
    window=st.integers(2, 20),
    batch=st.sampled_from([None, 2]),
    lanes=st.integers(1, 3),
    layouts=st.tuples(LAYOUTS, LAYOUTS, LAYOUTS),
    steps=st.tuples(st.integers(0, 4), st.integers(0, 3)),
    gone=st.tuples(GONE, GONE),
)
def test_all_other_tokens_come_exactly_once(
    files, strategy, filtered, mixed, window, batch, lanes, layouts, steps, gone
):
    dataset = packs(files, strategy, filtered, mixed, window, batch).lanes(lanes)
    plain = packs(files, strategy, filtered, mixed, window, None)
    edits = [(parts_of(gone[0], mixed), gone[0]), (parts_of(gone[1] - gone[0], mixed), gone[1])]
    check_edits(dataset, plain, layouts, steps, edits, tokens_of)


@pytest.mark.parametrize("strategy", ["best_fit", "concat"])
@pytest.mark.parametrize("surveyed", [True, False])
def test_the_layout_of_the_epoch_stays_and_the_places_of_the_rows_are_left_out(files, strategy, surveyed):
    options = {} if strategy == "concat" else {"window": 25}
    rows = me.read(files).shuffle(3, level="row")
    rows = rows if surveyed else rows.filter(is_kept)
    dataset = rows.pack(16, strategy=strategy, **options)
    whole = [tokens_of(item) for item in dataset]
    dataset.set_epoch(0)
    items = iter(dataset)
    came = [tokens_of(next(items)) for _ in range(3)]
    while not dataset.state_dict()["cursors"][0][1][-1]:  # until it is inside a window, or inside a document
        came.append(tokens_of(next(items)))
    rest_of_epoch = whole[len(came) :]
    # All documents of one pack, some of others, and some that are delivered already.
    gone = {*rest_of_epoch[2], rest_of_epoch[1][-1], whole[0][0], whole[-1][0]}
    edited = dataset.without(named(gone))
    edited.load_state_dict(dataset.state_dict())
    expected = [[token for token in pack if token not in gone] for pack in rest_of_epoch]
    rest = list(edited)
    assert [tokens_of(item) for item in rest] == [pack for pack in expected if pack]
    assert all(item["cu_seqlens"][-1] == len(tokens_of(item)) for item in rest)
    edited.set_epoch(0)
    assert_resumes(edited, every=2)


def test_a_loader_goes_on_inside_a_window_without_the_rows_of_a_step(files, caplog):
    dataset = me.read(files).shuffle(3).filter(is_kept).pack(16, window=25).survey()
    loader = me.Loader(dataset, batch_size=2)
    first = [tokens_of(batch) for _, batch in zip(range(2), loader, strict=False)]
    loader.load_state_dict(loader.state_dict())
    state, poisoned = (
        loader.state_dict(),
        set(numbers_in(loader.trace(3))),
    )
    edited = dataset.without(steps=[3], of=loader)
    again = me.Loader(edited, batch_size=2, num_workers=1)
    again.load_state_dict(state)
    assert f"it goes on without {len(poisoned)} rows. All others come exactly once" in caplog.text
    assert again.state_dict()["edits"] == 1
    rest = [tokens_of(batch) for batch in again]
    came = Counter(token for batch in first + rest for token in batch)
    assert not {token for batch in rest for token in batch} & poisoned
    wanted = {one for one in range(ROWS) if one % 3 and length_of(one)} - poisoned
    assert {one: came[one] for one in wanted} == {one: length_of(one) for one in wanted}
    again.load_state_dict(state)
    with pytest.raises(ValueError, match="rows were left out of packs"):
        again.trace(0)
    assert_elastic(edited.lanes(2), [(2, 1), (1, 2), (3, 1)])


def test_windows_of_a_part_keep_their_layout_while_rows_of_others_are_left_out(files):
    rows = me.read(files)
    parts = {
        "packs": rows.filter(is_odd).pack(16, window=20),
        "stream": rows.filter(is_even).pack(9, strategy="concat"),
    }
    dataset = me.mix(parts, weights=[1, 1], stop="all", seed=1).lanes(2)
    items = iter(dataset)
    before = [token for _ in range(7) for token in tokens_of(next(items))]
    gone = set(range(0, 60, 4)) | {3, 31, 57}
    edited = dataset.without([({"x": "packs", "y": "stream"}[part], *row) for part, *row in parts_of(gone, True)])
    edited.load_state_dict(dataset.state_dict())
    after = [token for item in edited for token in tokens_of(item)]
    assert not set(after) & gone
    came = Counter(before + after)
    assert all(came[one] == length_of(one) for one in range(ROWS) if one not in gone)


def test_a_group_that_is_no_window_of_packs_is_refused(files):
    dataset = me.read(files).map(same_columns, batched=True)
    items = iter(dataset)
    next(items)
    with pytest.raises(me.CheckpointMismatchError, match=r"inside a group of rows that map\(batched=True\)"):
        dataset.without(named({30})).load_state_dict(dataset.state_dict())


def test_between_groups_of_a_batched_map_rows_are_left_out_before_it(files):
    """The packs of its outputs do not know rows by their keys."""
    dataset = me.read(files).map(same_columns, batched=True, batch_size=5).pack(16, window=5).lanes(1)
    items, gone = iter(dataset), {40, 41, 55}
    before = [tokens_of(next(items))]
    while any(dataset.state_dict()["cursors"][0][1][1:]):
        before.append(tokens_of(next(items)))
    edited = dataset.without(named(gone))
    edited.load_state_dict(dataset.state_dict())
    after = [tokens_of(item) for item in edited]
    assert not {token for pack in after for token in pack} & gone
    came = Counter(token for pack in before + after for token in pack)
    assert all(came[one] == length_of(one) for one in range(ROWS) if one not in gone)


def test_documents_that_are_not_left_out_would_be_seen(files):
    dataset = me.read(files).filter(is_kept).pack(16, window=25)
    next(iter(dataset))
    state = dataset.state_dict()
    gone = {40, 41, 55}

    def rest():
        edited = dataset.without(named(gone))
        edited.load_state_dict(state)
        return {token for item in edited for token in tokens_of(item)}

    assert not rest() & gone
    with patch.object(Packs, "keep", lambda layout, kept: layout):
        assert rest() & gone
