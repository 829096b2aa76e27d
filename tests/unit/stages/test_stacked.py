"""Items that lie stacked: batches of them are those of the single items, in memory of their own."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from files import write
from midepoch.stages.pack.documents import Documents
from midepoch.stages.pack.items import ids_within, stack_packs
from midepoch.stages.pack.spec import PackSpec
from midepoch.stages.pack.strategies import cut
from midepoch.stages.stacked import StackedRun, groups_of, stacked_batch
from midepoch.testing import same
from midepoch.values.collate import collate
from surveys import without_survey


def run_of(first, count, width=3):
    lines = 10 * np.arange(first, first + count)[:, None] + np.arange(width)
    ragged = [np.arange(number % 4) for number in range(first, first + count)]
    numbers = range(first, first + count)
    return StackedRun({"x": lines}, {"ends": ragged}, [(number + 1,) for number in numbers], list(numbers))


@pytest.mark.parametrize("form", ["numpy", "torch"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 20])
def test_groups_and_batches_are_those_of_single_items(form, size):
    runs = [run_of(0, 4), run_of(4, 1), run_of(5, 7), run_of(12, 2)]
    singles = [single for run in runs for single in run.single_items(form)]
    groups = list(groups_of(iter(runs), size))
    assert [sum(map(len, group)) for group in groups] == [size] * (14 // size) + [14 % size] * (14 % size > 0)
    for number, group in enumerate(groups):
        own = singles[number * size : (number + 1) * size]
        expected = collate([item for item, _, _ in own], form, lambda name: name == "ends")
        assert same(stacked_batch(group, form), expected)
        assert [cursor for run in group for cursor in run.cursors] == [cursor for _, cursor, _ in own]
        assert [key for run in group for key in run.keys] == [key for _, _, key in own]


def test_a_group_is_whole_before_the_next_run_is_asked_for():
    def runs():
        yield run_of(0, 4)
        pytest.fail("another run was asked for")

    assert [len(part) for part in next(groups_of(runs(), 2))] == [2]


@pytest.mark.parametrize(
    "other", [run_of(4, 1, width=2), StackedRun({"x": np.zeros((1, 3), np.int8)}, {"ends": [0]}, [()], [4])]
)
def test_items_of_different_shapes_or_types_are_no_stacked_batch(other):
    assert stacked_batch([run_of(0, 4), other], "numpy") is None


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_single_items_and_batches_share_no_memory_with_the_run(form):
    run = run_of(0, 4)
    first = next(run.single_items(form))[0]["x"]
    batch = stacked_batch([run], form)["x"]
    first[:], batch[:] = -1, -2
    assert run.columns["x"].min() == 0
    assert torch.as_tensor(first).untyped_storage().nbytes() == 3 * 8


@pytest.mark.parametrize("apart", [False, True], ids=["side by side", "apart"])
@pytest.mark.parametrize(("tokens", "sizes"), [(849, [16, 16, 5]), (10, [1] * 37)], ids=["short", "long"])
def test_ids_of_packs_that_are_made_together_are_those_of_each(monkeypatch, apart, tokens, sizes):
    rng, length, count = np.random.default_rng(3), 50, 37
    monkeypatch.setattr("midepoch.stages.pack.items.STACKED_TOKENS", tokens)
    seqlens = [
        np.array([0, *np.sort(rng.choice(np.arange(1, length), rng.integers(0, 6), replace=False)), length], np.int32)
        for _ in range(count)
    ]
    # Where packs are apart, the last document of each goes on for 3 tokens.
    begins = [number * (length + 3 * apart) for number in range(count)]
    lengths = np.concatenate([np.diff(ends) + 3 * apart * (ends[1:] == length) for ends in seqlens])
    stream = np.arange(lengths.sum())
    spec = PackSpec(length=length, column="x", overlong="cut", eos=None, pad=None, labels=None, number=1)
    starts = np.array(begins)
    documents = Documents({"x": stream}, lengths, np.arange(len(lengths)))
    layout = cut(lengths, np.cumsum(lengths), starts, starts + length)
    runs = list(stack_packs(documents, layout, [()] * count, None, spec))
    assert [len(run) for run in runs] == sizes
    packs = [item for run in runs for item, _, _ in run.single_items("numpy")]
    for pack, begin, ends in zip(packs, begins, seqlens, strict=True):
        positions, numbers = ids_within(ends, length)
        assert same(pack["x"], stream[begin : begin + length])
        assert same(pack["position_ids"], positions)
        assert same(pack["document_ids"], numbers)
        assert same(pack["cu_seqlens"], ends)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng, path = np.random.default_rng(2), tmp_path_factory.mktemp("documents")
    lengths = rng.integers(0, 40, 300)
    tokens = [rng.integers(1, 100, length).astype(np.uint16) for length in lengths]
    columns = {"input_ids": pa.array(tokens), "attention_mask": pa.array([[1] * len(one) for one in tokens])}
    write(path / "a.arrow", pa.table(columns).to_batches(max_chunksize=70))
    return path


@settings(max_examples=15, deadline=None)
@given(
    length=st.sampled_from([7, 32, 100]),
    size=st.integers(1, 9),
    lanes=st.sampled_from([1, 3]),
    options=st.fixed_dictionaries({}, optional={"eos": st.just(5), "pad": st.just(0), "overlong": st.just("drop")}),
    form=st.sampled_from(["numpy", "torch"]),
    drop_last=st.booleans(),
    surveyed=st.booleans(),
    shuffled=st.booleans(),
)
def test_batches_of_a_stream_hold_its_packs(folder, length, size, lanes, options, form, drop_last, surveyed, shuffled):
    data = me.read(folder)
    data = (data.shuffle(seed=1, window=50) if shuffled else data).lanes(lanes)
    packs = data.pack(length, strategy="concat", **options).with_format(form)
    packs = packs if surveyed else without_survey(packs)
    names = ["input_ids", "attention_mask", "position_ids", "document_ids", "cu_seqlens"]
    batches = list(packs.batch(size, drop_last_batch=drop_last))
    for batch, expected in zip(batches, packs.map(dict).batch(size, drop_last_batch=drop_last), strict=True):
        assert list(batch) == names
        assert same(batch, expected)
