"""Steps of filters that nobody has counted: what a replay says came is what came."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from counted import are_kept, is_kept, same_columns, write_files
from midepoch.delivery.replay import can_replay

FIRST_ROWS = {"0.arrow": 0, "2.arrow": 17, "3.arrow": 48}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    return folder


def traced(loader, step):
    """The ids of the rows of each rank, in the order of the places in its batch."""
    ids = {}
    for line in loader.trace(step).to_pylist():
        assert line["place"] == len(ids.setdefault(line["rank"], []))
        ids[line["rank"]].append(FIRST_ROWS[line["file"]] + line["row"])
    return ids


def check(loaders, received):
    """Compare the trace of every step with what each rank received from where all started."""
    steps = max(map(len, received))
    for step in range(steps):
        expected = {rank: batches[step] for rank, batches in enumerate(received) if step < len(batches)}
        assert traced(loaders[step % len(loaders)], step) == expected
    with pytest.raises(IndexError, match=f"has no step {steps} from where the run started: it has {steps} steps?"):
        loaders[0].trace(steps)


@settings(max_examples=12)
@given(
    lanes=st.integers(1, 4),
    ranks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    batch=st.sampled_from([1, 2, 5]),
    drop_last=st.booleans(),
    steps=st.integers(1, 2),
)
def test_a_replay_names_the_rows_that_every_rank_received(files, lanes, ranks, batch, drop_last, steps):
    dataset = me.read(files).shuffle(3).filter(is_kept).lanes(lanes)

    def loaders_of(number):
        shards = [dataset.shard(number, rank) for rank in range(number)]
        return [me.Loader(shard, batch_size=batch, drop_last=drop_last, even=None) for shard in shards]

    first = loaders_of(ranks[0])
    received = []
    for loader in first:
        received.append([one["id"] for _, one in zip(range(steps), loader, strict=False)])
    assert all(
        traced(loader, step)[rank] == one[step]
        for rank, (loader, one) in enumerate(zip(first, received, strict=True))
        for step in range(len(one))
        if loader.epoch == 0
    )
    states = [loader.state_dict() for loader in first]
    if any(state["epoch"] for state in states):
        return
    state, second = me.merge_states(states), loaders_of(ranks[1])
    for loader in second:
        loader.load_state_dict(state)
    received = [[one["id"] for one in loader] for loader in second]
    for loader in second:
        loader.load_state_dict(state)
    if any(received):
        check(second, received)


def test_what_a_replay_cannot_say(files):
    rows = me.read(files)
    loader = me.Loader(rows.filter(is_kept), batch_size=4)
    with pytest.raises(ValueError, match=r"Steps of other epochs, .* cannot be traced .*call \.survey\(\) once"):
        loader.trace(0, epoch=1)
    assert can_replay(rows.filter(is_kept).map(lambda row: row).batch(3).plan.pipeline)
    for dataset in (
        rows.filter(are_kept, batched=True),
        rows.map(same_columns, batched=True),
        me.mix([rows.filter(is_kept), rows], weights=[1, 1]),
    ):
        assert not can_replay(dataset.plan.pipeline)
        with pytest.raises(ValueError, match="Steps cannot be traced"):
            me.Loader(dataset).trace(0)
