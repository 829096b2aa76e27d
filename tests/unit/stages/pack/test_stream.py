"""Packs of a stream, which are made many at a time: each is as if it were made alone."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from files import write
from midepoch.stages.flow import Context
from midepoch.stages.pack.documents import Documents, PackSpec
from midepoch.stages.pack.packs import cut, ids_within, stack_packs
from midepoch.testing import same
from surveys import without_survey

CONTEXT = Context(seed=0, epoch=0, rows_until=1, locate=lambda key: ("a", key))


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_packs_share_no_memory_with_the_documents_or_with_each_other(form):
    stream = np.arange(100)
    spec = PackSpec(length=25, column="x", overlong="cut", eos=None, pad=None, labels=None, number=1)
    documents, starts = Documents({"x": stream}, np.array([40, 60]), np.arange(2)), np.arange(0, 100, 25)
    layout = cut(documents.lengths, np.array([40, 100]), starts, starts + 25)
    (run,) = stack_packs(documents, layout, np.zeros((4, 1), np.int64), None, spec, CONTEXT)
    packs = list(run.rows.to(form).items())
    packs[0]["x"][:] = -1
    packs[0]["position_ids"][:] = -1
    assert (stream == np.arange(100)).all()
    assert packs[1]["x"].tolist() == list(range(25, 50))
    assert packs[1]["position_ids"].tolist() == [*range(15), *range(10)]


@pytest.mark.parametrize("apart", [False, True], ids=["side by side", "apart"])
@pytest.mark.parametrize(("tokens", "sizes"), [(849, [16, 16, 5]), (10, [1] * 37)], ids=["short", "long"])
def test_ids_of_packs_that_are_made_together_are_those_of_each(monkeypatch, apart, tokens, sizes):
    rng, length, count = np.random.default_rng(3), 50, 37
    monkeypatch.setattr("midepoch.stages.pack.packs.STACKED_TOKENS", tokens)
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
    runs = list(stack_packs(documents, layout, np.zeros((count, 1), np.int64), None, spec, CONTEXT))
    assert [len(run) for run in runs] == sizes
    packs = [item for run in runs for item in run.rows.items()]
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
