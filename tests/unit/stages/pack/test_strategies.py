"""Laying out documents: no pack too long, no token lost or twice, packs as full as promised and in order."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midepoch.stages.pack.padded import PaddedSpec, TokenBatches
from midepoch.stages.pack.windows import pack

STRATEGIES = ["best_fit", "first_fit", "balanced"]
many = settings(max_examples=200, deadline=None)
lengths_of_documents = st.lists(st.integers(0, 40), max_size=60).map(lambda found: np.array(found, np.int64))


def pieces_of(packs):
    """The pieces of each pack as (document, start, stop)."""
    pieces = list(zip(packs.documents.tolist(), packs.starts.tolist(), packs.stops.tolist(), strict=True))
    bounds = packs.bounds.tolist()
    return [pieces[begin:end] for begin, end in pairwise(bounds)]


def sizes_of(packs):
    return [[stop - start for _, start, stop in one] for one in pieces_of(packs)]


@many
@given(lengths_of_documents, st.integers(1, 25), st.sampled_from(STRATEGIES), st.sampled_from(["cut", "drop", "alone"]))
def test_C3_every_token_once_and_no_pack_too_long(lengths, length, strategy, overlong):
    packs = pieces_of(pack(lengths, length=length, strategy=strategy, overlong=overlong))
    tokens = [(number, token) for one in packs for number, start, stop in one for token in range(start, stop)]
    due = [
        (number, token)
        for number, size in enumerate(lengths.tolist())
        if overlong != "drop" or size <= length
        for token in range(size)
    ]
    assert sorted(tokens) == due
    for one in packs:
        assert one
        too_long = sum(stop - start for _, start, stop in one) > length
        assert not too_long or (overlong == "alone" and len(one) == 1)


@many
@given(lengths_of_documents, st.integers(1, 25), st.sampled_from(STRATEGIES))
def test_C3_packs_are_in_the_order_of_the_documents(lengths, length, strategy):
    packs = pieces_of(pack(lengths, length=length, strategy=strategy))
    assert [one[0] for one in packs] == sorted(one[0] for one in packs)
    assert all(one == sorted(one) for one in packs)


@many
@given(lengths_of_documents, st.integers(1, 25))
def test_C3_a_document_is_cut_only_if_it_does_not_fit(lengths, length):
    for strategy in STRATEGIES:
        for one in pieces_of(pack(lengths, length=length, strategy=strategy)):
            for document, start, stop in one:
                assert start % length == 0
                assert stop == min(start + length, int(lengths[document]))


def first_fit(sizes, length):
    """The definition: each into the first pack with room."""
    packs = []
    for size in sizes:
        for one in packs:
            if sum(one) + size <= length:
                one.append(size)
                break
        else:
            packs.append([size])
    return packs


def best_fit(sizes, length):
    """The definition: longest first, each into the pack with the least room that is enough."""
    packs = []
    for size in sorted(sizes, reverse=True):
        fitting = [one for one in packs if sum(one) + size <= length]
        if fitting:
            max(fitting, key=sum).append(size)
        else:
            packs.append([size])
    return packs


@many
@given(lengths_of_documents, st.integers(40, 80))
def test_first_fit_is_first_fit(lengths, length):
    due = first_fit([size for size in lengths.tolist() if size], length)
    assert sizes_of(pack(lengths, length=length, strategy="first_fit")) == due


@many
@given(lengths_of_documents, st.integers(40, 80))
def test_best_fit_needs_as_many_packs_as_its_definition(lengths, length):
    due = best_fit([size for size in lengths.tolist() if size], length)
    assert len(pack(lengths, length=length, strategy="best_fit")) == len(due)


def lognormal(seed, documents, median=1300, sigma=1.0, most=4096):
    drawn = np.random.default_rng(seed).lognormal(np.log(median), sigma, 2 * documents).astype(np.int64)
    return drawn[(drawn > 0) & (drawn <= most)][:documents]


def windows(lengths, size=1024):
    return [lengths[at : at + size] for at in range(0, len(lengths), size)]


def test_C7_best_fit_fills_99_in_100_of_the_budget_on_lognormal_lengths():
    lengths = lognormal(7, 20 * 1024)
    packs = sum(len(pack(one, length=4096, strategy="best_fit")) for one in windows(lengths))
    assert lengths.sum() / (packs * 4096) >= 0.99


def costs(lengths, strategy):
    packs = [sizes for one in windows(lengths) for sizes in sizes_of(pack(one, length=4096, strategy=strategy))]
    return np.array([sum(size * size for size in sizes) for sizes in packs])


@pytest.mark.parametrize(("median", "sigma"), [(1300, 1.0), (200, 0.7), (600, 0.3)])
def test_C3_balanced_evens_out_the_cost_with_hardly_more_packs(median, sigma):
    lengths = lognormal(3, 8 * 1024, median, sigma)
    even, tight = costs(lengths, "balanced"), costs(lengths, "best_fit")
    assert even.std() / even.mean() < 0.85 * tight.std() / tight.mean()
    assert len(even) <= 1.01 * len(tight)


@many
@given(lengths_of_documents, st.integers(8, 90), st.sampled_from([None, 1, 5]), st.sampled_from([1, 8]))
def test_F6_no_padded_batch_exceeds_its_tokens_and_rows(lengths, max_tokens, max_rows, multiple_of):
    spec = PaddedSpec(
        length=max_tokens // multiple_of * multiple_of,
        max_tokens=max_tokens,
        max_rows=max_rows,
        multiple_of=multiple_of,
        pads=(("input_ids", 0),),
        column="input_ids",
        overlong="cut",
        eos=None,
        pad=None,
        labels=None,
        number=1,
    )
    layout = TokenBatches(spec=spec, window=60).lay_out(lengths, str)
    batches = [one for one in sizes_of(layout) if one]
    assert sum(map(sum, batches)) == lengths.sum()
    assert all(spec.places(np.array(one)) <= max_tokens for one in batches)
    assert all(max_rows is None or len(one) <= max_rows for one in batches)
    assert all(one == sorted(one) for one in pieces_of(layout)), "rows keep the order of their positions"
