"""mix(): what it refuses, and what may change between a checkpoint and the run that resumes from it."""

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import midepoch as me
from files import write as write_batches
from midepoch.dataset import plan_of, with_plan
from worlds import ids, is_kept, keep_even, plus_one, spread, table, through_json, write

APART = 1000
SIZES = {"a": 40, "b": 30, "c": 20, "d": 12}
FIRST = {name: APART * number for number, name in enumerate(SIZES)}
SPREAD = {"batched": True, "batch_size": 5, "remove_columns": ["text", "tokens", "maybe"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    for name, size in SIZES.items():
        (folder / name).mkdir()
        write(folder / name / f"{name}.arrow", table(FIRST[name], size), "stream", 7)
    return folder


@pytest.fixture
def part(folder):
    return lambda name: me.read(folder / name)


def of(part, numbers):
    """The rows of a part among others, in their order."""
    return [number for number in numbers if number // APART == FIRST[part] // APART]


def resumed(dataset, state):
    dataset.load_state_dict(through_json(state))
    assert dataset.state_dict() == through_json(dataset.state_dict())
    return dataset


def with_weights(weights):
    return lambda part: me.mix({"a": part("a"), "b": part("b")}, weights)


REFUSED = [
    (lambda part: me.mix([]), ValueError, "at least one dataset, got none"),
    (lambda part: me.mix(part("a")), TypeError, r"a list or a dict of datasets, got Dataset\. Pass \[a, b\]"),
    (
        lambda part: me.mix([part("a"), "data"]),
        TypeError,
        r"midepoch datasets, got str\. Open the files first: midepoch.read",
    ),
    (lambda part: me.mix({1: part("a")}), TypeError, "must be strings"),
    (lambda part: me.mix([part("a")], seed=0.5), TypeError, "seed must be an integer"),
    (lambda part: me.mix([part("a")], stop="last"), ValueError, "stop is 'last'; it can be 'first', 'all' or 'never'"),
    (with_weights([1]), ValueError, "1 weight for 2 datasets"),
    (with_weights([1, -0.5]), ValueError, "at least 0"),
    (with_weights([1, math.nan]), ValueError, "finite"),
    (with_weights([0, 0]), ValueError, "not all 0"),
    (
        with_weights({"a": 1, "x": 2}),
        ValueError,
        r"weights are for a, x; the datasets are a, b\. .* with the same names",
    ),
    (with_weights(0.5), TypeError, "weights are 0.5; pass a number for each"),
    (lambda part: me.mix([part("a")], {"a": 1}), ValueError, "needs a dict of datasets"),
    (lambda part: me.mix([part("a").shard(2, 0)]), ValueError, r"its own shard\(\)\. Use shard on the mixture"),
    (lambda part: me.mix([part("a").lanes(2)]), ValueError, r"its own lanes\(\)\. Use lanes on the mixture"),
    (lambda part: me.mix([part("a").repeat(2)]), ValueError, r"its own repeat\(\)\. Use stop='never'"),
    (lambda part: me.mix([part("a"), part("b").with_format("numpy")]), ValueError, "kinds: .*Use the same with_format"),
    (lambda part: me.mix([part("a")]).shuffle(1), TypeError, "not possible on a mixture: use it on each"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_what_is_refused(part, call, error, message):
    with pytest.raises(error, match=message):
        call(part)


def is_any(item):
    """Keep everything, which is known only by reading."""
    return True


def test_weights_may_be_of_any_kind_and_size(part):
    parts = {"a": part("a"), "b": part("b")}
    expected = ids(me.mix(parts, [0.25, 0.75]))
    for weights in ((1, 3), np.array([0.25, 0.75]), {"b": 3, "a": 1}, [1e300, 3e300], [1e-300, 3e-300]):
        assert ids(me.mix(parts, weights)) == expected


def test_the_same_dataset_twice_keeps_two_positions(part):
    mixture = me.mix([part("a"), part("a"), part("b")], [2, 1, 1], stop="all")
    assert len(ids(mixture)) == 110
    names = mixture._plan.pipeline.source.names
    assert len(set(names)) == 3
    assert me.mix([part("b"), part("a"), part("a")])._plan.pipeline.source.names == (names[2], *names[:2])


STARTS = {
    "first": [],
    "shuffled": [("shuffle", (1,), {"window": 7})],
    "filtered": [("filter", (is_kept,), {})],
    "spread": [("map", (spread,), SPREAD)],
    "batched filter": [("filter", (keep_even,), {"batched": True})],
}


class TestChanges:
    """Each part resumes at its next row, whatever else is different."""

    many = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

    @many
    @given(data=st.data())
    def test_any_change_of_weights_seed_and_parts(self, folder, data):
        names = list(SIZES)
        kinds = {name: data.draw(st.sampled_from(list(STARTS))) for name in names}

        def build(chosen, lanes=None):
            parts = {}
            for name in chosen:
                parts[name] = me.read(folder / name)
                for method, args, options in STARTS[kinds[name]]:
                    parts[name] = getattr(parts[name], method)(*args, **options)
            weights = [data.draw(st.sampled_from([0.0, 0.2, 1.0, 1.0, 5.0])) for _ in chosen]
            weights = weights if any(weights) else None
            made = parts if named else list(parts.values())
            mixture = me.mix(made, weights, seed=data.draw(st.integers(0, 2)), stop="all")
            return (mixture.lanes(lanes) if lanes else mixture), chosen if weights is None else [
                name for name, weight in zip(chosen, weights, strict=True) if weight
            ]

        named = data.draw(st.booleans())
        lanes = data.draw(st.integers(1, 3))
        chosen = data.draw(st.permutations(names))[: data.draw(st.integers(1, 3))]
        dataset, _ = build(chosen, lanes)
        got = []
        for _ in range(data.draw(st.integers(1, 3))):
            got.append((list(chosen), ids(islice(dataset, data.draw(st.integers(0, 25))))))
            if dataset.epoch or not dataset.state_dict()["cursors"]:
                return  # all was read, or nothing yet
            state = dataset.state_dict()
            added = [name for name in names if name not in chosen and data.draw(st.booleans())]
            kept = [name for name in chosen if data.draw(st.booleans())] or chosen[:1]
            if not named and added:
                kept = chosen
            chosen = data.draw(st.permutations([*kept, *added]))
            dataset, drawn = build(chosen, None)
            resumed(dataset, state)
        got.append((list(chosen), ids(dataset)))
        if dataset.epoch > 1:
            return  # nothing was left
        for name in chosen:
            since = next(number for number in range(len(got)) if all(name in one for one, _ in got[number:]))
            alone = me.read(folder / name)
            for method, args, options in STARTS[kinds[name]]:
                alone = getattr(alone, method)(*args, **options)
            per_lane = [ids(alone.lanes(lanes).shard(lanes, lane)) for lane in range(lanes)]
            delivered = [number for _, numbers in got[since:] for number in of(name, numbers)]
            if name in drawn:
                assert sorted(delivered) == sorted(number for lane in per_lane for number in lane)
            for lane in per_lane:
                inside = set(lane)
                in_order = [number for number in delivered if number in inside]
                assert in_order == lane[: len(in_order)]

    def check(self, caplog, got, state, mixture, changes):
        """The resumed run is complete, and one log line names the changes."""
        caplog.clear()
        rest = ids(resumed(mixture, state))
        (line,) = [record.getMessage() for record in caplog.records]
        assert all(one in line for one in ["resumes with changes", *changes])
        return got + rest

    @pytest.mark.parametrize(
        ("weights", "options", "changes"),
        [
            ({"a": 1, "b": 3}, {}, ["a has weight 1 instead of 2", "b has weight 3 instead of 1"]),
            ({"a": 2, "b": 1}, {"seed": 5}, ["seed is 5 instead of 0"]),
            ({"c": 4, "a": 2, "b": 1}, {}, ["c is new and starts from its beginning, with weight 4"]),
            ({"b": 1}, {}, ["a was removed"]),
            ({"b": 1, "a": 2}, {}, ["its parts are in another order"]),
            ({"d": 1, "c": 1, "a": 1}, {"seed": 2}, ["d is new", "a has weight 1", "b was removed", "seed is 2"]),
        ],
    )
    def test_the_changes_are_named_and_every_part_goes_on(self, part, caplog, weights, options, changes):
        first = me.mix({"a": part("a"), "b": part("b")}, [2, 1], stop="all")
        got = ids(islice(first, 21))
        mixture = me.mix({name: part(name) for name in weights}, weights, stop="all", **options)
        whole = self.check(caplog, got, first.state_dict(), mixture, changes)
        for name, weight in weights.items():
            assert of(name, whole) == list(range(FIRST[name], FIRST[name] + SIZES[name]))
            assert abs(len(of(name, whole[21:39])) - 18 * weight / sum(weights.values())) < 2

    def test_a_nested_mixture_whose_weights_changed(self, part, caplog):
        def build(*inner):
            return me.mix(
                {"a": part("a"), "in": me.mix({"b": part("b"), "c": part("c")}, inner, stop="all")}, stop="all"
            )

        first = build(1, 1)
        got = ids(islice(first, 20))
        whole = self.check(caplog, got, first.state_dict(), build(1, 9), ["in in, c has weight 9 instead of 1"])
        assert "another order" not in caplog.text
        for name in "abc":
            assert of(name, whole) == list(range(FIRST[name], FIRST[name] + SIZES[name]))
        alternating = [number // APART == 0 for number in whole[:60]]
        assert alternating == alternating[:2] * 30  # the schedule of the outer one continues unchanged

    def test_the_merged_states_of_several_ranks(self, part):
        def rank(number, *weights):
            return me.mix([part("a").filter(is_any), part("b")], weights, stop="all").lanes(4).shard(2, number)

        ranks = [rank(number, 2, 1) for number in range(2)]
        got = [ids(islice(one, 9)) for one in ranks]
        states = through_json([one.state_dict() for one in ranks])
        for number in range(2):
            with pytest.raises(me.CheckpointMismatchError, match="To change a mixture, first join the states of all"):
                rank(number, 1, 1).load_state_dict(states[number])
            again = rank(number, 2, 1)
            again.load_state_dict(states[number])
            whole = ids(rank(number, 2, 1))
            assert got[number] + ids(again) == whole
        merged = me.merge_states(states)
        three = [
            me.mix([part("b"), part("c"), part("a").filter(is_any)], stop="all").shard(3, number) for number in range(3)
        ]
        rest = [number for one in three for number in ids(resumed(one, merged))]
        assert sorted([*got[0], *got[1], *rest]) == [*range(40), *range(1000, 1030), *range(2000, 2020)]

    def test_E4_ranks_an_epoch_apart(self, part):
        """The mixture changes in the epoch under way, and in the next one, where a rank was already."""

        def mixture(*weights):
            return me.mix([part("a").filter(is_any), part("b")], weights, stop="all").lanes(2)

        ahead, behind = (mixture(2, 1).shard(2, number) for number in range(2))
        first = ids(ahead)
        iterator = iter(ahead)
        second = ids(islice(iterator, 9))
        first += ids(islice(behind, 5))
        merged = through_json(me.merge_states([iterator.state_dict(), behind.state_dict()]))
        assert merged["later"]
        changed = resumed(mixture(1, 3), merged)
        for got in (first, second, []):
            assert sorted(got + ids(changed)) == [*range(40), *range(1000, 1030)]


class TestRefusedChanges:
    @pytest.fixture
    def state(self, part):
        dataset = me.mix({"a": part("a"), "b": part("b").filter(is_kept)}, [2, 1])
        list(islice(dataset, 8))
        return through_json(dataset.state_dict())

    def refused(self, mixture, state, message):
        before = mixture.state_dict()
        with pytest.raises(me.CheckpointMismatchError, match=message):
            mixture.load_state_dict(state)
        assert mixture.state_dict() == before

    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (
                lambda a, b, c: me.mix({"a": a, "b": b.filter(is_kept)}, [2, 1], stop="all"),
                r"stop of stage 1, mix, was 'first' then and is 'all' now.*Build it as it was",
            ),
            (
                lambda a, b, c: me.mix({"a": c, "b": b.filter(is_kept)}, [2, 1]),
                r"part 'a' .* is not the one.*a.arrow is missing.*give that another name",
            ),
            (
                lambda a, b, c: me.mix({"a": a, "b": b.filter(keep_even)}, [2, 1]),
                r"part 'b'.*fn of stage 1, filter, was 'is_kept' then and is 'keep_even' now",
            ),
            (lambda a, b, c: me.mix({"x": c, "y": b}), "a changed old part is unknown"),
            (lambda a, b, c: me.mix([c]), "a changed old part is unknown"),
            (lambda a, b, c: a, "The checkpoint is of a mixture"),
            (
                lambda a, b, c: me.mix({"a": a, "b": b.filter(is_kept)}, [1, 1]).map(plus_one),
                r"stage 2, map\(fn='plus_one'\), was added",
            ),
        ],
    )
    def test_another_mixture(self, part, state, caplog, build, message):
        self.refused(build(part("a"), part("b"), part("c")), state, message)
        assert not caplog.records

    def test_inside_a_group_after_the_mixture(self, part, caplog):
        def build(*weights):
            mixture = me.mix([part("a"), part("b")], weights, stop="all")
            return mixture.map(spread, **SPREAD)

        whole = ids(build(1, 1))
        refused = 0
        for cut in range(1, len(whole) - 1):
            dataset = build(1, 1)
            got = ids(islice(dataset, cut))
            state = dataset.state_dict()
            assert got + ids(resumed(build(1, 1), state)) == whole
            caplog.clear()
            if state["cursors"][0][1][-1]:
                self.refused(build(1, 2), state, "inside a group that a stage after the mixture makes")
                assert not caplog.records
                refused += 1
            else:
                assert sorted(got + ids(resumed(build(1, 2), state))) == sorted(whole)
        assert 0 < refused < len(whole) - 2


@pytest.fixture
def lists(tmp_path):
    batch = pa.record_batch({"id": [0, 1, 2], "input_ids": [[1, 2], [3], [4, 5, 6]]})
    return me.read(write_batches(tmp_path / "a.arrow", batch))


def test_a_filter_after_a_mixture_is_not_counted_and_the_remedy_is_named(lists):
    after = me.mix([lists, lists.skip(1)]).filter(lambda row: True)
    assert after.why_not_counted() == (
        "Filter comes after mix, whose items have no row numbers by which a survey could know them: use "
        "filter on each of the datasets before mixing them."
    )
    with pytest.raises(ValueError, match=r"filter after a mixture cannot be surveyed.* before mixing them"):
        after.survey()


class TestPackAfterAMixture:
    def test_packs_of_an_endless_mixture_are_counted_and_have_no_length(self, lists):
        packed = me.mix([lists, lists.skip(1)], stop="never").pack(4, window=2)
        assert packed.counted
        with pytest.raises(TypeError, match=r"stop='never' never ends"):
            len(packed)
        assert not me.mix([lists.pack(4), lists.pack(4)]).pack(4).counted

    def test_a_row_that_is_longer_than_surveyed_is_named(self, lists):
        packed = me.mix({"a": lists, "b": lists.skip(1)}).map(repeat_tokens).pack(4).survey()
        pipeline = plan_of(packed).pipeline
        stage = pipeline.stages[0]
        changed = replace(stage, call=replace(stage.call, function=lambda row: {"input_ids": [1] * 9}))
        packed = with_plan(
            packed, replace(plan_of(packed), pipeline=replace(pipeline, stages=(changed, *pipeline.stages[1:])))
        )
        with pytest.raises(me.SurveyMismatchError, match=r"a document has 9 tokens, and .*, at row \d of a\.arrow"):
            list(packed)


def repeat_tokens(row):
    return {"input_ids": row["input_ids"] * 2}
