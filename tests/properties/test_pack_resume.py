"""Packs after a resume are those of the uninterrupted run, bit for bit, wherever it was cut and whoever resumes."""

import json
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import midepoch as me
from midepoch.stages import flow
from midepoch.stages.pack import stream, windows
from midepoch.testing import assert_elastic, assert_resumes
from worlds import PackWorld, as_arrays, pack_noise, pack_worlds, write_documents


@given(pack_worlds(around=False))
def test_C3_every_token_once_and_no_pack_too_long(world: PackWorld) -> None:
    options = world.options
    eos, length = options["eos"], options["length"]
    with tempfile.TemporaryDirectory() as folder:
        packs = list(world.build(world.write(Path(folder))))
    due: Counter[int] = Counter()
    for number, size in enumerate(world.lengths):
        tokens = [1000 * number + place for place in range(size)] + [eos] * (eos is not None)
        if options["overlong"] != "drop" or len(tokens) <= length:
            due.update(tokens)
    got: Counter[int] = Counter()
    for one in packs:
        real = int(one["cu_seqlens"][-1])
        got.update(one["input_ids"][:real].tolist())
        assert 0 < real <= length or (options["overlong"] == "alone" and len(one["cu_seqlens"]) == 2)
        assert len(one["input_ids"]) == (real if options["pad"] is None else max(real, length))
        check_what_is_inside(one, real, eos, options["pad"])
    assert got == due
    lanes = world.calls[-1][1][0]
    if options["strategy"] == "concat":
        assert sum(one["cu_seqlens"][-1] < length for one in packs) <= lanes


def check_what_is_inside(one, real, eos, pad):
    """Each piece is consecutive tokens of one document, with the columns along the tokens; padding is no piece."""
    ends = one["cu_seqlens"].tolist()
    assert ends == sorted(set(ends))
    for number, (begin, end) in enumerate(pairwise(ends)):
        tokens = one["input_ids"][begin:end].tolist()
        if tokens[-1] == eos and eos is not None:
            assert one["loss_mask"][end - 1]
            tokens = tokens[:-1]
        assert tokens == [] or tokens == list(range(tokens[0], tokens[0] + len(tokens)))
        assert one["loss_mask"][begin : begin + len(tokens)].tolist() == [token % 3 for token in tokens]
        assert one["position_ids"][begin:end].tolist() == list(range(end - begin))
        assert set(one["document_ids"][begin:end].tolist()) == {number}
    assert set(one["input_ids"][real:].tolist()) <= {pad}
    assert set(one["document_ids"][real:].tolist()) <= {-1}
    assert not one["position_ids"][real:].any()
    assert not one["loss_mask"][real:].any()
    if "labels" in one:
        assert (one["labels"][:real] == one["input_ids"][:real]).all()
        assert (one["labels"][real:] == -100).all()


@pytest.fixture
def folder(tmp_path):
    lengths = np.random.default_rng(5).integers(0, 23, 60).tolist()
    lengths[17] = 300
    return write_documents(tmp_path / "data", lengths)


def packing(folder, strategy):
    return me.read(folder).shuffle(1, window=20).lanes(3).map(as_arrays).pack(20, strategy=strategy, window=8, eos=7)


STRATEGIES = ["best_fit", "first_fit", "balanced", "concat"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_C4_at_every_pack_the_state_is_ints_and_small_and_the_next_packs_are_the_same(folder, strategy):
    dataset = packing(folder, strategy)
    sizes = set()
    for _ in dataset:
        state = json.dumps(dataset.state_dict())
        if dataset.epoch == 0:
            sizes.add(len(state))
    assert max(sizes) < 1024
    assert_resumes(packing(folder, strategy))
    assert_elastic(packing(folder, strategy), [(2, 2), (3, 1), (1, 3), (4, 1)], steps=2)


def prove(dataset):
    assert_resumes(dataset)
    assert_elastic(dataset, [(2, 2), (3, 1), (1, 3), (4, 1)], steps=2)


def found(dataset):
    with pytest.raises((AssertionError, me.CheckpointMismatchError)):
        prove(dataset)


def off_by(error):
    def planted(right, run, layout, skips):
        cursors = right(run, layout, skips)
        cursors[:, 1] = np.maximum(0, cursors[:, 1] + error)
        return cursors

    return planted


def counted_from_the_pack(right, run, layout, skips):
    """And not from the document, which the run may hold from its start on."""
    cursors, documents = right(run, layout, skips), layout.documents[layout.bounds[1:] - 1]
    cursors[:, 1] -= layout.starts[0] * ((documents == layout.documents[0]) & (cursors[:, 1] > 0))
    return cursors


def without_the_document_under_way(right, run, layout, skips):
    cursors = right(run, layout, skips)
    cursors[:, 0] = run.cursors[layout.documents[layout.bounds[1:] - 1], 1, 0]
    return cursors


@pytest.mark.parametrize("plant", [off_by(-1), off_by(1), counted_from_the_pack, without_the_document_under_way])
def test_a_planted_cursor_inside_a_document(folder, monkeypatch, plant):
    right = stream.cursors_after
    monkeypatch.setattr(stream, "cursors_after", lambda *arguments: plant(right, *arguments))
    found(packing(folder, "concat"))


def test_a_planted_key_that_does_not_know_where_in_its_document_a_pack_begins(folder, monkeypatch):
    right = flow.keys_inside
    monkeypatch.setattr(stream, "keys_inside", lambda keys, _: right(keys, np.arange(len(keys))))
    found(packing(folder, "concat").map(pack_noise, with_rng=True))


def count_off_by(error):
    def planted(right, group, count):
        cursors, keys = right(group, count)
        cursors[:-1, -1] = np.maximum(0, cursors[:-1, -1] + error)
        return cursors, keys

    return planted


def without_the_start(right, group, count):
    return right(group._replace(start=(group.start[0] + 1, *group.start[1:])), count)


@pytest.mark.parametrize("plant", [count_off_by(-1), count_off_by(1), without_the_start])
@pytest.mark.parametrize("strategy", STRATEGIES[:3])
def test_a_planted_cursor_inside_a_window(folder, monkeypatch, strategy, plant):
    right = flow.Group.cursors_and_keys
    monkeypatch.setattr(flow.Group, "cursors_and_keys", lambda self, count: plant(right, self, count))
    found(packing(folder, strategy))


@pytest.mark.parametrize("strategy", STRATEGIES[:3])
def test_a_planted_window_whose_delivered_packs_are_not_dropped(folder, monkeypatch, strategy):
    right = flow.resume_groups
    monkeypatch.setattr(windows, "resume_groups", lambda groups, cursor, *more: right(groups, (*cursor[:-1], 0), *more))
    found(packing(folder, strategy))
