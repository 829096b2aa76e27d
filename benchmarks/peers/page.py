"""The report of a run in a folder: Markdown, pictures, and all figures, which can be read back and joined."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import pictures, report
from benchmarks.peers.environments import CONTENDERS
from benchmarks.peers.scenarios import WHOLE, Scenario, scenarios

LABELS = {one.name: one.label for one in CONTENDERS}
FIGURES = "figures.json"


def write(
    folder: Path, about: Mapping[str, Any], asked: Sequence[Scenario], tables: Mapping[str, report.Table]
) -> None:
    """Write it all again. Pictures are left out where there is no matplotlib: ``main`` can draw them elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    there = [one for one in asked if one.key in tables]
    drawn = set()
    for one in there:
        try:
            if pictures.draw(one, tables[one.key], LABELS, folder / f"{one.key}.png"):
                drawn.add(one.key)
        except ImportError:
            break
    sections = [
        report.section(one, tables[one.key], LABELS, f"{one.key}.png" if one.key in drawn else None) for one in there
    ]
    (folder / "README.md").write_text("\n".join([_head(about, behind(there, tables)), *sections]))
    (folder / FIGURES).write_text(report.as_json(tables, about))


def read(folder: Path) -> tuple[dict[str, Any], dict[str, report.Table]]:
    """About the run in a folder, and its tables."""
    text = (folder / FIGURES).read_text()
    return json.loads(text)["about"], report.from_json(text)


def behind(asked: Sequence[Scenario], tables: Mapping[str, report.Table]) -> list[str]:
    """Where midepoch is not ahead."""
    return [line for one in asked if one.key in tables for line in report.behind(one, tables[one.key], LABELS)]


def join(folders: Sequence[Path], note: str) -> tuple[dict[str, Any], dict[str, report.Table]]:
    """The tables of several runs on one machine. Where two have the same, the later one's is taken."""
    runs = [read(folder) for folder in folders]
    about = {**runs[-1][0], "minutes": max(about["minutes"] for about, _ in runs)}
    about["rounds"] = max(about["rounds"] for about, _ in runs)
    for key in ("versions", "missing"):
        about[key] = {name: value for run, _ in runs for name, value in run[key].items()}
    if note:
        about["note"] = note
    return about, {key: table for _, tables in runs for key, table in tables.items()}


def _head(about: Mapping[str, Any], lines: Sequence[str]) -> str:
    versions = "\n".join(
        f"- {LABELS[name]}: {', '.join(f'{package} {version}' for package, version in packages.items())}"
        for name, packages in about["versions"].items()
    )
    missing = "\n".join(f"- {LABELS[name]}: {reason}" for name, reason in about["missing"].items())
    head = f"""# Results

Written by `python -m benchmarks.peers` on {about["date"]}: {about["cores"]} cores, {about["machine"]}, \
at most {about["rounds"]} rounds, {about["minutes"]} minutes. {about["note"]}

Figures are medians of the rounds, with the lowest and the highest in brackets. In each round every contender runs once.
"(per core)" is what one second of processor time gives, the process and its workers together: a busy machine hardly
changes it. All figures are in [figures.json]({FIGURES}). `docs/alternatives.md` says how they were taken.

{versions}
"""
    if missing:
        head += f"\nNot measured:\n\n{missing}\n"
    return (
        head + "\n## Where midepoch is not ahead\n\n" + ("\n".join(f"- {line}" for line in lines) or "Nowhere.") + "\n"
    )


def main() -> None:
    """Join reports, or draw one again."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="folders with reports")
    parser.add_argument("--out", required=True, type=Path, help="the folder of the new one")
    parser.add_argument("--note", default="", help="a sentence about the machine, instead of that in the reports")
    options = parser.parse_args()
    about, tables = join(options.folders, options.note)
    write(options.out, about, scenarios(WHOLE), tables)


if __name__ == "__main__":
    main()
