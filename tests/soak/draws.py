"""All decisions of a soak, as pure functions of its seed and the numbers of run and leg."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from soak.pipelines import IN_PACKS, NAMES

ROWS = 4800
MOST_RANKS, MOST_WORKERS = 4, 3


@dataclass(frozen=True, kw_only=True)
class Run:
    """One pipeline, read for some epochs."""

    number: int
    pipeline: str
    seed: int
    lanes: int | None
    """None: as many as the readers that begin the epoch."""
    sizes: Sequence[int | None]
    """Batch sizes of which each leg draws one; with a single one the order is known too."""
    epochs: int
    remote: bool
    ray: bool

    def __str__(self) -> str:
        where = ", from S3" * self.remote + ", workers of Ray" * self.ray
        sizes = "/".join("none" if size is None else str(size) for size in self.sizes)
        return f"{self.pipeline}{where}, {self.lanes or 'any'} lanes, batch size {sizes}, {self.epochs} epochs"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens once rank 0 has received ``step`` batches, and ``delay`` seconds have passed."""

    kind: str
    step: int
    delay: float
    rank: int
    worker: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Leg:
    """One torchrun."""

    number: int
    ranks: int
    workers: int
    method: str
    ahead: int | None
    batch_size: int | None
    collates: bool
    """True if a function of the user makes batches of lists of items."""
    every: int
    """A checkpoint is taken after so many steps."""
    pause: float
    """Seconds of a training step."""
    stop: int | None
    """The step after which all ranks stop by themselves."""
    faults: Sequence[Fault]

    def __str__(self) -> str:
        return f"{self.ranks} ranks of {self.workers} workers, batch size {self.batch_size}"


FATAL = ("rank killed", "all ranks killed", "store gone")


def draw_run(seed: int, number: int, *, s3: bool, ray: bool) -> Run:
    """The run of that number. The first ones have all pipelines in turn, in an order of the seed."""
    chance = random.Random(f"{seed} {number}")
    names = random.Random(seed).sample(NAMES, len(NAMES))
    name = names[number % len(names)]
    sizes: Sequence[int | None] = [None] if name == "token batches" else [1, 2, 3, 4, 6]
    sizes = [None, 1, 2] if name in IN_PACKS else sizes
    return Run(
        number=number,
        pipeline=name,
        seed=chance.randrange(1000),
        lanes=chance.choice([None, 4, 6, 12]),
        sizes=chance.sample(sizes, 1 if chance.random() < 0.6 else len(sizes)),
        epochs=chance.choice([1, 2]),
        remote=chance.random() < 0.4 and s3,
        ray=chance.random() < 0.15 and ray,
    )


def draw_leg(seed: int, run: Run, number: int, *, last: bool) -> Leg:
    """The leg of that number in a run. The ``last`` one ends by itself, at the end of the epoch."""
    chance = random.Random(f"{seed} {run.number} {number}")
    ranks, workers = chance.randint(1, MOST_RANKS), chance.randint(run.ray, MOST_WORKERS)
    end = chance.randint(1, 80)
    ending = chance.choice(
        ["rank killed"] * 3 + ["all ranks killed"] * 3 + ["stop", "end"] + ["store gone"] * run.remote
    )
    faults = []
    for _ in range(0 if last else chance.randint(0, 5)):
        kinds = ["rank stalled"] + ["worker killed", "worker killed", "worker stalled"] * (workers > 0)
        kinds += ["store answers 503", "store drops", "store slow", "store out"] * run.remote
        faults.append(_draw_fault(chance, chance.choice(kinds), chance.randint(0, end), ranks, workers))
    if ending in FATAL and not last:
        faults.append(_draw_fault(chance, ending, end, ranks, workers))
    batch_size = chance.choice(run.sizes)
    return Leg(
        number=number,
        ranks=ranks,
        workers=workers,
        method=chance.choice(["forkserver"] + ["fork"] * (not run.remote)),  # clients of stores do not survive a fork
        ahead=chance.choice([None, 1, 2, 4]),
        batch_size=batch_size,
        collates=batch_size is not None and chance.random() < 0.5,
        every=chance.choice([1, 2, 5, 11]),
        pause=0 if last else chance.choice([0, 0.002, 0.01]),
        stop=end if ending == "stop" and not last else None,
        faults=sorted(faults, key=lambda fault: fault.step),
    )


def _draw_fault(chance: random.Random, kind: str, step: int, ranks: int, workers: int) -> Fault:
    return Fault(
        kind=kind,
        step=step,
        delay=chance.choice([0, 0, chance.random() * 0.05]),
        rank=chance.randrange(ranks),
        worker=chance.randrange(max(1, workers)),
        seconds=chance.uniform(0.1, 2),
    )
