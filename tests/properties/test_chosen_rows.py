"""Order steps after surveyed filters: they act on exactly the rows that a plain filter keeps, and resume anywhere."""

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from counted import ROWS, add_one, is_kept, is_odd, same_columns
from midepoch.counting.survey_file import Survey
from midepoch.dataset import plan_of
from midepoch.order import selection
from midepoch.testing import assert_elastic, assert_resumes

LEVELS = st.sampled_from(["row", "block", "file"])
STAGES = {
    "map": lambda dataset: dataset.map(add_one),
    "batched": lambda dataset: dataset.map(same_columns, batched=True, batch_size=4, one_to_one=True),
    "kept": lambda dataset: dataset.filter(is_kept),
    "odd": lambda dataset: dataset.filter(is_odd),
    "python": lambda dataset: dataset.with_format("python"),
}


def ids(dataset):
    return [row["id"] for row in dataset]


@st.composite
def chosen(draw):
    """A dataset with surveyed filters, and the ids of the rows that they keep, both as functions of the files."""
    where, cut = draw(st.booleans()), draw(st.sampled_from([None, (0, 40), (7, ROWS)]))
    names = draw(st.lists(st.sampled_from(sorted(STAGES)), max_size=4))
    if not where or cut is not None:
        where, names = False, [*names, "kept"]

    def build(folder):
        dataset = me.read(folder, filters=pc.field("id") > 12 if where else None)
        if cut is not None:
            dataset = dataset.skip(cut[0]).take(cut[1] - cut[0])
        for name in names:
            dataset = STAGES[name](dataset)
        return dataset.survey(folder=folder.parent / "surveys")

    begin, end = (13, ROWS) if where else cut or (0, ROWS)
    rows = [{"id": number} for number in range(begin, end)]
    rows = [row for row in rows if "kept" not in names or is_kept(row)]
    rows = [row for row in rows if "odd" not in names or is_odd(row)]
    return build, [row["id"] for row in rows]


@given(case=chosen(), level=LEVELS, epoch=st.integers(0, 3), lanes=st.integers(1, 4), data=st.data())
def test_a_shuffle_permutes_the_kept_rows(files, case, level, epoch, lanes, data):
    build, kept = case
    dataset = build(files).shuffle(3, level=level, window=8).lanes(lanes)
    assert len(dataset) == len(kept)
    dataset.set_epoch(epoch)
    rows = ids(dataset)
    assert sorted(rows) == kept
    taken = data.draw(st.integers(0, ROWS))
    for cut, expected in (("take", sorted(rows[:taken])), ("skip", sorted(rows[taken:]))):
        one_lane = getattr(build(files).shuffle(3, level=level, window=8), cut)(taken)
        one_lane.set_epoch(epoch)
        assert len(one_lane) == len(expected)
        if lanes == 1:
            assert sorted(ids(one_lane)) == expected


@given(case=chosen(), first=st.integers(0, ROWS), count=st.integers(0, ROWS))
def test_take_and_skip_count_kept_rows(files, case, first, count):
    build, kept = case
    dataset = build(files)
    assert ids(dataset.skip(first).take(count)) == kept[first : first + count]
    assert len(dataset.skip(first).take(count)) == len(kept[first : first + count])
    assert ids(dataset) == kept, "the dataset itself has not changed"


@given(case=chosen(), size=st.sampled_from([1, 0.1, 0.5]), level=LEVELS, epoch=st.integers(0, 2))
def test_both_halves_of_a_split_have_all_kept_rows_and_none_twice(files, case, size, level, epoch):
    build, kept = case
    if size == 1 and not kept:
        return
    train, test = build(files).train_test_split(size, seed=5)
    assert len(test) == (size if size == 1 else -int(-len(kept) * size // 1))
    assert ids(train) == sorted(ids(train))
    fixed = ids(test)
    halves = [train.shuffle(1, level=level), test.shuffle(1, level=level)]
    for half in halves:
        half.set_epoch(epoch)
    rows = [ids(half) for half in halves]
    assert sorted(rows[0] + rows[1]) == kept
    assert sorted(rows[1]) == fixed


layouts = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=2, max_size=3)


@settings(max_examples=25)
@given(case=chosen(), level=LEVELS, lanes=st.integers(1, 4), layouts=layouts, batch=st.sampled_from([None, 3]))
def test_any_shuffle_of_kept_rows_resumes_and_resizes(files, case, level, lanes, layouts, batch):
    dataset = case[0](files).shuffle(2, level=level, window=8).lanes(lanes)
    dataset = dataset if batch is None else dataset.batch(batch)
    assert plan_of(dataset).pipeline.uniform
    assert_resumes(dataset, every=5)
    assert_elastic(dataset, layouts, steps=2)


@settings(max_examples=15)
@given(
    cases=st.lists(chosen(), min_size=2, max_size=3),
    level=LEVELS,
    stop=st.sampled_from(["first", "all"]),
    layouts=layouts,
)
def test_mixtures_of_kept_rows_resume_and_resize(files, cases, level, stop, layouts):
    mixed = me.mix([build(files).shuffle(2, level=level) for build, _ in cases], stop=stop).lanes(2)
    length, rows = len(mixed), ids(mixed)
    assert length == len(rows)
    mixed.set_epoch(0)
    if stop == "all":
        assert sorted(rows) == sorted(number for _, kept in cases for number in kept)
    assert_resumes(mixed, every=7)
    assert_elastic(mixed, layouts, steps=2)


@settings(max_examples=20)
@given(case=chosen(), level=LEVELS, strategy=st.sampled_from(["best_fit", "concat"]))
def test_later_filters_and_packs_of_kept_rows_are_surveyed_too(files, case, level, strategy):
    build, kept = case
    folder = files.parent / "surveys"
    shuffled = build(files).shuffle(2, level=level).lanes(2)
    odd = shuffled.filter(is_odd)
    surveyed = odd.survey(folder=folder)
    assert surveyed.counted
    assert ids(surveyed) == ids(odd)
    assert len(surveyed) == len([number for number in kept if number % 2])
    packs = odd.pack(9, strategy=strategy).survey(folder=folder)
    assert [pack["input_ids"].tolist() for pack in packs] == [
        pack["input_ids"].tolist() for pack in odd.pack(9, strategy=strategy)
    ]
    length = len(packs)
    assert length == len(list(packs))


def late_cells(self, numbers, true=Survey._kept_at):
    """A row is searched in the cell after its own at the border of two cells."""
    (kept,) = self.kept_before(np.array([self.rows]))
    return true(self, (numbers + (numbers % 8 == 7)) % max(1, kept))


def early_pieces(self, numbers, true=selection.KeptRows.at):
    """The last row of a piece is taken from the next one."""
    is_last = (numbers + 1 == self._starts[1:, None]).any(axis=0) & (numbers + 1 < self.size)
    return true(self, numbers + is_last)


@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [
        (Survey, "_kept_at", late_cells),
        (selection.KeptRows, "at", early_pieces),
    ],
)
def test_a_planted_bug_at_a_border_is_found(files, monkeypatch, owner, name, planted):
    dataset = me.read(files).filter(is_kept).survey(folder=files.parent / "surveys")
    kept = [number for number in range(ROWS) if number % 3]

    def prove():
        assert ids(dataset.take(ROWS)) == kept
        assert sorted(ids(dataset.shuffle(1, level="row"))) == kept

    prove()
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises(AssertionError):
        prove()
