"""Filters and partitions in worker processes, forked and spawned."""

import pyarrow.compute as pc
import pytest

import midepoch as me
from midepoch.checkpoint.merge import merge_states
from worlds import ids, write_files


@pytest.fixture
def root(tmp_path):
    for year in (1, 2, 3):
        write_files(tmp_path / "data" / f"year={year}", [30, 20], ["parquet", "stream"])
    return tmp_path / "data"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_go_on_where_others_stopped(root, method):
    filters = (pc.field("year") != 2) & (pc.field("id") > 12) & pc.field("maybe").is_valid()

    def loader(workers):
        dataset = me.read(root, partitioning="hive", filters=filters, columns=["id", "year"]).shuffle(1).lanes(4)
        return me.Loader(
            dataset, batch_size=3, num_workers=workers, multiprocessing_context=method if workers else None
        )

    whole = ids(loader(0))
    assert len(whole) == 2 * len([number for number in range(13, 50) if number % 5])
    first = loader(2)
    batches = iter(first)
    seen = ids(next(batches) for _ in range(5))
    state = merge_states([first.state_dict()])
    del batches
    second = loader(0)
    second.load_state_dict(state)
    assert sorted([*seen, *ids(second)]) == sorted(whole)
    assert seen == whole[: len(seen)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize(("lanes", "workers"), [(1, 2), (3, 2), (2, 3)])
def test_a_loop_may_be_left_at_any_batch_with_more_turns_of_workers_than_lanes(tmp_path, lanes, workers):
    """Batches of several workers that lie in one lane arrive together: the state is that of the last received."""
    dataset = me.read(write_files(tmp_path / "data", [40, 35])).filter(lambda row: row["id"] % 3).lanes(lanes)
    whole = ids(me.Loader(dataset, batch_size=2))
    loader = me.Loader(dataset, batch_size=2, num_workers=workers)
    batches, states, seen = iter(loader), [], []
    for batch in batches:
        seen.append(ids([batch]))
        states.append(loader.state_dict())
    assert [row for rows in seen for row in rows] == whole
    received = 0
    for rows, state in zip(seen[:-1], states, strict=False):
        received += len(rows)
        resumed = me.Loader(dataset, batch_size=2)
        resumed.load_state_dict(state)
        assert ids(resumed) == whole[received:]
