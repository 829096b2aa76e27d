"""The comparison with other libraries: its arithmetic, and that a broken contender is reported. It installs none."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import data
from benchmarks.peers import measures, report
from benchmarks.peers.environments import CONTENDERS, Contender
from benchmarks.peers.footprint import memory_of_tree, processor_seconds_of_tree
from benchmarks.peers.process import Process
from benchmarks.peers.report import Cell
from benchmarks.peers.run import Runner, usable
from benchmarks.peers.scenarios import QUICK, WHOLE, Case, Scenario, scenarios
from benchmarks.peers.view import NotOfferedError, View

VIEW = View(kind="texts", folder="")
LABELS = {"midepoch": "midepoch", "other": "Other", "third": "Third"}


def figures(*values):
    return [{"figures": {"value": value}} for value in values]


def scenario(*, more=True, cases=()):
    return Scenario(key="00-some", title="Some", unit="rows/s", more=more, note="A note.", cases=cases)


def test_a_cell_is_the_median_with_its_spread():
    found = report.cell(figures(3e6, 1e6, 2e6), "value", scale=1e6)
    assert found.middle == 2
    assert found.text() == "2 (1 – 3)"
    assert report.cell(figures(123_456.7), "value").text() == "123,457"


@pytest.mark.parametrize(
    ("answer", "text"),
    [({"not_offered": "why"}, "not offered"), ({"refused": "why"}, "refused"), ({"error": "why"}, "failed")],
)
def test_one_round_without_a_figure_leaves_the_reason(answer, text):
    found = report.cell([*figures(1.0), answer], "value")
    assert (found.middle, found.text(), found.reason) == (None, text, "why")


def test_ratios_above_one_are_better_in_both_directions():
    assert report.ratio(Cell(values=(4.0,)), Cell(values=(2.0,)), more=True) == 2
    assert report.ratio(Cell(values=(4.0,)), Cell(values=(2.0,)), more=False) == 0.5
    assert report.ratio(Cell(values=(4.0,)), Cell(says="not offered"), more=True) is None
    assert report.ratio(Cell(values=(0.0,)), Cell(values=(5.0,)), more=False) is None


def test_it_says_where_midepoch_is_behind_and_only_there():
    table = {
        "ahead": {"midepoch": Cell(values=(3.0,)), "other": Cell(values=(2.0,)), "third": Cell(values=(1.0,))},
        "behind": {"midepoch": Cell(values=(1.0,)), "other": Cell(values=(2.0,)), "third": Cell(values=(4.0,))},
        "alone": {"midepoch": Cell(values=(1.0,)), "other": Cell(says="not offered")},
    }
    assert report.behind(scenario(), table, LABELS) == ["Some, behind: Third is ahead; midepoch has 0.25 × of it."]
    assert report.behind(scenario(more=False), table, LABELS) == [
        "Some, ahead: Third is ahead; midepoch has 0.33 × of it."
    ]


def test_a_row_more_than_none_is_behind_too():
    table = {"lost": {"midepoch": Cell(values=(1.0,)), "other": Cell(values=(0.0,))}}
    assert report.behind(scenario(more=False), table, LABELS) == [
        "Some, lost: Other is ahead; midepoch has 1 against 0."
    ]


def test_the_table_has_a_line_for_everyone_and_every_reason_once():
    table = {
        "a": {"midepoch": Cell(values=(1.0, 2.0, 3.0)), "other": Cell(says="failed", reason="it\nfell over")},
        "b": {"midepoch": Cell(values=(5.0,)), "other": Cell(says="failed", reason="it\nfell over")},
    }
    lines = report.section(scenario(), table, LABELS, "some.png").splitlines()
    assert "| midepoch | 2 (1 – 3) | 5 |" in lines
    assert "| Other | failed | failed |" in lines
    assert lines.count("- Other, failed: it fell over") == 1
    assert lines[-1] == "![Some](some.png)"


class Rows:
    """A loader whose state is how many batches were received, give or take."""

    def __init__(self, off):
        self.off, self.start, self.received = off, 0, 0

    def __iter__(self):
        for batch in range(self.start, 20):
            self.received = batch + 1
            yield {"number": [2 * batch, 2 * batch + 1]}

    def state_dict(self):
        return self.received + self.off

    def load_state_dict(self, state):
        self.start = state


@pytest.mark.parametrize(("off", "lost", "repeated"), [(0, 0, 0), (3, 6, 0), (-2, 0, 4)])
def test_lost_and_repeated_rows_are_counted(off, lost, repeated):
    contender = SimpleNamespace(load=lambda view: Rows(off))
    found = measures.exact(contender, VIEW, batches=7, workers_after=4)
    assert found == {"lost": lost, "repeated": repeated}


def test_an_error_at_the_resume_is_a_refusal():
    class Refuses(Rows):
        def load_state_dict(self, state):
            raise ValueError("another worker count")

    with pytest.raises(measures.RefusedError, match="another worker count"):
        measures.exact(SimpleNamespace(load=lambda view: Refuses(0)), VIEW, batches=7, workers_after=4)


def test_a_loader_without_a_state_does_not_offer_one():
    contender = SimpleNamespace(load=lambda view: iter([]))
    with pytest.raises(NotOfferedError):
        measures.state(contender, VIEW, batches=1)


def test_speed_counts_rows_and_not_batches(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(measures.time, "perf_counter", lambda: float(next(ticks)))
    batches = [{"text": ["a", "b"]} for _ in range(20)]
    contender = SimpleNamespace(load=lambda view: batches)
    found = measures.speed(contender, VIEW, rows=40, seconds=1000.0, per_row=10)
    # three batches warm up; seventeen of 2 rows come at a tick each; the clock is also read once before them
    assert found["value"] == 17 * 2 * 10 / 18
    assert found["worked"] > 0


def test_memory_is_counted_for_a_living_process_and_not_for_one_that_ended():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert memory_of_tree(os.getpid()) > 1e6
    assert memory_of_tree(ended.pid) == 0
    assert processor_seconds_of_tree(ended.pid) == 0


def test_the_processor_time_of_children_counts_also_of_those_that_a_thread_started():
    code = [sys.executable, "-c", "sum(range(10**7)); print(flush=True); input()"]
    with ThreadPoolExecutor(1) as thread:
        child = thread.submit(subprocess.Popen, code, stdin=-1, stdout=-1, text=True).result()
        child.stdout.readline()
        _check_that_it_counts(child)


def _check_that_it_counts(child):
    before = processor_seconds_of_tree(os.getpid())
    assert before - time.process_time() > 0.05
    child.communicate("")
    assert processor_seconds_of_tree(os.getpid()) >= before  # those that have ended count too


def script(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_processes_that_die_hang_or_are_missing_are_reported(tmp_path):
    log = tmp_path / "log"
    dies = Process("dies", script(tmp_path, "dies", "read line; exit 3"), log)
    assert dies.ask({}, 60) == {"error": "its process ended with 3; see log"}
    hangs = Process("hangs", script(tmp_path, "hangs", "cat > /dev/null"), log)
    assert hangs.ask({}, 0.01) == {"error": "no answer in 0 s"}
    assert "cannot be reached" in Process("missing", tmp_path / "missing", log).ask({}, 60)["error"]


def test_a_broken_contender_does_not_stop_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "FOLDER", tmp_path)
    case = Case(
        label="rows",
        measure="speed",
        rows=4000,
        view={"kind": "texts", "batch_size": None},
        options={"rows": 4000, "seconds": 5.0},
    )
    chosen = [
        next(one for one in CONTENDERS if one.name == "pyarrow"),
        Contender(name="no_such_library", label="None", packages=()),
        Contender(name="uninstalled", label="Uninstalled", packages=(), requirements=("nothing",)),
    ]
    unusable = usable(chosen, install=False)
    runner = Runner(chosen, replace(QUICK, rounds=2), unusable)
    try:
        cells = runner.table(scenario(cases=(case,)))["rows"]
    finally:
        runner.stop()
    assert len(cells["pyarrow"].values) == 2
    assert min(cells["pyarrow"].values) > 0
    assert cells["no_such_library"].text() == "failed"
    assert "ModuleNotFoundError" in cells["no_such_library"].reason
    assert cells["uninstalled"].reason == "no environment: `make bench` makes it"


@pytest.mark.parametrize("sizes", [QUICK, WHOLE])
def test_every_scenario_asks_for_measures_that_exist(sizes):
    asked = scenarios(sizes)
    assert {one.key[:2] for one in asked} == {f"{number:02}" for number in range(1, 14)}
    assert all(case.measure in measures.MEASURES for one in asked for case in one.cases)
    assert len({one.key for one in asked}) == len(asked)


def test_every_contender_has_its_module():
    folder = Path(report.__file__).parent / "contenders"
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert modules == {one.name for one in CONTENDERS}
    assert list(islice((one.name for one in CONTENDERS), 1)) == [report.OURS]


def test_a_report_can_be_read_back():
    tables = {"01-a": {"rows": {"midepoch": Cell(values=(1.0, 2.0)), "other": Cell(says="refused", reason="no")}}}
    assert report.from_json(report.as_json(tables, {"cores": 2})) == tables
