"""Runs scenarios: every contender once in each round, in its own process, which is started once."""

import fcntl
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
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
        self._processes = {one.name: Process(one.name, one.python, self._log(one.name)) for one in contenders}
        self._folders: dict[tuple[str, str, int], dict[str, Any]] = {}
        self._answers: dict[tuple[str, str], Answers] = {}
        self._stopped = False

    def prepare(self, asked: Iterable[Scenario]) -> None:
        """Write the data of these scenarios, and the contenders' own, on as many cores as there are.

        The processes that write them measure nothing: LitData's writer changes how its process starts workers.
        """
        kinds = sorted({(case.view["kind"], case.rows) for one in asked for case in one.cases})
        with ProcessPoolExecutor(cores()) as processes:
            list(processes.map(source, *zip(*kinds, strict=True)))
        groups = max(1, cores() // 4)  # of data, each written by a process of its own
        writers = [
            (Process(one.name, one.python, self._log(one.name)), kinds[group::groups])
            for one in self.contenders
            if one.name not in self.unusable
            for group in range(groups)
        ]
        with ThreadPoolExecutor(cores()) as threads:
            list(threads.map(self._write, *zip(*writers, strict=True)))

    def round(self, scenario: Scenario) -> None:
        """Measure everyone once."""
        for case in scenario.cases:
            answers = self._answers.setdefault((scenario.key, case.label), self._first_answers(case))
            for name, got in answers.items():
                self._once(name, case, got)

    def all_at_once(self, asked: Sequence[Scenario]) -> None:
        """Measure everyone once in all scenarios, as many contenders at a time as there are cores.

        Everything that a contender is asked is asked of one process, and its start first. So imports, which are most of
        the time of small data, are few and side by side. But figures of contenders that run at the same time differ
        from those of a contender alone.
        """
        cases = [(one.key, case) for one in asked for case in one.cases]
        for key, case in cases:
            self._answers.setdefault((key, case.label), self._first_answers(case))
        cases.sort(key=lambda one: not one[1].fresh)
        names = [one.name for one in reversed(self.contenders)]  # the first ones take least, and fill the gaps
        with ThreadPoolExecutor(cores()) as threads:
            try:
                list(threads.map(self._all_of, names, [cases] * len(names)))
            except BaseException:
                self.stop()
                raise

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
        """End all processes, and begin nothing more."""
        self._stopped = True
        for process in self._processes.values():
            process.stop()

    def _first_answers(self, case: Case) -> Answers:
        """Nothing, or why a contender cannot be measured."""
        answers: Answers = {}
        for one in self.contenders:
            missing = self.unusable.get(one.name)
            place = {"error": missing} if missing else self._folders[one.name, case.view["kind"], case.rows]
            answers[one.name] = [] if "folder" in place else [place]
        return answers

    def _all_of(self, name: str, cases: Iterable[tuple[str, Case]]) -> None:
        for key, case in cases:
            if not self._stopped:
                self._once(name, case, self._answers[key, case.label][name])
        self._processes[name].stop()

    def _once(self, name: str, case: Case, got: list[dict[str, Any]]) -> None:
        if all("figures" in answer for answer in got) and not (case.once and got):
            got.append(self._measure(name, case))

    def _measure(self, name: str, case: Case) -> dict[str, Any]:
        with self._turn(name):
            if case.fresh:
                self._processes[name].stop()
            place = self._folders[name, case.view["kind"], case.rows]
            options = {**case.options, **({"begun": time.monotonic()} if case.measure == "start" else {})}
            request = {"do": case.measure, "view": {**case.view, **place}, "options": options}
            return self._ask(name, request, ANSWER_SECONDS)

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        """Wait for other runs on this machine, where a contender cannot be used by two at a time."""
        if not next(one for one in self.contenders if one.name == name).alone:
            yield
            return
        with open(data.FOLDER / "peers" / f"{name}.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, process: Process, kinds: Sequence[tuple[str, int]]) -> None:
        try:
            for kind, rows in kinds:
                self._folders[process.name, kind, rows] = _written(process, kind, rows)
        finally:
            process.stop()

    def _log(self, name: str) -> Path:
        return data.FOLDER / "peers" / "logs" / f"{name}.log"

    def _ask(self, name: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        return self._processes[name].ask(request, seconds)


def _written(process: Process, kind: str, rows: int) -> dict[str, Any]:
    """Where a contender finds its data, or why it has none. It is noted beside them, and not asked again."""
    original = source(kind, rows)
    folder = data.FOLDER / "peers" / process.name / f"{kind}-{rows}"
    noted = folder.with_suffix(".json")
    if noted.exists():
        known: dict[str, Any] = json.loads(noted.read_text())
        if known.get("folder") in (None, str(original)) or folder.exists():
            return known
    request = {"do": "prepare", "kind": kind, "rows": rows, "source": str(original), "folder": str(folder)}
    answer = process.ask(request, PREPARE_SECONDS)
    answer = answer or {"folder": str(original if not folder.exists() else folder)}
    if "error" not in answer:
        noted.parent.mkdir(parents=True, exist_ok=True)
        noted.write_text(json.dumps(answer))
    return answer
