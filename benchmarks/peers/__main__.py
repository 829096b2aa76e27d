"""Measure midepoch and others side by side: ``python -m benchmarks.peers [--quick] [--only KEY …]``."""

import argparse
import platform
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.peers import page, report, scenarios, work
from benchmarks.peers.environments import CONTENDERS, usable
from benchmarks.peers.process import cores
from benchmarks.peers.run import Runner
from benchmarks.peers.scenarios import Scenario

RESULTS = Path(__file__).parents[1] / "results"
Tables = dict[str, report.Table]  # by the scenario's key


def main() -> None:
    """Measure, and write the report."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and not without ending the contenders' processes
    options = _options()
    sizes = scenarios.QUICK if options.quick else scenarios.WHOLE
    if options.rounds:
        sizes = replace(sizes, rounds=options.rounds)
    if options.workers:
        sizes = replace(sizes, workers=tuple(options.workers), few=tuple(options.workers))
    chosen = [one for one in CONTENDERS if not options.contenders or one.name in options.contenders]
    asked = _asked(scenarios.scenarios(sizes), options.only)
    _make_tokeniser()
    unusable = usable(chosen, install=not (options.quick or options.as_is), wheels=options.wheels)
    runner = Runner(chosen, unusable)
    try:
        runner.prepare(asked)
        if not options.prepare:
            tables = _measure(runner, asked, sizes.rounds, options)
            print(*_summary(asked, tables, quick=options.quick), sep="\n- ")
    finally:
        runner.stop()


def _asked(offered: Sequence[Scenario], only: Sequence[str] | None) -> list[Scenario]:
    """The scenarios that are asked for, in the order in which they are."""
    if not only:
        return list(offered)
    return [one for key in only for one in offered if one.key.startswith(key)]


def _measure(runner: Runner, asked: Sequence[Scenario], rounds: int, options: argparse.Namespace) -> Tables:
    """Run the scenarios round by round, and write the report after each, so that a run that is stopped leaves one too.

    A quick run has all scenarios at once. Scenarios that a report in the folder has already, and that are not run now,
    stay as they are.
    """
    begun = time.monotonic()
    part = options.quick or options.only or options.contenders
    folder = options.out or (None if part else RESULTS)
    about = {**(_about(runner, options.note) if folder else {}), "rounds": rounds}
    known = folder is not None and options.only and (folder / page.FIGURES).exists()
    tables = page.read(folder)[1] if known else {}
    steps = [asked] if options.quick else [[one] for one in asked]
    for number in range(rounds):
        for step in steps:
            if options.minutes and _minutes_since(begun) >= options.minutes:
                return tables
            if options.quick:
                runner.all_at_once(step)
            else:
                runner.round(step[0])
            about["minutes"] = _minutes_since(begun)
            for one in step:
                tables[one.key] = runner.table(one)
                print(report.section(one, tables[one.key], page.LABELS, None), flush=True)
            print(f"Round {number + 1}, after {about['minutes']} minutes.\n", flush=True)
            if folder is not None:
                page.write(folder, about, scenarios.scenarios(scenarios.WHOLE), tables)
    return tables


def _summary(asked: Sequence[Scenario], tables: Tables, *, quick: bool) -> list[str]:
    """Where midepoch is not ahead; of a quick run, whose figures mean little, what failed."""
    if not quick:
        return ["Not ahead:", *(page.behind(asked, tables) or ["nowhere"])]
    lines = [line for one in asked if one.key in tables for line in report.failed(one, tables[one.key], page.LABELS)]
    return ["Failed:", *(lines or ["nothing"])]


def _minutes_since(begun: float) -> float:
    return round((time.monotonic() - begun) / 60, 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data and one round: its figures mean little")
    parser.add_argument(
        "--only", nargs="+", metavar="KEY", help="scenarios, by the start of their names, such as 02, in this order"
    )
    parser.add_argument("--contenders", nargs="+", choices=[one.name for one in CONTENDERS])
    parser.add_argument("--rounds", type=int, help="how often each contender runs")
    parser.add_argument("--minutes", type=float, help="begin no scenario after so many minutes of measuring")
    parser.add_argument("--workers", type=int, nargs="+", help="worker counts of scenarios 02, 03, 05 and 13")
    parser.add_argument("--out", type=Path, help="the folder of the report: benchmarks/results if all is measured")
    parser.add_argument("--note", default="", help="a sentence about the machine, for the report")
    parser.add_argument("--wheels", type=Path, help="make environments from this folder of wheels, without a network")
    parser.add_argument("--as-is", action="store_true", help="use the environments that are there, and make none")
    parser.add_argument("--prepare", action="store_true", help="make environments and data, and measure nothing")
    return parser.parse_args()


def _make_tokeniser() -> None:
    if not work.TOKENISER.exists():
        work.TOKENISER.parent.mkdir(parents=True, exist_ok=True)
        data.tokeniser().save(str(work.TOKENISER))


def _about(runner: Runner, note: str) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": cores(),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "note": note,
        "versions": runner.versions(),
        "missing": dict(runner.unusable),
    }


if __name__ == "__main__":
    main()
