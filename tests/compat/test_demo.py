"""The demo: a small one runs to its end, and what it concludes from its logs is right for runs that are not exact."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo"
ROWS, STEPS, RESUMED_AT = 60, 10, (4, 8)

specification = importlib.util.spec_from_file_location("demo_evidence", DEMO / "evidence.py")
evidence = importlib.util.module_from_spec(specification)
sys.modules[specification.name] = evidence  # dataclasses look for their module there
specification.loader.exec_module(evidence)


def test_a_small_demo_runs_to_its_end_and_draws(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "default"}
    command = [sys.executable, DEMO / "run.py", "--rows", "240", "--png", tmp_path / "a" / "demo.png"]
    done = subprocess.run([*command, "--skip-comparison"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SIGKILL to all processes in step") == 2
    assert "Every row was delivered exactly once." in done.stdout
    assert (tmp_path / "a" / "demo.png").read_bytes().startswith(b"\x89PNG")


def sessions():
    """The lines that two ranks log, session by session; those of killed ones reach two steps beyond the checkpoint."""

    def lines(first, last):
        for step in range(first, last + 1):
            rows = [*range(6 * step - 6, 6 * step)]
            for rank in range(2):
                yield rank, {"step": step, "rows": rows[rank::2], "loss": 30.0 / step, "tokens": 10}

    return [[*lines(1, 5)], [*lines(4, 9)], [*lines(8, STEPS)]]


def write(folder, logs):
    for number, lines in enumerate(logs):
        session = folder / f"session-{number}"
        session.mkdir(parents=True)
        for rank in range(2):
            text = "".join(json.dumps(line) + "\n" for owner, line in lines if owner == rank)
            (session / f"rank-{rank}.jsonl").write_text(text)
    return evidence.read_run(folder)


@pytest.fixture
def whole(tmp_path):
    """The uninterrupted run."""
    return write(tmp_path / "whole", [[*sessions()[0], *sessions()[1][4:], *sessions()[2][4:]]])


def line_of(logs, session, step, rank=0):
    return next(line for owner, line in logs[session] if (owner, line["step"]) == (rank, step))


def test_an_exact_run_has_no_problems(tmp_path, whole):
    logs = sessions()
    run = write(tmp_path / "run", logs)
    with (tmp_path / "run" / "session-0" / "rank-0.jsonl").open("a") as file:
        file.write('{"step": 6, "ro')  # the kill came while this was written
    run = evidence.read_run(tmp_path / "run")
    assert evidence.problems_of(run, whole, ROWS) == []
    assert (run.resumed_at, run.repeated_steps) == (RESUMED_AT, 4)
    assert [run.steps[step].session for step in range(1, STEPS + 1)] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]


def one_row_is_lost(logs):
    line_of(logs, 1, 4)["rows"].pop()


def one_row_comes_twice(logs):
    line_of(logs, 1, 4)["rows"].append(0)


def a_row_is_not_in_the_corpus(logs):
    line_of(logs, 2, 10)["rows"].append(ROWS)


def the_resume_is_one_row_late(logs):
    for lines in logs[1:]:
        for _, line in lines:
            line["rows"] = [row + 1 for row in line["rows"] if row + 1 < ROWS]


def the_resume_starts_over(logs):
    logs[1] = [line for line in logs[0] if line[1]["step"] < 4]


def the_loss_differs(logs):
    line_of(logs, 2, 9)["loss"] += 0.1


def nothing_was_logged(logs):
    logs[:] = [[], [], []]


TAMPERED = {
    one_row_is_lost: "1 rows lost",
    one_row_comes_twice: "1 rows delivered more than once",
    a_row_is_not_in_the_corpus: "1 rows that are not in the corpus",
    the_resume_is_one_row_late: "1 rows lost",
    the_resume_starts_over: "steps have other rows than without the kills",
    the_loss_differs: "the loss of a step differs by 0.005",
    nothing_was_logged: "60 rows lost",
}


@pytest.mark.parametrize("tamper", TAMPERED, ids=lambda tamper: tamper.__name__)
def test_a_run_that_is_not_exact_is_found(tmp_path, whole, tamper):
    logs = sessions()
    tamper(logs)
    problems = evidence.problems_of(write(tmp_path / "run", logs), whole, ROWS)
    assert any(TAMPERED[tamper] in problem for problem in problems), problems
    assert all(problem.startswith("resumed run") for problem in problems)


def test_an_uninterrupted_run_that_is_wrong_proves_nothing(tmp_path):
    logs = sessions()
    one_row_is_lost(logs)
    run = write(tmp_path / "run", logs)
    assert evidence.problems_of(run, run, ROWS) == ["uninterrupted run: 1 rows lost", "resumed run: 1 rows lost"]
