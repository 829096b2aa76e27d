"""Real processes leave by SIGKILL and join between two steps: committed rows are those of one process."""

import multiprocessing
import random

import midepoch as me
from membership import serve
from worlds import ids, write_files


class Cluster:
    def __init__(self, dataset, state):
        self.dataset, self.state, self.committed = dataset, state, []
        self.members = []  # processes and pipes

    def start(self):
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        others = [here, *(pipe for _, pipe in self.members)]
        process = context.Process(target=serve, args=(self.dataset, there, others))
        process.start()
        there.close()
        self.members.append((process, here))

    def change(self, ranks):
        while len(self.members) < ranks:
            self.start()
        while len(self.members) > ranks:
            self.kill(self.members[-1])
        for index, (_, pipe) in enumerate(self.members):
            pipe.send(("reshard", ranks, index, self.state))
        for _, pipe in self.members:
            assert pipe.recv() == "ready"

    def kill(self, member):
        process, pipe = member
        process.kill()
        process.join()
        pipe.close()
        self.members.remove(member)

    def step(self, chance, *, killed):
        """A step of all. If one is killed in it, nobody commits it."""
        for _, pipe in self.members:
            pipe.send(("step",))
        if killed:
            self.kill(chance.choice(self.members))
        answers = [pipe.recv() for _, pipe in self.members]
        if not killed:
            self.committed += [row for rows, _ in answers for row in rows]
            self.state = chance.choice(answers)[1]

    def end(self):
        for process, pipe in self.members:
            pipe.close()
            process.join()
            assert process.exitcode == 0


def test_processes_are_killed_and_join_between_steps(tmp_path):
    chance = random.Random(3)
    dataset = me.read(write_files(tmp_path, [320, 330])).shuffle(1, window=20).lanes(8)
    alone = me.Loader(dataset, batch_size=2)
    cluster = Cluster(dataset, alone.state_dict())
    rounds = [8, 5, 7, *(chance.randint(1, 8) for _ in range(17))]
    for ranks in rounds:
        cluster.change(ranks)
        for _ in range(2):
            cluster.step(chance, killed=False)
        cluster.step(chance, killed=True)
    cluster.end()
    assert len(rounds) == 20
    assert len(cluster.committed) == 2 * 2 * sum(rounds) < 650
    assert cluster.committed == ids(alone)[: len(cluster.committed)]
