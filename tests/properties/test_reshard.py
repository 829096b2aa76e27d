"""Live membership: processes leave and join between two steps, and committed rows are those of one process."""

import random

import pytest

import midepoch as me
from counted_pipelines import as_list, pipelines
from worlds import ids, is_kept, write_documents, write_files


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reshard")
    lengths = [(7 * number) % 23 + 1 for number in range(90)]
    return {
        "rows": me.read(write_files(folder / "rows", [67, 50, 56])).shuffle(1, window=20).lanes(8),
        "packs": pipelines("best_fit", write_documents(folder / "documents", lengths)).survey().lanes(8),
    }


def one(item):
    return as_list([item]) if "cu_seqlens" in item else ids([item])


class Cluster:
    """Loaders that play the processes of an elastic run: the survivors are resharded, those that join are new."""

    def __init__(self, dataset, chance):
        self.dataset, self.chance = dataset, chance
        self.loaders = [me.Loader(dataset, even="auto")]
        self.committed, self.state = [], self.loaders[0].state_dict()
        self.loops = []

    def change(self, ranks):
        """Some processes die at any place of their loops, others join, and all go on from the committed state."""
        survivors = self.chance.sample(self.loaders, min(len(self.loaders), self.chance.randint(1, ranks)))
        joined = [me.Loader(self.dataset) for _ in range(ranks - len(survivors))]
        self.loaders = survivors + joined
        self.chance.shuffle(self.loaders)
        for index, loader in enumerate(self.loaders):
            loader.reshard(ranks, index, at=self.state)
        self.loops = [iter(loader) for loader in self.loaders]

    def step(self):
        """A step of all processes, committed at its end. False if the epoch has ended."""
        rows = []
        for loop, loader in zip(self.loops, self.loaders, strict=True):
            for item in loop:
                rows += [] if loader.is_padding else one(item)
                break
        self.committed += rows
        self.state = self.chance.choice(self.loaders).state_dict()
        return bool(rows)

    def die_in_a_step(self):
        """Some processes receive what nobody commits."""
        for loop in self.chance.sample(self.loops, self.chance.randint(0, len(self.loops))):
            next(loop, None)


@pytest.mark.parametrize("name", ["rows", "packs"])
def test_many_changes_of_membership_deliver_every_row_once_and_in_order(data, name):
    chance = random.Random(7)
    alone = me.Loader(data[name])
    cluster = Cluster(data[name], chance)
    for _ in range(120):
        cluster.change(chance.randint(1, 8))
        for _ in range(chance.choice([0, 0, 1, 1, 2])):
            cluster.step()
        cluster.die_in_a_step()
    expected, epochs = [], 0
    while len(expected) < len(cluster.committed):
        expected += [row for item in alone for row in one(item)]
        epochs += 1
    assert epochs > 1
    assert cluster.committed == expected[: len(cluster.committed)]


def test_an_iterator_from_before_is_out_of_date_and_other_shards_are_refused(data):
    loader = me.Loader(data["rows"].shard(2, 0))
    loop = iter(loader)
    next(loop)
    state = loader.state_dict()
    loader.reshard(3, 2, at=state)
    with pytest.raises(me.StaleIteratorError):
        next(loop)
    with pytest.raises(ValueError, match="index is 3 of 3"):
        loader.reshard(3, 3, at=state)
    with pytest.raises(me.CheckpointMismatchError):
        loader.reshard(2, 0, at={"version": 2})
    assert (loader.plan.ranks, loader.plan.rank) == (3, 2)
    assert loader.state_dict() == state


def test_a_pipeline_that_is_not_counted_takes_the_merged_state(data):
    filtered = data["rows"].filter(is_kept)
    loaders = [me.Loader(filtered.shard(2, rank)) for rank in range(2)]
    first = [ids([next(iter(loader))]) for loader in loaders]
    states = [loader.state_dict() for loader in loaders]
    with pytest.raises(me.CheckpointMismatchError, match="merge_states"):
        loaders[0].reshard(1, 0, at=states[0])
    loaders[0].reshard(1, 0, at=me.merge_states(states))
    assert first[0] + first[1] + ids(loaders[0]) == ids(me.Loader(filtered))
