"""Kill a training run twice, resume it on other numbers of processes and workers, and prove that nothing changed.

    make demo

A small transformer trains on packed tokens with DistributedDataParallel: once without interruption, and once killed by
SIGKILL at two random steps and resumed on one process and then on three. Every step must have the same rows and the
same loss, and every row must come exactly once; if not, this exits with 1. Beside it, ``datasets`` with torchdata's
StatefulDataLoader is killed at the same parts of the epoch, and its rows are counted.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import chart
import corpus
from evidence import Run, largest_loss_difference, lost_and_repeated, problems_of, read_run, steps_with_other_rows

HERE = Path(__file__).parent
LAYOUTS = [(2, 2), (1, 3), (3, 1)]
"""Processes, and workers of each: of the uninterrupted run and of the first session, then of those that resume."""
BUFFER, FEWEST_ROWS = 100, 240
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}


def main(options: argparse.Namespace) -> None:
    """Run the demo in a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus.write(folder / "corpus", options.rows)
        corpus.packs(folder)  # counts the packs once, for all processes
        print(f"{options.rows:,} documents in {corpus.FILES} Parquet files, packed to {corpus.LENGTH} tokens")
        print("Trained with DistributedDataParallel on processes × workers:")
        reference = train(folder, "uninterrupted", [None])
        kills, steps = kill_points(options.seed), len(reference.steps)
        resumed = train(folder, "resumed", [*(round(part * steps) for part in kills), None], max(1, steps // 15))
        others = {} if options.skip_comparison else compare(folder, options.rows, kills)
    report(options, reference, resumed, others)
    problems = problems_of(resumed, reference, options.rows)
    for problem in problems:
        print(f"FAILED  {problem}")
    if problems:
        sys.exit(1)
    print("Every step had the same rows and the same loss. Every row was delivered exactly once.")


def kill_points(seed: int) -> list[float]:
    """The parts of the epoch at which everything is killed."""
    draw = random.Random(seed)
    return [draw.uniform(0.2, 0.45), draw.uniform(0.55, 0.85)]


def train(folder: Path, name: str, kills: list[int | None], save_every: int = 1_000) -> Run:
    """Train in as many sessions as there are kills, each on the next layout; None lets a session reach the end."""
    for number, (kill_at, (processes, workers)) in enumerate(zip(kills, LAYOUTS, strict=False)):
        session = folder / name / f"session-{number}"
        session.mkdir(parents=True)
        command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d"]
        command += ["--rdzv-endpoint", "127.0.0.1:0", "--nproc-per-node", str(processes)]
        command += [HERE / "train.py", folder, name, session.name, "--workers", str(workers)]
        command += ["--save-every", str(save_every)]
        command += [] if kill_at is None else ["--kill-at", str(kill_at)]
        started = time.monotonic()
        execute(command, folder / "output", -signal.SIGKILL if kill_at else 0)
        end = "to the end" if kill_at is None else f"SIGKILL to all processes in step {kill_at}"
        print(f"  {name:14} on {layout(processes, workers)}  {end:40} {time.monotonic() - started:3.0f} s", flush=True)
    return read_run(folder / name)


def compare(folder: Path, rows: int, kills: list[float]) -> dict[str, Run]:
    """Kill and resume ``datasets`` with StatefulDataLoader, in file order and shuffled."""
    runs = {}
    for name, buffer in (("in file order", 0), (f"shuffle buffer of {BUFFER}", BUFFER)):
        command = [sys.executable, HERE / "stateful.py", folder, name, "--rows", str(rows), "--buffer", str(buffer)]
        execute([*command, "--kills", *map(str, kills)], folder / "output", 0)
        runs[name] = read_run(folder / name)
    print(f"  StatefulDataLoader resumed on {layout(*LAYOUTS[1])}: {(folder / name / 'other-workers').read_text()}")
    return runs


def execute(command: list[str | Path], output: Path, expected: int) -> None:
    """Run a command, and stop the demo if it does not end as it should."""
    with output.open("w") as file:
        done = subprocess.run(command, env=ENVIRONMENT, stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode != expected:
        sys.exit(f"{output.read_text()[-4_000:]}\n{command} ended with {done.returncode}, expected {expected}")


def report(options: argparse.Namespace, reference: Run, resumed: Run, others: dict[str, Run]) -> None:
    """Print what was delivered, and draw it."""
    layouts = [layout(*one) for one in LAYOUTS]
    lines = {f"midepoch, resumed on {layouts[1]}, then {layouts[2]}": resumed}
    lines |= {f"datasets + StatefulDataLoader, {name}, again on {layouts[0]}": run for name, run in others.items()}
    width = max(map(len, lines))
    print(f"\n{f'{options.rows:,} rows':{width}}{'lost':>8}{'repeated':>10}")
    for line, run in lines.items():
        lost, repeated = lost_and_repeated(run, options.rows)
        print(f"{line:{width}}{lost:>8,}{repeated:>10,}")
    print(f"\nmidepoch, {len(reference.steps)} steps, with kills against without:")
    print(f"  steps with other rows        {len(steps_with_other_rows(resumed, reference))}")
    print(f"  largest difference of a loss {largest_loss_difference(resumed, reference):.1e}")
    options.png.parent.mkdir(parents=True, exist_ok=True)
    chart.draw(options.png, reference=reference, resumed=resumed, layouts=layouts, others=others, rows=options.rows)
    print(f"\nPicture: {options.png}. These kills again: --seed {options.seed}")


def layout(processes: int, workers: int) -> str:
    """The name of a layout: processes × workers of each."""
    return f"{processes} × {workers}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--png", type=Path, default=Path("build/demo.png"), metavar="FILE", help="the picture to draw")
    parser.add_argument("--rows", type=int, default=4_800, help="documents in the corpus")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the kills; random by default")
    parser.add_argument("--skip-comparison", action="store_true", help="only midepoch")
    options = parser.parse_args()
    if options.rows < FEWEST_ROWS:
        parser.error(f"--rows must be at least {FEWEST_ROWS}, for enough steps to kill and resume between")
    main(options)
