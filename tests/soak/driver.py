"""The driver of a soak: it starts legs, lets faults happen, and audits each epoch."""

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import midepoch as me
import s3
from soak.audit import END, Checkpoint, Delivery, audit, read_leg
from soak.draws import FATAL, MOST_RANKS, MOST_WORKERS, ROWS, Leg, Run, draw_leg, draw_run
from soak.faults import Faults
from soak.pipelines import MOST_TOKENS, TAR_SAMPLES, TOKENS_OF_DOCUMENT, build, values_of
from soak.plants import PLANTS
from soak.processes import LEG, MARK, kill_marked, start_guard
from tars import numbered_tar
from worlds import documents, write

SOURCES = [str(path) for path in (Path(__file__).parents[2] / "src", Path(__file__).parents[1])]
LEG_SECONDS = 600
"""A leg that takes longer hangs."""
SECONDS_TO_END = 5
"""What torchrun gets to end after a kill, before all that is left of the leg is killed."""


class SoakError(Exception):
    """Something that must not happen in a soak."""


@dataclass
class Totals:
    """What a soak did."""

    legs: int = 0
    epochs: int = 0
    rows: int = 0
    resizes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    pipelines: Counter[str] = field(default_factory=Counter)

    def summary(self, seed: int, minutes: float, findings: int) -> str:
        faults = ", ".join(f"{name} {times:,}" for name, times in sorted(self.faults.items())) or "none"
        pipelines = ", ".join(f"{name} {times}" for name, times in sorted(self.pipelines.items()))
        cells = [seed, f"{minutes:.0f} min", self.epochs, self.legs, self.resizes, faults, f"{self.rows:,}", findings]
        return (
            f"\nepochs by pipeline: {pipelines}\n\n"
            "| seed | time | epochs | legs | resizes | faults | rows audited | findings |\n"
            f"| --- | --- | ---: | ---: | ---: | --- | ---: | ---: |\n| {' | '.join(map(str, cells))} |\n"
        )


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a soak happens: its folder, the store, the cluster, and the mark of its processes."""

    folder: Path
    token: str
    proxy: s3.Proxy | None
    ray: str | None

    def dataset(self, run: Run) -> dict[str, Any]:
        """The arguments of ``build``."""
        remote = self.proxy is not None and run.remote
        return {
            "name": run.pipeline,
            "root": "s3://soak/d" if remote else str(self.folder / "data"),
            "seed": run.seed,
            "surveys": str(self.folder / "surveys"),
            "storage_options": self.proxy.options if self.proxy is not None and remote else None,
        }


class Epoch:
    """What is known of an epoch under way."""

    def __init__(self, lanes: int | None) -> None:
        self.lanes = lanes
        self.delivered: list[Delivery] = []
        self.batch_sizes: set[int | None] = set()
        self.layouts: list[tuple[int, int, int | None]] = []

    def add(self, leg: Leg, checkpoint: Checkpoint, delivered: list[Delivery]) -> None:
        """Add what a leg delivered up to its newest checkpoint."""
        if self.lanes is None:
            # Without a state in the epoch, the leg has read it from its beginning to its end.
            self.lanes = checkpoint.states[0]["lanes"] or leg.ranks * max(1, leg.workers)
        self.delivered += delivered
        self.batch_sizes.add(leg.batch_size)
        self.layouts.append((leg.ranks, leg.workers, leg.batch_size))

    @property
    def resizes(self) -> int:
        return sum(one != other for one, other in zip(self.layouts, self.layouts[1:], strict=False))


class Soak:
    """Runs of one seed."""

    def __init__(self, place: Place, seed: int, plant: str) -> None:
        self.place, self.seed, self.plant = place, seed, plant
        self.totals = Totals()
        self.findings: list[str] = []

    def run(self, run: Run, goes_on: Callable[[Totals], bool]) -> None:
        """Read all epochs of a run. What must not happen is noted, and ends the run."""
        try:
            self._epochs(run, goes_on)
        except SoakError as error:
            self.findings.append(f"{error} To repeat: make soak SEED={self.seed} RUN={run.number}")
            say(self.findings[-1])

    def _epochs(self, run: Run, goes_on: Callable[[Totals], bool]) -> None:
        """Read all epochs of a run, in as many legs as it takes."""
        say(f"run {run.number}: {run}")
        dataset = build(**self.place.dataset(run))
        state: Mapping[str, Any] | None = None
        legs = 0
        for number in range(run.epochs):
            epoch = Epoch(run.lanes)
            while True:
                leg = draw_leg(self.seed, run, legs, last=not goes_on(self.totals))
                checkpoint, delivered = self._leg(run, leg, state)
                legs += 1
                if checkpoint is not None:
                    epoch.add(leg, checkpoint, delivered)
                    state = resumable(checkpoint, random.Random(f"{self.seed} {run.number} {legs}"), dataset.counted)
                    if checkpoint.step == END:
                        break
            self._audit(run, number, legs, dataset, epoch)

    def _audit(self, run: Run, number: int, legs: int, dataset: me.Dataset, epoch: Epoch) -> None:
        assert epoch.lanes is not None
        sizes = epoch.batch_sizes
        reference = dataset.lanes(epoch.lanes)
        if len(sizes) == 1 and None not in sizes:
            reference = reference.batch(*sizes)
        reference.set_epoch(number)
        expected = [value for item in reference for value in values_of(item)]
        order = None if len(sizes) > 1 else "global" if dataset.counted else "rank"
        wrong = audit(expected, epoch.delivered, order=order)
        rows = sum(value % TOKENS_OF_DOCUMENT == 0 for value in expected)
        self.totals.epochs += 1
        self.totals.rows += rows
        self.totals.resizes += epoch.resizes
        self.totals.pipelines[run.pipeline] += 1
        say(f"  epoch {number}: {rows:,} rows, {wrong or 'lost 0, repeated 0'}, order: {order or 'not compared'}")
        if wrong:
            raise SoakError(f"{wrong} in epoch {number} of run {run.number} ({run}), in or before leg {legs - 1}.")

    def _leg(self, run: Run, leg: Leg, state: Any) -> tuple[Checkpoint | None, list[Delivery]]:
        """Start a leg, let its faults happen, and wait for its end."""
        folder = self.place.folder / f"run-{run.number}-leg-{leg.number}"
        folder.mkdir()
        ray = self.place.ray if run.ray and leg.workers else None
        work = {**asdict(leg), "dataset": self.place.dataset(run), "lanes": run.lanes, "plant": self.plant}
        (folder / "leg.json").write_text(json.dumps({**work, "ray": ray, "state": state}))
        token = f"{self.place.token}-{run.number}-{leg.number}"
        faults = Faults(leg.faults, folder, token, self.place.proxy, cluster=self.place.token if ray else None)
        begun = time.monotonic()
        try:
            code = self._wait(self._launch(leg, folder, token), faults)
        finally:
            faults.end()
            kill_marked(LEG, token)
            if self.place.proxy is not None:
                self.place.proxy.reset()
        checkpoint, delivered = read_leg(folder, leg.number, leg.ranks)
        self.totals.legs += 1
        self.totals.faults.update(faults.happened)
        step = "none" if checkpoint is None else "end" if checkpoint.step == END else checkpoint.step
        happened = ", ".join(f"{name} {times}" for name, times in Counter(faults.happened).items()) or "no fault"
        say(f"  leg {leg.number}: {leg}; {happened}; checkpoint {step}; {time.monotonic() - begun:.0f} s")
        if code and not {*faults.happened} & {*FATAL}:
            said = (folder / "said.txt").read_text()[-6000:]
            raise SoakError(
                f"{said}\nLeg {leg.number} of run {run.number} ({run}) ended with exit code {code}, and nobody had "
                "killed it."
            )
        shutil.rmtree(folder)
        return checkpoint, delivered

    def _launch(self, leg: Leg, folder: Path, token: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--monitor-interval", "0.1"]
        command += ["--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", "--nproc-per-node", str(leg.ranks)]
        command += ["-m", "soak.rank", str(folder / "leg.json")]
        with (folder / "said.txt").open("w") as said:
            environment = {**os.environ, LEG: token}
            return subprocess.Popen(command, env=environment, stdout=said, stderr=said, stdin=subprocess.DEVNULL)

    def _wait(self, process: "subprocess.Popen[bytes]", faults: Faults) -> int:
        """The exit code of a leg. It is killed if it hangs, or does not end after one of its ranks was killed."""
        deadline = time.monotonic() + LEG_SECONDS
        while process.poll() is None:
            faults.step()
            if faults.happened and faults.happened[-1] in ("rank killed", "all ranks killed"):
                deadline = min(deadline, time.monotonic() + SECONDS_TO_END)
            if time.monotonic() > deadline:
                process.kill()
                if not {*faults.happened} & {*FATAL}:
                    raise SoakError(f"A leg hangs: it takes more than {LEG_SECONDS} s.")
            time.sleep(0.01)
        return process.wait()


def resumable(checkpoint: Checkpoint, chance: random.Random, counted: bool) -> Mapping[str, Any]:
    """The state that all ranks of the next leg load: that of any rank, if items are counted."""
    return chance.choice(checkpoint.states) if counted else me.merge_states(checkpoint.states)


def write_data(folder: Path) -> None:
    """Files of documents, each with at least one token; no two files have a document in common."""
    chance = random.Random(0)
    for name in ("parquet", "arrow", "tar"):
        (folder / name).mkdir(parents=True)
    for number, first in enumerate(range(0, ROWS, 300)):
        rows = documents(first, [chance.randint(1, MOST_TOKENS) for _ in range(300)])
        if first < ROWS // 2:
            write(folder / "parquet" / f"{number}.parquet", rows, "parquet", block=40)
        else:
            write(folder / "arrow" / f"{number}.arrow", rows, "stream" if number % 2 else "file", block=40)
    for first in TAR_SAMPLES[::250]:
        numbered_tar(folder / "tar" / f"{first}.tar", first, first + 250)


@contextmanager
def ray_cluster(folder: Path) -> Iterator[str]:
    """The address of a Ray cluster on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
    command += ["--node-ip-address=127.0.0.1", "--include-dashboard=false", "--num-cpus=2", "--disable-usage-stats"]
    command += ['--resources={"soak": 12}', "--object-store-memory=100000000", f"--temp-dir={folder}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def prepared(folder: Path, token: str, *, ray: bool) -> Iterator[Place]:
    """Write the files, start store and cluster, and leave no process however this ends."""
    os.environ |= {
        MARK: token,
        "PYTHONPATH": os.pathsep.join(SOURCES),
        "MIDEPOCH_INDEX_DIR": str(folder / "index"),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray stays on loopback then
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    guard = start_guard(token)
    try:
        with ExitStack() as stack:
            write_data(folder / "data")
            proxy, address = None, None
            if find_spec("moto"):
                port = stack.enter_context(s3.serving())
                s3.put_folder(port, "soak", folder / "data")
                proxy = stack.enter_context(s3.proxying(port))
                proxy.server.handle_error = lambda *_: None  # ranks that are killed reset their connections
            if ray:
                address = stack.enter_context(ray_cluster(folder / "r"))
            yield Place(folder=folder, token=token, proxy=proxy, ray=address)
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


def say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="start no run after that, and end the last one")
    parser.add_argument("--legs", type=int, help="end after about so many legs instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=int, help="only this run")
    parser.add_argument("--no-ray", action="store_true", help="no workers of Ray")
    parser.add_argument("--plant", choices=PLANTS, default="none", help="a bug that the soak should find")
    parser.add_argument("--token", default=secrets.token_hex(8), help="what marks its processes")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    begun = time.monotonic()

    def goes_on(totals: Totals) -> bool:
        if options.legs is not None:
            return totals.legs < options.legs
        return time.monotonic() < begun + 60 * options.minutes

    ray = not options.no_ray and find_spec("ray") is not None
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))  # the names of Ray's sockets have to be short
    try:
        with prepared(folder, options.token, ray=ray) as place:
            soak = Soak(place, options.seed, options.plant)
            say(f"seed {options.seed}: up to {MOST_RANKS} ranks of {MOST_WORKERS} workers, planted: {options.plant}")
            numbers = iter(range(10**9)) if options.run is None else iter([options.run])
            for number in numbers:
                if not goes_on(soak.totals):
                    break
                soak.run(draw_run(options.seed, number, s3=place.proxy is not None, ray=ray), goes_on)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    say(soak.totals.summary(options.seed, (time.monotonic() - begun) / 60, len(soak.findings)))
    if soak.findings:
        sys.exit("\n".join(soak.findings))
