"""Rows that are left out of a mixture under way: they do not come any more, and all others come exactly once."""

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from counted import is_kept
from files import plain
from legs import check_edits
from surveys import surveyed

PARTS = {"a": 40, "b": 25, "c": 9}
"""The rows of each part. They are numbered from ``FIRST_IDS`` on."""
FIRST_IDS = {"a": 100, "b": 200, "c": 300}
LAYOUTS = st.tuples(st.integers(1, 3), st.integers(1, 2))
GONE = st.sets(st.sampled_from([(part, row) for part, rows in PARTS.items() for row in range(rows)]), max_size=14)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    for part, rows in PARTS.items():
        numbers = range(FIRST_IDS[part], FIRST_IDS[part] + rows)
        tokens = pa.array([[number] * (number % 7 + 1) for number in numbers], pa.list_(pa.int32()))
        table = pa.table({"id": range(rows), "number": numbers, "input_ids": tokens})
        with pa.OSFile(str(folder / f"{part}.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            for batch in table.to_batches(max_chunksize=4):
                writer.write_batch(batch)
    return folder


def mixture(folder, *, stop="all", filtered=(), nested=False, counted=True, level="block"):
    def part(name):
        rows = me.read(folder / f"{name}.arrow")
        rows = rows if level is None else rows.shuffle(3, level=level)
        rows = rows.filter(is_kept) if name in filtered else rows
        return surveyed(rows) if counted else rows

    if nested:
        inner = me.mix({"b": part("b"), "c": part("c")}, weights=[2, 1], stop="all", seed=4)
        return me.mix({"a": part("a"), "inner": inner}, weights=[1, 1], stop=stop, seed=2)
    return me.mix({name: part(name) for name in PARTS}, weights=[3, 2, 1], stop=stop, seed=2)


def ids_of(item):
    return [item["number"]] if isinstance(item["number"], int) else plain(item["number"])


def named(gone):
    return [(f"{part}.arrow", row) for part, row in gone]


def ids_gone(gone):
    return {FIRST_IDS[part] + row for part, row in gone}


@settings(max_examples=25)
@given(
    options=st.fixed_dictionaries(
        {
            "filtered": st.sampled_from([(), ("a",), ("b", "c")]),
            "nested": st.booleans(),
            "counted": st.booleans(),
            "level": st.sampled_from([None, "row", "block"]),
        }
    ),
    batch=st.sampled_from([None, 3]),
    lanes=st.integers(1, 3),
    layouts=st.tuples(LAYOUTS, LAYOUTS, LAYOUTS),
    steps=st.tuples(st.integers(0, 6), st.integers(0, 4)),
    gone=st.tuples(GONE, GONE),
)
def test_everything_else_comes_exactly_once(folder, options, batch, lanes, layouts, steps, gone):
    dataset = mixture(folder, **options).lanes(lanes)
    dataset = dataset.batch(batch) if batch else dataset
    edits = [(named(gone[0]), ids_gone(gone[0])), (named(gone[1] - gone[0]), ids_gone(gone[1]))]
    check_edits(dataset, mixture(folder, **options), layouts, steps, edits, ids_of)


@pytest.mark.parametrize("counted", [True, False])
def test_every_pass_of_an_endless_mixture_goes_on_without_the_rows(folder, counted):
    dataset = mixture(folder, stop="never", counted=counted, filtered=("b",)).lanes(2)
    items = iter(dataset)
    first = [next(items)["number"] for _ in range(61)]
    gone = {("a", 3), ("a", 39), ("b", 1), ("c", 0), ("c", 8)}
    edited = dataset.without(named(gone))
    edited.load_state_dict(dataset.state_dict())
    items = iter(edited)
    rest = [next(items)["number"] for _ in range(400)]
    assert not set(rest) & ids_gone(gone)
    whole = Counter(first + rest)
    kept = [number for number in whole if number not in ids_gone(gone)]
    for part, rows in PARTS.items():
        times = {whole[number] for number in kept if FIRST_IDS[part] <= number < FIRST_IDS[part] + rows}
        assert max(times) - min(times) <= 2, "each of two lanes is in one pass over its rows of a part"
    resumed = mixture(folder, stop="never", counted=counted, filtered=("b",)).lanes(2).without(named(gone))
    resumed.load_state_dict(edited.state_dict())
    assert [row["number"] for _, row in zip(range(50), resumed, strict=False)] == [
        next(items)["number"] for _ in range(50)
    ]


def test_a_part_that_was_edited_before_mixing_is_adopted_too_and_parts_may_change_order(folder):
    dataset = mixture(folder, level=None).lanes(2)
    items = iter(dataset)
    first = [next(items)["number"] for _ in range(20)]
    state = dataset.state_dict()
    gone = {("a", 30), ("a", 2), ("c", 7)}
    once = mixture(folder, level=None).lanes(2).without(named(gone))
    once.load_state_dict(state)
    items = iter(once)
    between = [next(items)["number"] for _ in range(10)]
    state = once.state_dict()
    assert state["edits"] == [1, 0, 1]
    rows = {part: me.read(folder / f"{part}.arrow") for part in PARTS}
    edited = {
        "b": rows["b"].without([("b.arrow", 20)]),
        "a": rows["a"].without([("a.arrow", 2), ("a.arrow", 30)]),
        "c": rows["c"].without([("c.arrow", 7)]),
    }
    again = me.mix(edited, weights=[5, 1, 1], stop="all", seed=2).lanes(2)
    again.load_state_dict(state)
    assert again.state_dict()["edits"] == [1, 1, 1]
    rest = [row["number"] for row in again]
    lost = ids_gone(gone | {("b", 20)}) - set(first + between)
    everything = {FIRST_IDS[part] + row for part, rows in PARTS.items() for row in range(rows)}
    assert sorted(first + between + rest) == sorted(everything - lost)


def test_what_cannot_be_left_out_of_a_mixture_is_said(folder):
    dataset = mixture(folder)
    with pytest.raises(ValueError, match="which no part of the mixture has"):
        dataset.without([("z.arrow", 1)])
    with pytest.raises(ValueError, match="the part 'z', which the mixture does not have: a, b, c"):
        dataset.without([("z", "a.arrow", 1)])
    with pytest.raises(TypeError, match="a part, a file and a row"):
        dataset.without("a.arrow")
    rows = me.read(folder / "a.arrow")
    both = me.mix({"x": rows, "y": rows.shuffle(1)}, weights=[1, 1], stop="all")
    with pytest.raises(ValueError, match=r"several parts of the mixture have: x, y\. Name the part too: \('x', "):
        both.without([("a.arrow", 1)])
    ids = sorted(row["number"] for row in both.without([("y", "a.arrow", 1)]))
    assert Counter(ids)[101] == 1
    assert len(ids) == 79


def test_a_damaged_number_of_edits_is_refused(folder):
    dataset = mixture(folder)
    next(iter(dataset))
    state = {key: value for key, value in dataset.state_dict().items() if key != "checksum"}
    for edits in (1, [1, 0], [0, 0, 0], [1, 0, 0], [[1], 0, 0]):
        with pytest.raises(me.CheckpointMismatchError):
            dataset.load_state_dict({**state, "edits": edits})
