"""Balanced ranks: a step has the rows that it has without, on any number of ranks, before and after any resize."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from counted_pipelines import as_list, pipelines
from worlds import write_documents

LENGTHS = [(11 * n * n) % 37 + 1 for n in range(90)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = write_documents(tmp_path_factory.mktemp("balanced"), LENGTHS)
    packed = {name: pipelines(name, folder).survey() for name in ("best_fit", "concat")}
    documents = pipelines("one to one", folder)
    mixed = me.mix({"a": documents, "b": documents.map(same)}, [2, 1], seed=3, stop="all")
    return packed | {
        "packed after mixing": mixed.pack(32, window=16).survey(),
        "packed before mixing": me.mix(packed, [2, 1], seed=3, stop="all"),
    }


def same(row):
    return row


def loaders_of(dataset, ranks, sizes, *, balance="cost", workers=0, even="auto"):
    options = {"global_batch_size": sizes[0], "micro_batch_size": sizes[1], "collate_fn": list, "even": even}
    return [
        me.Loader(dataset.shard(ranks, rank), **options, balance=balance, num_workers=workers) for rank in range(ranks)
    ]


def steps_of(loaders, count):
    """For each of the next steps and each rank, the micro-batches that are not padding."""
    loops = [iter(loader) for loader in loaders]
    for _ in range(count):
        step = []
        for loop, loader in zip(loops, loaders, strict=True):
            got = [(as_list(next(loop)), loader.is_padding) for _ in range(loader.accumulation)]
            step.append([rows for rows, is_padding in got if not is_padding])
        yield step


def rows_of(step):
    return sorted(micro for of_rank in step for micro in of_rank)


@pytest.mark.parametrize("name", ["best_fit", "concat", "packed after mixing", "packed before mixing"])
@settings(max_examples=6)
@given(
    micro=st.integers(1, 2),
    batches=st.sampled_from([4, 6, 12]),
    even=st.sampled_from(["auto", "drop"]),
    layouts=st.lists(st.sampled_from([(1, True), (2, True), (2, False), (3, True), (4, True), (6, True)]), max_size=4),
    draw=st.data(),
)
def test_steps_have_the_same_rows_before_and_after_any_resize(data, name, micro, batches, even, layouts, draw):
    sizes = batches * micro, micro
    [alone] = loaders_of(data[name], 1, sizes, balance=None, even=even)
    number = len(alone) // batches
    expected = [rows_of(step) for step in steps_of([alone], number)]
    done, state = 0, None
    for leg, (ranks, balanced) in enumerate([*layouts, (2, True)]):
        if batches % ranks:
            continue
        loaders = loaders_of(data[name], ranks, sizes, balance="cost" if balanced else None, even=even)
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        left = number - done
        taken = left if leg == len(layouts) else draw.draw(st.integers(0, left), label=f"steps on {ranks} ranks")
        for step in steps_of(loaders, taken):
            traced = trace_of(loaders[0], ranks)
            assert traced == [[len(tokens) for tokens in of_rank] for of_rank in map(flat, step)]
            assert rows_of(step) == expected[done]
            done += 1
        states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
        assert all(one == states[0] for one in states)
        state = states[0]
        if state["epoch"]:
            break
    assert done == number


def flat(micro_batches):
    return [tokens for micro in micro_batches for tokens in micro]


def trace_of(loader, ranks):
    """The lengths of the packs of each rank in the present step of its epoch, by its trace."""
    reached = loader.progress()
    steps = range(reached.step - loader.accumulation, reached.step)
    found = [[] for _ in range(ranks)]
    for one in steps:
        try:
            lines = loader.trace(one, epoch=reached.epoch).to_pylist()
        except IndexError:
            continue  # only padding
        for rank in range(ranks):
            places = {}
            for line in lines:
                if line["rank"] == rank:
                    places[line["place"]] = places.get(line["place"], 0) + line["stop"] - line["start"]
            found[rank] += [places[place] for place in sorted(places)]
    return found


@pytest.mark.parametrize("name", ["best_fit", "concat"])
@pytest.mark.parametrize(("taken", "resumed_on"), [(1, 3), (2, 2), (5, 1), (7, 6)])
def test_a_state_from_inside_a_step_loses_and_repeats_nothing(data, name, taken, resumed_on):
    [alone] = loaders_of(data[name], 1, (12, 1), balance=None)
    expected = sorted(as_list(batch) for batch in alone if not alone.is_padding)
    loaders = loaders_of(data[name], 2, (12, 1))
    loops = [iter(loader) for loader in loaders]
    got = [as_list(next(loop)) for _ in range(taken) for loop in loops]
    states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
    assert states[0] == states[1]
    for loader in loaders_of(data[name], resumed_on, (12, 1)):
        loader.load_state_dict(states[0])
        got += [as_list(batch) for batch in loader if not loader.is_padding]
    assert sorted(got) == expected


def test_ranks_get_nearer_costs_and_workers_and_reshard_change_nothing(data):
    def costs(loaders):
        steps = list(steps_of(loaders, len(loaders[0]) // loaders[0].accumulation - 1))
        return steps, [[cost_of(of_rank) for of_rank in step] for step in steps]

    def cost_of(micro_batches):
        return sum(length**2 for tokens in flat(micro_batches) for length in document_lengths(tokens))

    _, before = costs(loaders_of(data["best_fit"], 2, (12, 1), balance=None))
    steps, after = costs(loaders_of(data["best_fit"], 2, (12, 1)))
    assert sum(max(step) - min(step) for step in after) < 0.5 * sum(max(step) - min(step) for step in before)
    assert [sum(step) for step in after] == [sum(step) for step in before]
    loaders = loaders_of(data["best_fit"], 1, (12, 1))
    state = loaders[0].state_dict()
    loaders[0].reshard(2, 1, at=state)
    assert [[rank] for _, rank in steps] == list(steps_of(loaders, len(steps)))
    [_, with_workers] = loaders_of(data["best_fit"], 2, (12, 1), workers=2)
    assert [[rank] for _, rank in steps] == list(steps_of([with_workers], len(steps)))
    with_workers.close()


def document_lengths(tokens):
    """The lengths of the documents of a pack, which end with an eos of 7."""
    ends = [number + 1 for number, token in enumerate(tokens) if token == 7]
    bounds = [0, *ends, *([] if ends and ends[-1] == len(tokens) else [len(tokens)])]
    return [end - begin for begin, end in pairwise(bounds)]


def test_what_cannot_be_balanced_is_refused(data, tmp_path):
    packs, sizes = data["best_fit"], {"global_batch_size": 4, "micro_batch_size": 1}
    with pytest.raises(ValueError, match="pass global_batch_size too"):
        me.Loader(packs, 4, balance="cost")
    with pytest.raises(ValueError, match="it can be 'cost' or None"):
        me.Loader(packs, **sizes, balance="length")
    with pytest.raises(ValueError, match="needs the lengths of documents"):
        me.Loader(me.read(write_documents(tmp_path, [3, 4, 5])), **sizes, balance="cost")
    loader = me.Loader(packs, **sizes, collate_fn=list, balance="cost")
    with pytest.raises(ValueError, match="3 ranks cannot share evenly"):
        loader.trace(0, ranks=3)
