"""Measure midepoch and others side by side: ``python -m benchmarks.peers [--quick] [--only KEY …]``."""

import argparse
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.peers import pictures, report, scenarios, work
from benchmarks.peers.environments import CONTENDERS
from benchmarks.peers.run import Runner, usable
from benchmarks.peers.scenarios import Scenario

RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    """Measure, and write the report."""
    options = _options()
    sizes = scenarios.QUICK if options.quick else scenarios.WHOLE
    if options.rounds:
        sizes = replace(sizes, rounds=options.rounds)
    chosen = [
        one
        for one in CONTENDERS
        if (one.name in options.contenders if options.contenders else one.quick or not options.quick)
    ]
    part = options.quick or options.only or options.contenders
    folder = options.out or (None if part else RESULTS)
    _make_tokeniser()
    runner = Runner(chosen, sizes, usable(chosen, install=not options.quick))
    try:
        behind = _measure(runner, options, folder)
    finally:
        runner.stop()
    print("Not ahead:", *(behind or ["nowhere"]), sep="\n- ")


def _measure(runner: Runner, options: argparse.Namespace, folder: Path | None) -> list[str]:
    """Run the scenarios, and write the report after each, so that a run that is stopped leaves one too.

    Scenarios that a report in the folder has already, and that are not run now, stay as they are.
    """
    begun = time.monotonic()
    labels = {one.name: one.label for one in CONTENDERS}
    about = _about(runner, options.note)
    known = folder / "figures.json" if folder else None
    tables = report.from_json(known.read_text()) if known and known.exists() and options.only else {}
    asked = scenarios.scenarios(runner.sizes)
    for scenario in asked:
        if options.only and not any(scenario.key.startswith(key) for key in options.only):
            continue
        tables[scenario.key] = runner.table(scenario)
        about["minutes"] = round((time.monotonic() - begun) / 60, 1)
        print(report.section(scenario, tables[scenario.key], labels, None), flush=True)
        print(f"After {about['minutes']} minutes.\n", flush=True)
        if folder is not None:
            pictures.draw(scenario, tables[scenario.key], labels, folder / f"{scenario.key}.png")
            (folder / "README.md").write_text(_page(about, labels, asked, tables, folder))
            (folder / "figures.json").write_text(report.as_json(tables, about))
    return _behind(asked, tables, labels)


def _behind(asked: Sequence[Scenario], tables: Mapping[str, report.Table], labels: Mapping[str, str]) -> list[str]:
    return [line for one in asked if one.key in tables for line in report.behind(one, tables[one.key], labels)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data and one round: its figures mean little")
    parser.add_argument("--only", nargs="+", metavar="KEY", help="scenarios, by the start of their names, such as 02")
    parser.add_argument("--contenders", nargs="+", choices=[one.name for one in CONTENDERS])
    parser.add_argument("--rounds", type=int, help="how often each contender runs")
    parser.add_argument("--out", type=Path, help="the folder of the report: benchmarks/results if all is measured")
    parser.add_argument("--note", default="", help="a sentence about the machine, for the report")
    return parser.parse_args()


def _make_tokeniser() -> None:
    if not work.TOKENISER.exists():
        work.TOKENISER.parent.mkdir(parents=True, exist_ok=True)
        data.tokeniser().save(str(work.TOKENISER))


def _about(runner: Runner, note: str) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": os.cpu_count(),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "note": note,
        "rounds": runner.sizes.rounds,
        "versions": runner.versions(),
        "missing": dict(runner.unusable),
    }


def _page(
    about: dict[str, Any],
    labels: Mapping[str, str],
    asked: Sequence[Scenario],
    tables: Mapping[str, report.Table],
    folder: Path,
) -> str:
    behind = _behind(asked, tables, labels)
    pictures_there = {one.key: f"{one.key}.png" for one in asked if (folder / f"{one.key}.png").exists()}
    sections = [
        report.section(one, tables[one.key], labels, pictures_there.get(one.key)) for one in asked if one.key in tables
    ]
    versions = "\n".join(
        f"- {labels[name]}: {', '.join(f'{package} {version}' for package, version in packages.items())}"
        for name, packages in about["versions"].items()
    )
    missing = "\n".join(f"- {labels[name]}: {reason}" for name, reason in about["missing"].items())
    head = f"""# Results

Written by `python -m benchmarks.peers` on {about["date"]}: {about["cores"]} cores, {about["machine"]}, \
{about["rounds"]} rounds, {about["minutes"]} minutes. {about["note"]}

Figures are medians of the rounds, with the lowest and the highest in brackets. In each round every contender runs once.
"(per core)" is what one second of processor time gives, the process and its workers together: a busy machine hardly
changes it. All figures are in [figures.json](figures.json).
[What they mean, and how they were taken](../../docs/comparison.md).

{versions}
"""
    if missing:
        head += f"\nNot measured:\n\n{missing}\n"
    head += "\n## Where midepoch is not ahead\n\n" + ("\n".join(f"- {line}" for line in behind) or "Nowhere.") + "\n"
    return "\n".join([head, *sections])


if __name__ == "__main__":
    main()
