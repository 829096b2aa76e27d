"""Runs scenarios: every contender once in each round, in its own process, which is started once."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from benchmarks import data
from benchmarks.peers.environments import Contender
from benchmarks.peers.process import Process, cores
from benchmarks.peers.report import Table, cell
from benchmarks.peers.scenarios import Case, Scenario, source

ANSWER_SECONDS, PREPARE_SECONDS = 120.0, 900.0
Answers = dict[str, list[dict[str, Any]]]


class Runner:
    """Asks contenders, and keeps the answers. ``unusable`` says of whom there is no environment, and why."""

    def __init__(self, contenders: Sequence[Contender], unusable: Mapping[str, str]) -> None:
        self.contenders, self.unusable = contenders, unusable
        logs = data.FOLDER / "peers" / "logs"
        self._processes = {one.name: Process(one.name, one.python, logs / f"{one.name}.log") for one in contenders}
        self._folders: dict[tuple[str, str, int], dict[str, Any]] = {}
        self._answers: dict[tuple[str, str], Answers] = {}

    def prepare(self, asked: Iterable[Scenario]) -> None:
        """Write the data of these scenarios, and the contenders' own, on as many cores as there are.

        The processes that did it end: LitData's writer changes how its process starts workers from then on.
        """
        kinds = sorted({(case.view["kind"], case.rows) for one in asked for case in one.cases})
        with ProcessPoolExecutor(cores()) as processes:
            list(processes.map(source, *zip(*kinds, strict=True)))
        with ThreadPoolExecutor(cores()) as threads:
            list(threads.map(lambda one: [self._folder(one.name, *kind) for kind in kinds], self.contenders))
        self.stop()

    def round(self, scenario: Scenario) -> None:
        """Measure everyone once."""
        for case in scenario.cases:
            self._round(case, self._answers.setdefault((scenario.key, case.label), self._first_answers(case)))

    def table(self, scenario: Scenario) -> Table:
        """The figures of a scenario, of all its rounds."""
        table: Table = {}
        scale = 1e6 if scenario.unit.startswith("million") else 1.0
        for case in scenario.cases:
            answers = self._answers[scenario.key, case.label]
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

    def _first_answers(self, case: Case) -> Answers:
        """Nothing, or why a contender has no data."""
        places = {one.name: self._folder(one.name, case.view["kind"], case.rows) for one in self.contenders}
        return {name: [] if "folder" in place else [place] for name, place in places.items()}

    def _round(self, case: Case, answers: Answers) -> None:
        for name, got in answers.items():
            if any("figures" not in answer for answer in got) or (case.once and got):
                continue
            got.append(self._measure(name, case))

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
        """Have the data written. What came of it is noted beside them, so that it need not be asked again."""
        original = source(kind, rows)
        folder = data.FOLDER / "peers" / name / f"{kind}-{rows}"
        noted = folder.with_suffix(".json")
        if noted.exists():
            known: dict[str, Any] = json.loads(noted.read_text())
            if known.get("folder") in (None, str(original)) or folder.exists():
                return known
        request = {"do": "prepare", "kind": kind, "rows": rows, "source": str(original), "folder": str(folder)}
        answer = self._ask(name, request, PREPARE_SECONDS)
        answer = answer or {"folder": str(original if not folder.exists() else folder)}
        if "error" not in answer:
            noted.parent.mkdir(parents=True, exist_ok=True)
            noted.write_text(json.dumps(answer))
        return answer

    def _ask(self, name: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        return self._processes[name].ask(request, seconds)
