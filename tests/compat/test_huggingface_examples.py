"""The Hugging Face examples: killed and started again, with other workers or ranks, they go on with the very rows."""

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS, EPOCHS, STEPS_AN_EPOCH, SAVE_EVERY = 96, 3, 12, 4
STEPS = EPOCHS * STEPS_AN_EPOCH
KILLS = [3, 12, 22, 36, None]
"""Killed after so many steps: before the first checkpoint; at one which is an epoch's last step; between two; at the
last of all; and once more."""

START_AGAIN_AND_AGAIN = """
import importlib, json, multiprocessing, sys
from pathlib import Path

# Importing takes longer than training, so it is done once, and every start is a process forked after it.
import datasets, midepoch.loader, midepoch.integrations.huggingface, torch._dynamo
example = importlib.import_module(sys.argv[1])
for folder, starts in json.loads(sys.argv[2]).items():
    example.write(Path(folder) / "data")
    for arguments in starts:
        process = multiprocessing.get_context("fork").Process(target=example.train, args=(Path(folder), *arguments))
        process.start()
        process.join()
        with (Path(folder) / "ends.jsonl").open("a") as file:
            file.write(json.dumps(process.exitcode) + "\\n")
"""


def python(folder, *arguments, dies=False):
    """Run Python, with what it says in a file: a process that is killed leaves workers behind that hold its pipes."""
    environment = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")]),
    }
    with (folder / "said.txt").open("a") as said:
        command = [sys.executable, *map(str, arguments)]
        run = subprocess.run(command, stdout=said, stderr=said, env=os.environ | environment, check=False)
    assert (run.returncode != 0) == dies, (folder / "said.txt").read_text()[-5000:]


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps_in(folder):
    """Which rows each step received, in the order in which the steps were taken."""
    return [(line["step"], line["ids"]) for line in lines_of(folder / "rows.jsonl")]


def assert_whole(batches):
    """Every epoch has every row once, in an order of its own."""
    rows = [row for batch in batches for row in batch]
    epochs = [rows[first : first + ROWS] for first in range(0, len(rows), ROWS)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(ROWS))] * EPOCHS
    assert epochs[0] != epochs[1] != epochs[2]


def expected_steps(kills):
    """The numbers of the steps that all starts take, each from the last checkpoint before the end of the former."""
    taken, reached = [], 0
    for kill_after in kills:
        end = kill_after or STEPS
        taken += range(reached // SAVE_EVERY * SAVE_EVERY + 1, end + 1)
        reached = end
    return taken


@pytest.mark.parametrize(
    ("example", "first", "layouts"),
    [
        ("huggingface_loop", [], [[]] * len(KILLS)),
        ("huggingface_stateful", [0], [[2], [2], [4], [1], [0]]),
    ],
    ids=["loop", "stateful"],
)
def test_A14_A16_a_killed_example_resumes_with_the_same_rows(tmp_path, example, first, layouts):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    starts = [[*layout, kill_after] for layout, kill_after in zip(layouts, KILLS, strict=True)]
    plan = {str(whole): [[*first, None]], str(killed): starts}
    python(tmp_path, "-c", START_AGAIN_AND_AGAIN, example, json.dumps(plan))
    said = (tmp_path / "said.txt").read_text()[-5000:]
    assert lines_of(whole / "ends.jsonl") == [0], said
    assert lines_of(killed / "ends.jsonl") == [-signal.SIGKILL if kill_after else 0 for kill_after in KILLS], said
    uninterrupted = steps_in(whole)
    assert [step for step, _ in uninterrupted] == list(range(1, STEPS + 1))
    assert_whole([ids for _, ids in uninterrupted])
    rows_of = dict(uninterrupted)
    assert steps_in(killed) == [(step, rows_of[step]) for step in expected_steps(KILLS)]


def test_A15_A16_rank_zeros_state_restores_other_ranks(tmp_path):
    script = EXAMPLES / "huggingface_ddp.py"
    torchrun = ["-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    kept, begun = [], 0
    for ranks, kill_after in ((2, 9), (3, None)):
        kill = [] if kill_after is None else ["--kill-after", kill_after]
        launch = [*torchrun, "--nproc-per-node", ranks, Path(__file__).with_name("leaving.py")]
        python(tmp_path, *launch, script, tmp_path, *kill, dies=kill_after is not None)
        until = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] if kill_after else 10**9
        steps = []
        for rank in range(ranks):
            path = tmp_path / f"rows-{rank}.jsonl"
            steps += [(line["step"], rank, line["ids"]) for line in lines_of(path)]
            path.unlink()
        kept += [ids for step, _, ids in sorted(steps) if begun < step <= until]
        begun = until
    dataset = runpy.run_path(str(script))["build"](tmp_path)
    uninterrupted = [batch["id"].tolist() for _ in range(EPOCHS) for batch in dataset]
    assert_whole(uninterrupted)
    assert kept == uninterrupted
