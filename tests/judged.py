"""Loaders with and without planted bugs, for the processes of ``check_resume``. They import no torch."""

import atexit
import multiprocessing
import os
import threading
import time
from pathlib import Path

ROWS, BATCH = 60, 4


class Exact:
    """Batches of rows, shuffled by a fixed rule. Each of the shards takes every so many-th."""

    def __init__(self, index=0, shards=1):
        self.step, self.index, self.shards = 0, index, shards

    def batches(self):
        rows = [row * 7 % ROWS for row in range(ROWS)]
        return [rows[place : place + BATCH] for place in range(0, ROWS, BATCH)]

    def batch(self, rows):
        return {"id": rows, "text": [f"row {row}" for row in rows]}

    def __iter__(self):
        batches = self.batches()
        while self.step * self.shards + self.index < len(batches):
            rows = batches[self.step * self.shards + self.index]
            self.step += 1
            yield self.batch(rows)

    def state_dict(self):
        return {"step": self.step, "ranks": self.shards}

    def load_state_dict(self, state):
        self.step = state["step"] * state["ranks"] // self.shards


class LosesPrefetched(Exact):
    def state_dict(self):
        return {"step": self.step + 2, "ranks": 1}


class RepeatsABatch(Exact):
    def state_dict(self):
        return {"step": self.step - 1, "ranks": 1}


class StartsOver(Exact):
    def load_state_dict(self, state):
        pass


class WrongOrder(Exact):
    resumed = 0

    def batches(self):
        batches = super().batches()
        return batches[: self.resumed] + batches[self.resumed :][::-1] if self.resumed else batches

    def load_state_dict(self, state):
        self.step = self.resumed = state["step"]


class OtherRows(Exact):
    resumed = False

    def batch(self, rows):
        return {"id": rows, "text": [f"row {row}{self.resumed * '!'}" for row in rows]}

    def load_state_dict(self, state):
        self.step, self.resumed = state["step"], True


class SecondTime(Exact):
    """Is exact when it is resumed once. The state of a resumed loader is that of a loader that was not."""

    base = 0

    def state_dict(self):
        return {"step": self.step - self.base}

    def load_state_dict(self, state):
        self.step = self.base = state["step"]


class Tuples(Exact):
    def batch(self, rows):
        return [float(row) for row in rows], rows


class ListsOfRows(Exact):
    def batch(self, rows):
        return [{"id": row, "text": f"row {row}"} for row in rows]


class Endless(Exact):
    def batches(self):
        return [list(range(place, place + BATCH)) for place in range(0, 4000, BATCH)]


class EndlessLoss(Endless, LosesPrefetched):
    pass


class StartMethod(Exact):
    def batch(self, rows):
        assert multiprocessing.get_start_method(allow_none=True) in (None, "fork")
        return super().batch(rows)


class Refuses(Exact):
    def load_state_dict(self, state):
        raise RuntimeError("another number of workers")


class HangsAfterResume(Exact):
    def load_state_dict(self, state):
        time.sleep(60)


class Lock(Exact):
    def state_dict(self):
        return {"lock": threading.Lock()}


class Nothing(Exact):
    def batches(self):
        return []


class Twins(Exact):
    def batches(self):
        return [[1, 1]] * 4


class Unsteady(Exact):
    def batches(self):
        return [[10 * os.getpid() + row] for row in range(4)]  # other rows in each process


class Broken(Exact):
    def batch(self, rows):
        raise OSError("the disk is gone")


def exact():
    return Exact()


def other_workers(num_workers=2):
    loader = Exact()
    if num_workers != 2:
        loader.load_state_dict = Refuses().load_state_dict
    return loader


def ranks(rank=0, world_size=1):
    return Exact(rank, world_size)


def stuck_when_resized(rank=0, world_size=1):
    return Exact(rank, world_size) if world_size == 2 else StartsOver(rank, world_size)


def leaves_a_note():
    """An exact loader whose process leaves a file when it ends by itself."""
    atexit.register(Path(os.environ["NOTES"], str(os.getpid())).touch)
    return Exact()


def no_state():
    return [1, 2, 3]


def path_needed(path):
    return Exact()


class Ahead:
    """A loader of another library whose state counts one batch too many, as if a prefetched batch were delivered."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        batches = iter(self.loader)
        held = next(batches)
        for batch in batches:
            yield held
            held = batch
        yield held

    def state_dict(self):
        return self.loader.state_dict()

    def load_state_dict(self, state):
        self.loader.load_state_dict(state)


def ours():
    import midepoch as me

    dataset = me.from_indexable([{"id": row} for row in range(ROWS)])
    return me.Loader(dataset.shuffle(seed=42), batch_size=BATCH, num_workers=1)


def ours_ahead():
    return Ahead(ours())


def stateful(buffer=0, num_workers=1):
    """torchdata's, with a dataset that reads so many rows ahead, which its state does not hold."""
    from torch.utils.data import IterableDataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Naive(IterableDataset):
        def __iter__(self):
            yield from ({"id": row} for row in range(ROWS))

    class Buffered(Naive):
        row = 0

        def __iter__(self):
            held = []
            while self.row < ROWS:
                held.append({"id": self.row})
                self.row += 1
                if len(held) > buffer:
                    yield held.pop(0)
            yield from held

        def state_dict(self):
            return {"row": self.row}

        def load_state_dict(self, state):
            self.row = state["row"]

    return StatefulDataLoader(Buffered() if buffer else Naive(), batch_size=BATCH, num_workers=num_workers)


def stateful_buffered():
    return stateful(buffer=6)


def stateful_naive():
    return stateful()
