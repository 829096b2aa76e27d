"""Mixtures by tokens: parts have their shares of tokens, over an epoch and over any stretch of it."""

import json
import logging
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch._common.checks import log_once
from midepoch.dataset import plan_of
from midepoch.pipeline.schedule import ROUNDED, integer_weights, token_weights
from midepoch.testing import assert_elastic, assert_resumes
from worlds import write_documents

STRETCH = 1000


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Rows of about 2 tokens, and of about 40."""
    folder, draws = tmp_path_factory.mktemp("tokens"), np.random.default_rng(0)
    sizes = {"short": draws.integers(1, 4, 6000), "long": draws.integers(36, 45, 600)}
    return {
        name: me.read(write_documents(folder / name, lengths.tolist(), ["file"], block=100, files=1)).shuffle(1)
        for name, lengths in sizes.items()
    }


def tokens_of(dataset):
    """The tokens of each item, and whether it is one of the long rows."""
    sizes = [(len(item["input_ids"]), len(item["input_ids"]) > 10) for item in dataset]
    return np.array([size for size, _ in sizes]), np.array([is_long for _, is_long in sizes])


@pytest.mark.parametrize("share", [0.5, 0.2, 0.8])
@pytest.mark.parametrize("lanes", [1, 3])
def test_F7_shares_of_tokens_over_an_epoch_and_over_any_stretch_of_a_lane(parts, share, lanes):
    dataset = me.mix(parts, {"short": 1 - share, "long": share}, seed=1, stop="never", by="tokens").lanes(lanes)
    items = iter(dataset)
    sizes, is_long = tokens_of(next(items) for _ in range(6000))
    assert abs(sizes[is_long].sum() / sizes.sum() - share) < 0.01
    for lane in range(lanes):
        own, of_long = sizes[lane::lanes], np.where(is_long, sizes, 0)[lane::lanes]
        window = np.ones(STRETCH, int)
        got = np.convolve(of_long, window, "valid") / np.convolve(own, window, "valid")
        assert np.abs(got - share).max() < 0.05


def test_shares_by_items_are_others(parts):
    sizes, is_long = tokens_of(me.mix(parts, [1, 1]))
    assert sizes[is_long].sum() / sizes.sum() > 0.9


def test_a_planted_mean_changes_the_shares(parts, monkeypatch):
    monkeypatch.setattr("midepoch.dataset.mixing.mean_tokens", lambda *_: Fraction(1))
    sizes, is_long = tokens_of(me.mix(parts, [1, 1], by="tokens"))
    assert sizes[is_long].sum() / sizes.sum() > 0.9


def test_F7_the_state_has_the_integers_and_a_resume_keeps_them(parts):
    def build():
        return me.mix({name: part.take(300) for name, part in parts.items()}, [3, 1], by="tokens").lanes(2)

    weights = plan_of(build()).pipeline.source.weights.described
    assert all(type(weight) is int for weight in weights)
    assert sum(weights) <= ROUNDED
    described = build().state_dict()["fingerprint"]
    assert json.dumps(weights) in json.dumps(described)
    assert_resumes(build(), every=20)
    assert_elastic(build(), [(2, 2), (3, 1)], steps=20)


def test_F7_schedules_packs_batches_and_mixtures_of_mixtures(parts):
    schedule = me.WeightSchedule({0: {"short": 1, "long": 3}, 1500: {"short": 3, "long": 1}})
    dataset = me.mix(parts, schedule, stop="never", by="tokens")
    items = iter(dataset)
    for share, count in ((0.75, 1500), (0.25, 1500)):
        sizes, is_long = tokens_of(next(items) for _ in range(count))
        assert abs(sizes[is_long].sum() / sizes.sum() - share) < 0.02

    batches = list(me.mix([parts["short"].batch_by_tokens(12), parts["long"].batch_by_tokens(90)], by="tokens"))
    sizes = np.array([int(batch["lengths"].sum()) for batch in batches])
    long = np.array([batch["lengths"].max() > 10 for batch in batches])
    assert abs(sizes[long].sum() / sizes.sum() - 0.5) < 0.01

    inner = me.mix([part.pack(64, window=64) for part in parts.values()], [1, 1], stop="all")
    outer = me.mix({"inner": inner, "long": parts["long"].pack(512, window=64)}, [1, 2], by="tokens")
    sizes = np.array([len(pack["input_ids"]) for pack in outer])
    assert abs(sizes[sizes > 64].sum() / sizes.sum() - 2 / 3) < 0.03
    assert_resumes(outer.lanes(2), every=40)


def same(row):
    return row


def test_parts_without_known_lengths_are_named_with_what_to_do(parts):
    with pytest.raises(ValueError, match=r"'b', and no survey knows the lengths.*\.survey\(\) after it"):
        me.mix({"a": parts["short"], "b": parts["long"].map(same)}, by="tokens")
    with pytest.raises(ValueError, match=r"'b', and how many items pack yields.*survey"):
        me.mix({"a": parts["short"].pack(64), "b": parts["long"].map(same).pack(64)}, by="tokens")
    with pytest.raises(ValueError, match="never ends"):
        me.mix([parts["short"], me.mix([parts["long"]], stop="never")], by="tokens")
    with pytest.raises(ValueError, match="has no tokens"):
        me.mix({"a": parts["short"], "none": parts["long"].take(0)}, by="tokens")
    with pytest.raises(ValueError, match="it can be 'items' or 'tokens'"):
        me.mix(parts, by="bytes")


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1e6), st.fractions(1, 10**6)), min_size=1, max_size=20))
def test_weights_by_tokens_are_small_integers_near_the_exact_ones(pairs):
    weights, means = zip(*pairs, strict=True)
    if not any(weights):
        return
    whole = token_weights(weights, means)
    assert sum(whole) <= ROUNDED
    assert all((one > 0) == (weight > 0) for one, weight in zip(whole, weights, strict=True))
    exact = [Fraction(weight) / mean for weight, mean in zip(weights, means, strict=True)]
    for one, share in zip(whole, exact, strict=True):
        assert abs(Fraction(one, sum(whole)) - share / sum(exact)) < Fraction(2 * len(whole), ROUNDED)


def test_weights_that_are_rounded_are_logged_once(caplog):
    log_once.cache_clear()
    with caplog.at_level(logging.WARNING, "midepoch"):
        assert integer_weights([0.1 + 0.2, 0.7]) == integer_weights([0.1 + 0.2, 0.7])
        integer_weights([0.3, 0.7])
    [record] = caplog.records
    assert "The weights 0.30000000000000004, 0.7 of a mixture are rounded to " in record.message
