"""Measure midepoch and others side by side: ``python -m benchmarks.peers [--quick] [--only KEY …]``."""

import argparse
import os
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.peers import pictures, report, scenarios, work
from benchmarks.peers.environments import CONTENDERS
from benchmarks.peers.run import Runner, usable, write

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
    labels = {one.name: one.label for one in chosen}
    wanted = [
        one
        for one in scenarios.scenarios(sizes)
        if not options.only or any(one.key.startswith(key) for key in options.only)
    ]
    _make_tokeniser()
    begun = time.monotonic()
    runner = Runner(chosen, sizes, usable(chosen, install=not options.quick), keep=options.quick)
    tables, sections, behind = {}, [], []
    try:
        about = _about(runner, options.note)
        for scenario in wanted:
            table = tables[scenario.key] = runner.table(scenario)
            picture = f"{scenario.key}.png"
            options.out.mkdir(parents=True, exist_ok=True)
            drawn = not options.quick and pictures.draw(scenario, table, labels, options.out / picture)
            sections.append(report.section(scenario, table, labels, picture if drawn else None))
            behind += report.behind(scenario, table, labels)
            print(sections[-1], flush=True)
    finally:
        runner.stop()
    about["minutes"] = round((time.monotonic() - begun) / 60, 1)
    if not options.quick or options.write:
        write(options.out / "README.md", _page(about, labels, behind, sections))
        write(options.out / "figures.json", report.as_json(tables, about))
    print(f"{about['minutes']} minutes. Not ahead:", *(behind or ["nowhere"]), sep="\n- ")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data and one round: its figures mean little")
    parser.add_argument("--only", nargs="+", metavar="KEY", help="scenarios, by the start of their names, such as 02")
    parser.add_argument("--contenders", nargs="+", choices=[one.name for one in CONTENDERS])
    parser.add_argument("--rounds", type=int, help="how often each contender runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the report")
    parser.add_argument("--write", action="store_true", help="write a report after --quick too")
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


def _page(about: dict[str, Any], labels: dict[str, str], behind: list[str], sections: list[str]) -> str:
    versions = "\n".join(
        f"- {labels[name]}: {', '.join(f'{package} {version}' for package, version in packages.items())}"
        for name, packages in about["versions"].items()
    )
    missing = "\n".join(f"- {labels[name]}: {reason}" for name, reason in about["missing"].items())
    head = f"""# Results

Written by `python -m benchmarks.peers` on {about["date"]}: {about["cores"]} cores, {about["machine"]}, \
{about["rounds"]} rounds, {about["minutes"]} minutes. {about["note"]}

Figures are medians of the rounds, with the lowest and the highest in brackets. In each round every contender runs once.
All figures are in [figures.json](figures.json). [What they mean, and how they were taken](../../docs/comparison.md).

{versions}
"""
    if missing:
        head += f"\nNot measured:\n\n{missing}\n"
    head += "\n## Where midepoch is not ahead\n\n" + ("\n".join(f"- {line}" for line in behind) or "Nowhere.") + "\n"
    return "\n".join([head, *sections])


if __name__ == "__main__":
    main()
