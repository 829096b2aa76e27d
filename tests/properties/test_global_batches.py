"""Global batches: step s has the same rows on any number of ranks, before and after any resize."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from counted_pipelines import as_list, pipelines
from worlds import ids, write_documents, write_files


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("global")
    return {
        "rows": me.read(write_files(folder / "rows", [37, 20, 26])).shuffle(1, window=20),
        "packs": pipelines(
            "best_fit", write_documents(folder / "documents", [(7 * n) % 23 + 1 for n in range(90)])
        ).survey(),
    }


def rows_of(batch, name):
    return ids([batch]) if name == "rows" else as_list(batch)


def loaders_of(dataset, name, ranks, sizes, even):
    whole, micro = sizes
    collate = None if name == "rows" else list
    options = {"global_batch_size": whole, "micro_batch_size": micro, "even": even, "collate_fn": collate}
    return [me.Loader(dataset.shard(ranks, rank), **options) for rank in range(ranks)]


def steps_of(loaders, name, count):
    """The rows of the next steps, in the order of the global batch, and whether each micro-batch is padding."""
    loops = [iter(loader) for loader in loaders]
    for _ in range(count):
        accumulated = [
            [(rows_of(next(loop), name), loader.is_padding) for _ in range(loader.accumulation)]
            for loop, loader in zip(loops, loaders, strict=True)
        ]
        yield [micro for round_of_ranks in zip(*accumulated, strict=True) for micro in round_of_ranks]


@pytest.mark.parametrize("name", ["rows", "packs"])
@settings(max_examples=15)
@given(
    micro=st.integers(1, 3),
    batches=st.sampled_from([1, 4, 6, 12]),
    even=st.sampled_from(["auto", "drop"]),
    layouts=st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4),
    draw=st.data(),
)
def test_a_step_has_the_same_rows_on_any_number_of_ranks(data, name, micro, batches, even, layouts, draw):
    sizes = batches * micro, micro
    [alone] = loaders_of(data[name], name, 1, sizes, even)
    assert alone.accumulation == batches
    number = len(alone) // batches
    assert len(alone) % batches == 0
    expected = list(steps_of([alone], name, number))
    kept = [row for step in expected for rows, is_padding in step for row in rows if not is_padding]
    if even == "auto":
        whole = me.Loader(data[name].lanes(batches), collate_fn=None if name == "rows" else lambda item: [item])
        assert sorted(kept) == sorted(row for batch in whole for row in rows_of(batch, name))
    got, state = [], None
    for leg, ranks in enumerate(layouts):
        if batches % ranks:
            continue
        loaders = loaders_of(data[name], name, ranks, sizes, even)
        for loader in loaders:
            assert loader.accumulation == batches // ranks
            if state is not None:
                loader.load_state_dict(state)
        left = number - len(got)
        if not left:
            break
        taken = left if leg == len(layouts) - 1 else draw.draw(st.integers(0, left), label=f"steps on {ranks} ranks")
        got += steps_of(loaders, name, taken)
        saver = draw.draw(st.integers(0, ranks - 1), label="the rank that saves")
        state = json.loads(json.dumps(loaders[saver].state_dict()))
    assert got == expected[: len(got)]


def test_an_epoch_ends_with_a_whole_step_and_the_next_begins_with_one(data):
    loaders = loaders_of(data["rows"], "rows", 2, (24, 3), "auto")
    steps = [list(loader) for loader in loaders]
    assert [len(batches) for batches in steps] == [len(loader) for loader in loaders] == [16, 16]
    assert [loader.epoch for loader in loaders] == [1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch_size": 0, "micro_batch_size": 1}, "global_batch_size is 0"),
        ({"global_batch_size": 4, "micro_batch_size": 0}, "micro_batch_size is 0"),
        ({"global_batch_size": 4}, "both global_batch_size and micro_batch_size"),
        ({"micro_batch_size": 4}, "both global_batch_size and micro_batch_size"),
        ({"global_batch_size": 4, "micro_batch_size": 3}, "no multiple"),
        ({"global_batch_size": 4, "micro_batch_size": 2, "batch_size": 2}, "not both"),
        ({"global_batch_size": 6, "micro_batch_size": 2}, "cannot share evenly"),
        ({"global_batch_size": 4, "micro_batch_size": 2, "even": None}, "needs even="),
    ],
)
def test_sizes_that_do_not_fit_are_refused(data, options, message):
    with pytest.raises(ValueError, match=message):
        me.Loader(data["rows"].shard(2, 0), **options)


def test_pipelines_that_cannot_have_global_batches_are_refused(data):
    sizes = {"global_batch_size": 4, "micro_batch_size": 2}
    with pytest.raises(ValueError, match="number of items is known"):
        me.Loader(data["rows"].filter(ids), **sizes)
    with pytest.raises(ValueError, match="mode='file'"):
        me.Loader(data["rows"].shard(2, 0, mode="file"), **sizes)
    assert me.Loader(data["rows"], batch_size=2).accumulation == 1
