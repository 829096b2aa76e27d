"""Samples and packs with images after a resume are those of the uninterrupted run, pixel for pixel."""

import logging
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from chats import Chat, cropped, ids, process, tokenizer, words, write_parquet
from midepoch.stages.pack import packs
from midepoch.testing import assert_elastic, assert_resumes, same

layouts = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=2, max_size=3)
chats = st.builds(
    Chat,
    words=st.sampled_from([0, 1, 2, 5, 9, 14]),
    images=st.integers(0, 2),
    broken=st.sampled_from([False] * 4 + [True]),
)


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@dataclass(frozen=True)
class World:
    chats: list[Chat]
    block: int
    lanes: int
    options: dict[str, Any]

    def build(self, folder: Path) -> me.MultiModalIterableDataset:
        rows = me.read(folder)
        return me.MultiModalIterableDataset(rows, **self.options).lanes(self.lanes)

    def due(self) -> list[int]:
        """The rows that must come: those that are not broken, have a token, and fit where packs must."""
        lengths = [
            chat.images + len(tokenizer().encode(words(number, chat.words)).ids)
            for number, chat in enumerate(self.chats)
        ]
        packing, least = self.options["packing"], 1 if self.options["packing"] else 0
        most = self.options["packing_length"] if packing and self.options["filter_overlong"] else 10**9
        return [
            number
            for number, (chat, length) in enumerate(zip(self.chats, lengths, strict=True))
            if not chat.broken and least <= length <= most
        ]


@st.composite
def worlds(draw: Any) -> World:
    packing = draw(st.sampled_from([True, True, False]))
    with_rng = draw(st.booleans())
    options = {
        "processor": cropped if with_rng else process,
        "with_rng": with_rng,
        "packing": packing,
        "packing_strategy": draw(st.sampled_from(["first_fit", "best_fit", "balanced"])),
        "packing_length": draw(st.sampled_from([4, 10, 25, 80])),
        "packing_window": draw(st.sampled_from([1, 2, 5, 16])),
        "filter_overlong": draw(st.booleans()),
        "shuffle": draw(st.booleans()),
        "data_seed": draw(st.integers(0, 3)),
        "on_error": "skip",
        "max_skipped": 1.0,  # in few rows, those of a rank may all be broken
    }
    found = draw(st.lists(chats, min_size=1, max_size=24))
    return World(found, draw(st.integers(1, 7)), draw(st.integers(1, 4)), options)


def assert_made_of(packs: list[Any], samples: list[Any]) -> None:
    """Each pack, or sample, has the tokens and pixels of its samples in their order, bit for bit."""
    alone = {sample["id"]: sample for sample in samples}
    for one in packs:
        for name in ("input_ids", "labels", "pixel_values", "image_sizes"):
            parts = [alone[number][name] for number in ids([one]) if alone[number][name] is not None]
            assert same(one[name], np.concatenate(parts) if parts else None), name


@given(worlds())
def test_C1_C4_cut_after_every_item_and_resumed_twice(world: World) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_parquet(Path(folder), world.chats, block=world.block)
        dataset = world.build(Path(folder))
        whole = list(world.build(Path(folder)))
        assert sorted(ids(whole)) == world.due()
        assert_resumes(dataset, every=1 + len(whole) // 8)
        broken = sum(chat.broken for chat in world.chats)
        assert dataset.metrics()["skipped"] == broken, "each once, however often it was met"
        assert_made_of(whole, list(replace(world, options=world.options | {"packing": False}).build(Path(folder))))


@given(worlds(), layouts, st.integers(0, 4))
def test_C1_C5_any_number_of_ranks_and_workers(world: World, legs: list[tuple[int, int]], steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_parquet(Path(folder), world.chats, block=world.block)
        assert_elastic(world.build(Path(folder)), legs, steps=steps)


FIXED = [Chat(words=number % 7 + 1, images=number % 3, broken=number % 5 == 3) for number in range(30)]


@pytest.fixture
def fixed(tmp_path):
    def build(processor=process, packing=True, with_rng=False):
        write_parquet(tmp_path / "data", FIXED)
        given = {"packing": packing, "packing_length": 24, "packing_window": 6, "with_rng": with_rng}
        made = me.MultiModalIterableDataset(tmp_path / "data", processor=processor, on_error="skip", **given)
        return made.lanes(3)

    return build


def prove(dataset):
    assert_resumes(dataset)
    assert_elastic(dataset, [(2, 2), (3, 1), (1, 3)], steps=1)


def found(dataset):
    with pytest.raises((AssertionError, me.CheckpointMismatchError)):
        prove(dataset)


def test_without_a_planted_bug_all_is_well(fixed):
    prove(fixed())
    prove(fixed(processor=cropped, with_rng=True))


def test_a_planted_skip_that_depends_on_how_often_it_was_tried(fixed):
    tries = Counter()

    def flaky(sample):
        tries[sample["id"]] += 1
        if sample["id"] % 4 == 0 and tries[sample["id"]] % 2:
            raise ValueError("this time")
        return process(sample)

    found(fixed(processor=flaky))


def test_a_planted_join_in_another_order(fixed, monkeypatch):
    right = packs.join_others
    samples = list(fixed(packing=False))
    assert_made_of(list(fixed()), samples)

    def wrong(name, values, form):
        return right(name, values if name == "id" else values[::-1], form)

    monkeypatch.setattr(packs, "join_others", wrong)
    with pytest.raises(AssertionError, match="pixel_values"):
        assert_made_of(list(fixed()), samples)


def test_a_planted_crop_that_depends_on_the_process_and_not_on_the_row(fixed):
    rng = np.random.default_rng(0)
    found(fixed(processor=lambda sample: cropped(sample, rng)))


def test_samples_that_fail_only_before_the_cut_are_neither_repeated_nor_mixed_into_the_packs_under_way(fixed):
    class Flaky:
        failing = True

        def __call__(self, sample):
            if self.failing and sample["id"] in (4, 16):
                raise ValueError("for now")
            return process(sample)

    processor = Flaky()
    whole, refused = ids(fixed(processor)), 0
    for stop in range(1, len(list(fixed(processor)))):
        processor.failing = True
        first = fixed(processor)
        iterator = iter(first)
        got = ids([next(iterator) for _ in range(stop)])
        assert first.state_dict()["packer"]["delivered"] < 20
        processor.failing = False
        second = fixed(processor)
        second.load_state_dict(first.state_dict())
        try:
            got += ids(second)
        except me.CheckpointMismatchError:  # it is in the window under way
            refused += 1
            continue
        assert max(Counter(got).values()) == 1
        assert set(whole) <= set(got) <= {*whole, 4, 16}
    assert refused
