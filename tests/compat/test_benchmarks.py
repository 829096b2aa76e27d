"""The comparison with other libraries: its arithmetic, and that a broken contender is reported. It installs none."""

import os
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benchmarks import data
from benchmarks.peers import environments, measures, page, process, report, run
from benchmarks.peers.environments import CONTENDERS, Contender, usable
from benchmarks.peers.footprint import memory_of_tree, processor_seconds_of_tree
from benchmarks.peers.process import Process
from benchmarks.peers.report import Cell
from benchmarks.peers.run import Runner
from benchmarks.peers.scenarios import QUICK, WHOLE, Case, Scenario, scenarios
from benchmarks.peers.view import NotOfferedError, View

import midepoch as me

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


class Clock:
    """Time as the loaders of a test make it pass."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(measures.time, "perf_counter", lambda: self.now)

    def items(self, *costs):
        for cost in costs:
            self.now += cost
            yield {"text": ["a", "b"]}


def speed_of(passes, ahead=1, seconds=2.0, per_row=1):
    """``passes`` makes the items of one pass each time."""
    loader = type("Loader", (), {"__iter__": lambda self: passes()})()
    contender = SimpleNamespace(load=lambda view: loader)
    return measures.speed(contender, VIEW, ahead=ahead, seconds=seconds, per_row=per_row)


def test_speed_counts_rows_and_not_batches_and_leaves_out_the_start_of_a_pass(monkeypatch):
    clock = Clock(monkeypatch)
    found = speed_of(lambda: clock.items(100.0, *[0.5] * 5), per_row=10)
    assert found["value"] == 5 * 2 * 10 / 2.5
    assert found["worked"] > 0


def test_short_passes_are_added_until_there_is_enough_time(monkeypatch):
    clock, begun = Clock(monkeypatch), []

    def passes():
        begun.append(clock.now)
        return clock.items(50.0, *[0.25] * 3)

    assert speed_of(passes)["value"] == 2 / 0.25
    assert len(begun) == 3


def test_a_slow_pass_is_cut_but_not_before_every_worker_had_its_turns(monkeypatch):
    clock = Clock(monkeypatch)
    assert speed_of(lambda: clock.items(*[1.0] * 1000))["value"] == 2
    assert clock.now == 1 + 1 + measures.LONGEST * 2
    clock.now = 0.0
    speed_of(lambda: clock.items(*[100.0] * 1000))
    assert clock.now == 100 * (1 + measures.TURNS)


def test_rows_that_were_made_ahead_do_not_count_as_speed(monkeypatch):
    clock = Clock(monkeypatch)
    assert speed_of(lambda: clock.items(9.0, *[0.0] * 20, *[0.5] * 20), ahead=41)["value"] == 4


def test_without_workers_a_pass_is_timed_from_its_beginning(monkeypatch):
    clock = Clock(monkeypatch)
    assert speed_of(lambda: clock.items(3.0, *[0.1] * 9), ahead=0)["value"] == pytest.approx(20 / 3.9)
    clock.now = 0.0
    assert speed_of(lambda: clock.items(50.0, *[0.5] * 4), ahead=0)["value"] == 10 / 52  # a slow start does not cut it
    speeds = [case for one in scenarios(WHOLE) for case in one.cases if case.measure == "speed"]
    assert all((case.options["ahead"] == 0) == (case.view.get("workers", 0) == 0) for case in speeds)


def test_a_pass_that_was_all_made_ahead_has_no_speed():
    with pytest.raises(RuntimeError, match="not more than 10 rows"):
        speed_of(lambda: iter([{"text": ["a"]}]), ahead=10)


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


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="semaphores are not files here")
def test_a_process_that_ends_leaves_no_semaphores(tmp_path):
    code = """
import json, multiprocessing, sys
lock = multiprocessing.get_context("spawn").Lock()
for line in sys.stdin:
    print(json.dumps({"name": lock._semlock.name}), flush=True)
"""
    (tmp_path / "code.py").write_text(code)
    some = Process("some", script(tmp_path, "some", f"exec {sys.executable} {tmp_path}/code.py"), tmp_path / "log")
    semaphore = Path("/dev/shm") / f"sem.{some.ask({}, 60)['name'].lstrip('/')}"
    assert semaphore.exists()
    some.stop()
    deadline = time.monotonic() + 60
    while semaphore.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not semaphore.exists()


def test_a_process_that_goes_on_without_requests_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "END_SECONDS", 0.1)
    goes_on = Process("goes on", script(tmp_path, "goes-on", "echo '{}'; exec sleep 1000"), tmp_path / "log")
    assert goes_on.ask({}, 60) == {}
    goes_on.stop()
    assert goes_on.ask({}, 60) == {}  # of a new one
    goes_on.stop()


def test_data_are_prepared_once_and_again_where_they_are_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "FOLDER", tmp_path)
    asked = []

    def ask(self, request, seconds):
        asked.append(request["kind"])
        Path(request["folder"]).mkdir(parents=True)
        return {}

    monkeypatch.setattr(Process, "ask", ask)
    case = Case(label="", measure="speed", rows=4000, view={"kind": "texts"})
    chosen = [next(one for one in CONTENDERS if one.name == "pyarrow")]
    for _ in range(2):
        Runner(chosen, {}).prepare([scenario(cases=(case,))])
    assert asked == ["texts"]
    (tmp_path / "peers" / "pyarrow" / "texts-4000").rmdir()
    Runner(chosen, {}).prepare([scenario(cases=(case,))])
    assert asked == ["texts"] * 2


def test_a_quick_run_starts_each_contender_once_and_asks_for_its_start_first(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "FOLDER", tmp_path)
    asked, starts = {}, []

    def ask(self, request, seconds):
        if not hasattr(self, "running"):
            self.running = True
            starts.append(self.name)
        if request["do"] != "prepare":
            asked.setdefault(self.name, []).append(request["do"])
            return {"figures": dict.fromkeys(("value", "worked", "bytes", "time", "lost", "repeated"), 1.0)}
        return {}

    def stop(self):
        if hasattr(self, "running"):
            del self.running

    monkeypatch.setattr(Process, "ask", ask)
    monkeypatch.setattr(Process, "stop", stop)
    chosen = [Contender(name=name, label=name, packages=()) for name in ("midepoch", "other", "third")]
    quick = [one for one in scenarios(QUICK) if one.key[:2] in ("01", "08", "10", "11")]
    runner = Runner(chosen, {"third": "no environment"})
    runner.prepare(quick)
    starts.clear()
    runner.all_at_once(quick)
    assert sorted(starts) == ["midepoch", "other"]
    assert asked == {name: ["start", "speed", "state", "exact"] for name in ("midepoch", "other")}
    assert all(cells["third"].reason == "no environment" for one in quick for cells in runner.table(one).values())


def test_a_quick_run_that_is_interrupted_begins_nothing_more(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "FOLDER", tmp_path)
    monkeypatch.setattr(run, "cores", lambda: 2)
    asked, begun, stopped = [], threading.Event(), threading.Event()

    def ask(self, request, seconds):
        if request["do"] == "prepare":
            return {}
        if self.name == "interrupted":
            assert begun.wait(60)
            raise KeyboardInterrupt
        asked.append(request["view"])
        begun.set()
        assert stopped.wait(60)
        return {"error": "its process was stopped"}

    monkeypatch.setattr(Process, "ask", ask)
    chosen = [Contender(name=name, label="", packages=()) for name in ("other", "interrupted")]
    rows = [one for one in scenarios(QUICK) if one.key[:2] in ("01", "02", "04")]
    runner = Runner(chosen, {})
    runner.prepare(rows)
    monkeypatch.setattr(Process, "stop", lambda self: stopped.set())
    with pytest.raises(KeyboardInterrupt):
        runner.all_at_once(rows)
    assert len(asked) == 1


def wheel(folder, name, version):
    """A wheel of one empty module."""
    folder.mkdir(exist_ok=True)
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def test_environments_from_wheels_need_no_network_and_see_this_torch(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "envs")
    wheel(tmp_path / "wheels", "first_wheel", "1.0")
    wheel(tmp_path / "wheels" / "more", "second_wheel", "2.0")
    there = Contender(
        name="there",
        label="",
        packages=(),
        requirements=(environments.TORCH, "first_wheel==1.0", "second_wheel==2.0"),
    )
    absent = Contender(name="absent", label="", packages=(), requirements=("no_such_wheel==1",))
    missing = usable([there, absent], install=True, wheels=tmp_path / "wheels")
    assert list(missing) == ["absent"]
    assert "could not be installed" in missing["absent"]
    assert "no_such_wheel" in missing["absent"]
    assert usable([there, absent], install=False) == missing  # the reason is known later too
    code = "import first_wheel, second_wheel, torch; print(torch.__file__)"
    found = subprocess.run([there.python, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == torch.__file__


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


def test_every_row_of_few_texts_has_a_number_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "FOLDER", tmp_path)
    rows = me.read(data.texts(QUICK.small), index_dir=tmp_path / "index")
    assert [row["number"] for row in rows] == list(range(QUICK.small))


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


def test_reports_of_one_machine_can_be_joined(tmp_path):
    about = {"date": "", "cores": 2, "machine": "m", "note": "old", "versions": {}, "missing": {}, "rounds": 1}
    first, second = ({"rows": {"midepoch": Cell(values=(value,))}} for value in (1.0, 2.0))
    tried = {**about, "minutes": 3.0, "versions": {"litdata": {"litdata": "1"}}}
    page.write(tmp_path / "a", tried, scenarios(WHOLE), {"01-text-rows": first, "05-parquet": first})
    page.write(tmp_path / "b", {**about, "minutes": 2.0}, scenarios(WHOLE), {"01-text-rows": second})
    joined, tables = page.join([tmp_path / "a", tmp_path / "b"], "new")
    assert tables == {"01-text-rows": second, "05-parquet": first}
    assert (joined["minutes"], joined["note"], list(joined["versions"])) == (3.0, "new", ["litdata"])
    text = (tmp_path / "a" / "README.md").read_text()
    assert text.index("## Text rows, one process") < text.index("## Parquet in place")
    assert "![Parquet in place](05-parquet.png)" in text
