"""The comparison with other libraries: its arithmetic, and that a broken contender is reported. It installs none."""

from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import data
from benchmarks.peers import measures, report
from benchmarks.peers.environments import CONTENDERS, Contender, usable
from benchmarks.peers.process import Process
from benchmarks.peers.report import Cell
from benchmarks.peers.run import Runner
from benchmarks.peers.scenarios import QUICK, WHOLE, Case, Scenario, scenarios
from benchmarks.peers.view import View

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
        options={"ahead": 1000, "seconds": 0.01},
    )
    chosen = [
        next(one for one in CONTENDERS if one.name == "pyarrow"),
        Contender(name="no_such_library", label="None", packages=()),
        Contender(name="uninstalled", label="Uninstalled", packages=(), requirements=("nothing",)),
    ]
    unusable = usable(chosen, install=False)
    runner, asked = Runner(chosen, unusable), scenario(cases=(case,))
    try:
        runner.prepare([asked])
        runner.round(asked)
        runner.all_at_once([asked])
        cells = runner.table(asked)["rows"]
    finally:
        runner.stop()
    assert len(cells["pyarrow"].values) == 2
    assert min(cells["pyarrow"].values) > 0
    assert cells["no_such_library"].text() == "failed"
    assert "ModuleNotFoundError" in cells["no_such_library"].reason
    assert cells["uninstalled"].reason == "no environment: `make bench` makes it"
    lines = report.failed(asked, {"rows": cells}, {one.name: one.label for one in chosen})
    assert [line.split(": ")[1] for line in lines] == ["None", "Uninstalled"]


@pytest.mark.parametrize("sizes", [QUICK, WHOLE])
def test_every_scenario_asks_for_measures_that_exist(sizes):
    asked = scenarios(sizes)
    assert {one.key[:2] for one in asked} == {f"{number:02}" for number in range(1, 17)}
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
