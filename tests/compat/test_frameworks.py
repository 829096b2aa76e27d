"""The examples for accelerate, Lightning and transformers: killed and started again, they train on the same rows."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS, EPOCHS, STEPS_AN_EPOCH, SAVE_EVERY = 100, 2, 14, 7
STEPS = EPOCHS * STEPS_AN_EPOCH
"""Two workers read a lane of 50 rows each: seven batches of at most 8 rows in an epoch."""

STARTS = [4, 9, 14, 24, None, None]
"""The steps after which a start is killed: before the first checkpoint, between two, at the last step of an epoch, in
the second epoch. None runs to the end; the last one starts a run that is already finished."""

START_AGAIN_AND_AGAIN = """
import importlib, json, multiprocessing, sys
from pathlib import Path

# Imports take longer than training, so they are done once, and every start is a process forked after them.
example, folder = importlib.import_module(sys.argv[1]), Path(sys.argv[2])
example.write(folder / "data")
for kill_after in json.loads(sys.argv[3]):
    process = multiprocessing.get_context("fork").Process(target=example.train, args=(folder, kill_after))
    process.start()
    process.join()
    with (folder / "ends.jsonl").open("a") as file:
        file.write(json.dumps(process.exitcode) + "\\n")
"""


def python(folder, *arguments):
    """Run Python, with its output in a file: the workers of a killed process stay alive and would keep a pipe open."""
    folder.mkdir(exist_ok=True)
    paths = os.pathsep.join([str(EXAMPLES), str(EXAMPLES.parent / "src")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths}
    with (folder / "output.txt").open("w") as output:
        command = [sys.executable, *map(str, arguments)]
        code = subprocess.run(command, stdout=output, stderr=output, env=environment, check=False).returncode
    assert code == 0, (folder / "output.txt").read_text()[-5000:]


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps_in(folder):
    """The rows that each step received, in the order of the steps."""
    return [(line["step"], line["ids"]) for line in lines_of(folder / "rows.jsonl")]


def assert_whole(steps):
    """Every step was taken once, and every epoch has every row once, each in another order."""
    assert [step for step, _ in steps] == list(range(1, STEPS + 1))
    epochs = [
        [row for _, ids in steps[first : first + STEPS_AN_EPOCH] for row in ids]
        for first in range(0, STEPS, STEPS_AN_EPOCH)
    ]
    for rows in epochs:
        assert Counter(rows) == Counter(range(ROWS))
    assert epochs[0] != epochs[1]


def expected_steps():
    """The steps that all starts take: each starts after the last checkpoint of the one before."""
    taken, reached = [], 0
    for kill_after in STARTS:
        end = kill_after or STEPS
        taken += range(reached // SAVE_EVERY * SAVE_EVERY + 1, end + 1)
        reached = end
    return taken


@pytest.mark.parametrize("framework", ["accelerate", "lightning", "transformers"])
def test_a_killed_example_resumes_with_the_same_rows(tmp_path, framework):
    python(tmp_path / "whole", EXAMPLES / f"{framework}_resume.py", tmp_path / "whole")
    whole = steps_in(tmp_path / "whole")
    assert_whole(whole)

    killed = tmp_path / "killed"
    python(killed, "-c", START_AGAIN_AND_AGAIN, f"{framework}_resume", killed, json.dumps(STARTS))
    ends = [-signal.SIGKILL if kill_after else 0 for kill_after in STARTS]
    assert lines_of(killed / "ends.jsonl") == ends, (killed / "output.txt").read_text()[-5000:]
    rows_of = dict(whole)
    assert steps_in(killed) == [(step, rows_of[step]) for step in expected_steps()]
