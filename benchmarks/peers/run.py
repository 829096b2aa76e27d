"""Runs scenarios: every contender once in each round, in its own process, which is started once."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import data
from benchmarks.peers.environments import Contender
from benchmarks.peers.process import Process
from benchmarks.peers.report import Table, cell
from benchmarks.peers.scenarios import Case, Scenario, Sizes, source

ANSWER_SECONDS, PREPARE_SECONDS = 120.0, 900.0
Answers = dict[str, list[dict[str, Any]]]


class Runner:
    """Asks contenders. ``unusable`` says of whom there is no environment, and why."""

    def __init__(self, contenders: Sequence[Contender], sizes: Sizes, unusable: Mapping[str, str]) -> None:
        self.contenders, self.sizes, self.unusable = contenders, sizes, unusable
        logs = data.FOLDER / "peers" / "logs"
        self._processes = {one.name: Process(one.name, one.python, logs / f"{one.name}.log") for one in contenders}
        self._folders: dict[tuple[str, str, int], dict[str, Any]] = {}

    def table(self, scenario: Scenario) -> Table:
        """The figures of a scenario."""
        table: Table = {}
        scale = 1e6 if scenario.unit.startswith("million") else 1.0
        for case in scenario.cases:
            answers = self._case(case)
            for figure, column in case.columns().items():
                table[column] = {name: cell(got, figure, scale) for name, got in answers.items()}
        return table

    def versions(self) -> dict[str, dict[str, str]]:
        """The versions of the contenders' packages."""
        found = {}
        for one in self.contenders:
            if one.name not in self.unusable:
                answer = self._ask(one.name, {"do": "versions", "packages": one.packages}, ANSWER_SECONDS)
                found[one.name] = answer.get("versions", {})
        return found

    def stop(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.stop()

    def _case(self, case: Case) -> Answers:
        answers: Answers = {one.name: [] for one in self.contenders}
        for name in answers:
            where = self._folder(name, case.view["kind"], case.rows)
            if "folder" not in where:
                answers[name].append(where)
        for _ in range(1 if case.once else self.sizes.rounds):
            for name, got in answers.items():
                if not any("figures" not in answer for answer in got):
                    got.append(self._measure(name, case))
        return answers

    def _measure(self, name: str, case: Case) -> dict[str, Any]:
        if case.fresh:
            self._processes[name].stop()
        folder = self._folder(name, case.view["kind"], case.rows)["folder"]
        options = {**case.options, **({"begun": time.monotonic()} if case.measure == "start" else {})}
        request = {"do": case.measure, "view": {**case.view, "folder": folder}, "options": options}
        return self._ask(name, request, ANSWER_SECONDS)

    def _folder(self, name: str, kind: str, rows: int) -> dict[str, Any]:
        """Where a contender finds its data, or why it has none."""
        if name in self.unusable:
            return {"error": self.unusable[name]}
        if (name, kind, rows) not in self._folders:
            self._folders[name, kind, rows] = self._prepare(name, kind, rows)
        return self._folders[name, kind, rows]

    def _prepare(self, name: str, kind: str, rows: int) -> dict[str, Any]:
        original = source(kind, rows)
        folder = data.FOLDER / "peers" / name / f"{kind}-{rows}"
        request = {"do": "prepare", "kind": kind, "rows": rows, "source": str(original), "folder": str(folder)}
        answer = self._ask(name, request, PREPARE_SECONDS)
        return answer or {"folder": str(original if not folder.exists() else folder)}

    def _ask(self, name: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        return self._processes[name].ask(request, seconds)


def usable(contenders: Iterable[Contender], *, install: bool) -> dict[str, str]:
    """Make the environments, and say which are missing and why."""
    missing = {}
    for one in contenders:
        try:
            if install:
                one.install()
            elif not one.installed:
                missing[one.name] = "no environment: `make bench` makes it"
        except Exception as error:
            missing[one.name] = f"it could not be installed: {error}"
    return missing
