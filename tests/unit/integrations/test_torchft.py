"""QuorumLoader against the interface that torchft publishes: groups die, join, fail to commit, and lose no row."""

import random

import pytest

import midepoch as me
from midepoch.integrations.torchft import QuorumLoader
from worlds import as_arrays, ids, is_kept, write_documents, write_files


class Manager:
    """What torchft.Manager answers in one group, as far as it is used."""

    def __init__(self):
        self.steps = self.batches = self.groups = 0
        self.rank, self.counts = None, True

    def register_state_dict_fn(self, key, load_state_dict, state_dict):
        self.load, self.state = load_state_dict, state_dict

    def participating_rank(self):
        return self.rank

    def num_participants(self):
        return self.groups

    def is_participating(self):
        return self.rank is not None and self.counts

    def current_step(self):
        return self.steps

    def batches_committed(self):
        return self.batches


class Group:
    def __init__(self, dataset, **given):
        self.manager = Manager()
        self.batches = QuorumLoader(self.manager, me.Loader(dataset), **given)


def quorum(groups, *, late=False, spares=0):
    """A quorum as torchft forms it. Groups behind load the state of one ahead, if ``late`` at the commit."""
    most = max(group.manager.steps for group in groups)
    ahead = [group for group in groups if group.manager.steps == most]
    behind = [group for group in groups if group not in ahead]
    sent = ahead[0].manager.state()
    for group in behind:
        group.manager.steps, group.manager.batches = most, ahead[0].manager.batches
        if not late:
            group.manager.load(sent)
    active = (ahead if late else groups)[: len(groups) - spares]
    for group in groups:
        group.manager.groups = len(active)
        group.manager.rank = active.index(group) if group in active else None
    return lambda: [group.manager.load(sent) for group in behind if late]


def take(groups):
    """A step of all groups, and what it took; checks that ranks do as many and that their weights are a mean."""
    taken = [list(group.batches.step()) for group in groups]
    assert len({len(batches) for batches in taken}) == 1
    real = [(item, weight) for batches in taken for item, weight in batches if weight]
    assert sum(weight for _, weight in real) == pytest.approx(groups[0].manager.groups)
    return sorted(rows_of(item) for item, _ in real)


def rows_of(item):
    return item["input_ids"].tolist() if "input_ids" in item else ids([item])


def commit(groups):
    for group in groups:
        group.manager.steps += 1
        group.manager.batches += group.manager.groups


@pytest.fixture(params=["rows", "packs"])
def dataset(request, tmp_path):
    if request.param == "rows":
        return me.read(write_files(tmp_path, [37, 30, 26])).shuffle(1, window=20).batch(2).lanes(8)
    documents = write_documents(tmp_path, [(7 * number) % 23 + 1 for number in range(70)])
    return me.read(documents).shuffle(1, window=20).map(as_arrays).pack(32, pad=0).survey().lanes(4)


@pytest.mark.parametrize("late", [False, True], ids=["healed at once", "healed at the commit"])
def test_whoever_takes_part_a_committed_step_has_the_rows_that_it_has_alone(dataset, late):
    chance = random.Random(5)
    alone, expected = [Group(dataset, micro_batches=6)], []
    for _ in range(20):
        quorum(alone)
        expected.append(take(alone))
        commit(alone)
    assert alone[0].batches.epoch >= 2
    groups, got = [Group(dataset, micro_batches=6)], []
    while len(got) < len(expected):
        for _ in range(chance.randint(0, 2)):
            if len(groups) < 5:
                groups.append(Group(dataset, micro_batches=6))
            elif len({group.manager.steps for group in groups}) == 1:
                groups.remove(chance.choice(groups))  # killed
        load = quorum(groups, late=late, spares=chance.randint(0, 1) if len(groups) > 2 and not late else 0)
        rows = take(groups)
        load()
        fate = chance.randint(0, 3)
        if fate:  # else nobody commits
            commit(groups[1:] if fate == 1 and len(groups) > 1 else groups)  # one may miss it
            got.append(rows)
        chance.shuffle(groups)
    assert got == expected


def test_a_checkpoint_fits_any_number_of_groups_and_of_ranks_in_them(dataset):
    first = [Group(dataset, micro_batches=5) for _ in range(3)]
    rows = []
    for _ in range(4):
        quorum(first)
        rows.append(take(first))
        commit(first)
    states = [group.batches.state_dict() for group in first]
    assert states[0] == states[1] == states[2]
    quorum(first)
    expected = take(first)
    ranks = [Group(dataset, micro_batches=5, group_rank=rank, group_world_size=2) for rank in range(2)]
    for rank in ranks:
        rank.batches.load_state_dict(states[0])
        rank.manager.groups, rank.manager.rank = 1, 0
    taken = [item for rank in ranks for item, weight in rank.batches.step() if weight]
    assert sorted(rows_of(item) for item in taken) == expected


def test_what_would_lose_rows_is_refused(tmp_path):
    data = me.read(write_files(tmp_path, [60]))
    group = Group(data, micro_batches=4)
    with pytest.raises(RuntimeError, match="No quorum yet"):
        group.batches.step()
    quorum([group])
    group.manager.counts = False
    with pytest.raises(RuntimeError, match="use_async_quorum=False"):
        group.batches.step()
    group.manager.counts = True
    list(group.batches.step())
    group.manager.steps, group.manager.batches = 1, 2  # another group had joined when it was committed
    with pytest.raises(RuntimeError, match="before step"):
        group.batches.step()
    with pytest.raises(ValueError, match="number of items is known"):
        QuorumLoader(Manager(), me.Loader(data.filter(is_kept)), micro_batches=4)
    with pytest.raises(ValueError, match="without global_batch_size"):
        QuorumLoader(Manager(), me.Loader(data, global_batch_size=8, micro_batch_size=2), micro_batches=4)
