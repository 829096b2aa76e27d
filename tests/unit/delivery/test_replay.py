"""Steps of filters that nobody has counted: what a replay says came is what came."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import midepoch as me
from counted import are_kept, is_kept, write_files
from files import plain

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
@example(lanes=4, ranks=(3, 1), batch=5, drop_last=True, steps=2)  # nothing is left to trace
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
        received.append([plain(one["id"]) for _, one in zip(range(steps), loader, strict=False)])
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
    received = [[plain(one["id"]) for one in loader] for loader in second]
    if any(loader.epoch > 1 for loader in second):  # nothing was left of the epoch, so these are batches of the next
        received = [[] for _ in second]
    for loader in second:
        loader.load_state_dict(state)
    check(second, received)


def test_what_a_replay_cannot_say(files):
    loader = me.Loader(me.read(files).filter(is_kept), batch_size=4)
    for question in ({"epoch": 1}, {"ranks": 2}):
        with pytest.raises(ValueError, match=r"Steps of other epochs, .* cannot be traced .*call \.survey\(\) once"):
            loader.trace(0, **question)
        with pytest.raises(ValueError, match="Steps of other epochs"):
            loader.find("0.arrow", 1, **question)


def lines_of(table):
    names = ("step", "place", "file", "row")
    return [tuple(line[name] for name in names) for line in table.to_pylist()]


def test_batches_that_a_filter_keeps_are_traced_to_their_rows(files):
    def starts_even(batch):
        return batch["id"][0] % 2 == 0

    loader = me.Loader(me.read(files).batch(3).filter(starts_even), batch_size=2)
    received = [[list(map(int, ids)) for ids in one["id"]] for one in loader]
    loader.set_epoch(0)
    for step, batches in enumerate(received):
        traced = [(place, FIRST_ROWS[file] + row) for _, place, file, row in lines_of(loader.trace(step))]
        assert traced == [
            (3 * slot + place, row) for slot, rows in enumerate(batches) for place, row in enumerate(rows)
        ]


def test_rows_of_a_batched_filter_are_traced_and_found(files):
    loader = me.Loader(me.read(files).shuffle(2).filter(are_kept, batched=True), batch_size=4)
    received = [plain(one["id"]) for one in loader]
    loader.set_epoch(0)
    for step, ids in enumerate(received):
        assert [FIRST_ROWS[file] + row for _, _, file, row in lines_of(loader.trace(step))] == ids
        for place, number in enumerate(ids):
            file = max((name for name in FIRST_ROWS if FIRST_ROWS[name] <= number), key=FIRST_ROWS.get)
            assert lines_of(loader.find(file, number - FIRST_ROWS[file])) == [
                (step, place, file, number - FIRST_ROWS[file])
            ]
    assert loader.find("0.arrow", 3).num_rows == 0


def test_what_a_function_makes_of_a_group_is_traced_to_all_rows_of_the_group(files):
    def doubled(columns):
        return {"id": [number for number in columns["id"] for _ in range(2)]}

    rows = me.read(files).map(doubled, batched=True, batch_size=3, remove_columns=["input_ids"])
    loader = me.Loader(rows, batch_size=1)
    assert lines_of(loader.trace(7)) == [(7, 0, "0.arrow", row) for row in (3, 4, 5)]
    assert [step for step, *_ in lines_of(loader.find("0.arrow", 4))] == list(range(6, 12))
