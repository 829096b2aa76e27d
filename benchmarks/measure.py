"""Times contenders side by side, runs code in fresh processes, and prints the figures as a table."""

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number; ``bound`` is ">=" or "<=" if there is a target."""

    what: str
    value: float
    unit: str = ""
    bound: str = ""
    target: float = 0.0

    @property
    def met(self) -> str:
        """ "yes" or "NO", or "" without a target."""
        if not self.bound:
            return ""
        return "yes" if (self.value >= self.target if self.bound == ">=" else self.value <= self.target) else "NO"


def at_least(target: float, what: str, value: float, unit: str = "") -> Figure:
    """A figure that should not be smaller."""
    return Figure(what=what, value=value, unit=unit, bound=">=", target=target)


def at_most(target: float, what: str, value: float, unit: str = "") -> Figure:
    """A figure that should not be larger."""
    return Figure(what=what, value=value, unit=unit, bound="<=", target=target)


def figure(what: str, value: float, unit: str = "") -> Figure:
    """A figure without a target."""
    return Figure(what=what, value=value, unit=unit)


def show(title: str, figures: Iterable[Figure]) -> None:
    """Print figures as the lines of a Markdown table."""
    print(f"\n### {title}\n\n| measured | figure | target | met |\n| --- | ---: | ---: | --- |")
    for one in figures:
        target = f"{one.bound} {_number(one.target)}" if one.bound else ""
        print(f"| {one.what} | {_number(one.value)} {one.unit} | {target} | {one.met} |", flush=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def seconds(call: Callable[[], Any]) -> float:
    """How long one call takes."""
    gc.collect()
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def processor_seconds(call: Callable[[], Any]) -> float:
    """How long one call computes in this process, which other programs change less than its time by the clock."""
    gc.collect()
    begun = time.process_time()
    call()
    return time.process_time() - begun


def in_turn(contenders: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """The times of each contender, all of them run once in each round, so that noise affects all of them."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, measure in contenders.items():
            times[name].append(measure())
    return times


def best_apart(contenders: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The shortest time of each, measured in processes of their own.

    A million strings made and freed would slow down the next contender in the same process. So each runs in a fork of
    this process, which itself runs none of them.
    """
    apart = {name: partial(_seconds_apart, call) for name, call in contenders.items()}
    return {name: min(times) for name, times in in_turn(apart, repeats).items()}


def _seconds_apart(call: Callable[[], Any]) -> float:
    """How long the second of two calls takes in a fork: the first one imports and warms up."""
    answers, answer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
            os.write(answer, f"{seconds(call)}".encode())
        finally:
            os._exit(0)
    os.close(answer)
    with os.fdopen(answers) as printed:
        time_taken = printed.read()
    os.waitpid(child, 0)
    return float(time_taken)


def medians(contenders: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The median time of each."""
    timed = {name: partial(seconds, call) for name, call in contenders.items()}
    return {name: median(times) for name, times in in_turn(timed, repeats).items()}


def exhaust(items: Iterable[Any]) -> None:
    """Take every item, like a loop."""
    for _ in items:
        pass


def fresh(code: str, *arguments: object) -> str:
    """The last line that a new Python process prints for some code."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip().rpartition("\n")[2]


def without_survey(dataset: Any) -> Any:
    """The same dataset, whose packs do not find the lengths of the rows by themselves."""
    from midepoch.dataset import plan_of, with_plan

    plan = plan_of(dataset)
    return with_plan(dataset, replace(plan, pipeline=replace(plan.pipeline, own_lengths=None)))
