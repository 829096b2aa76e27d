"""The multi-modal example: killed and started again with other workers, every step has the same tokens and pixels."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "multimodal.py"


def start(folder, workers, kill_after=None):
    kill = [] if kill_after is None else ["--kill-after", str(kill_after)]
    with (folder.parent / "said.txt").open("a") as said:  # workers that a kill leaves behind would hold a pipe
        run = subprocess.run(
            [sys.executable, EXAMPLE, folder, "--workers", str(workers), *kill],
            stdout=said,
            stderr=said,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder.parent)},
            check=False,
        )
    output = (folder.parent / "said.txt").read_text()
    assert run.returncode == (0 if kill_after is None else -signal.SIGKILL), output[-5000:]
    return output


def steps(folder):
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


def test_C1_C4_C5_a_killed_example_resumes_with_the_same_pixels(tmp_path):
    output = start(tmp_path / "whole", 0)
    assert "row 30 of chats.jsonl" in output
    assert "row 61 of chats.jsonl" in output
    whole = steps(tmp_path / "whole")
    assert [one["step"] for one in whole] == list(range(1, 31))
    first_epoch = [number for one in whole for number in one["ids"]][:94]
    assert sorted(first_epoch) == [number for number in range(96) if number not in (30, 61)]
    start(tmp_path / "killed", 2, kill_after=6)
    start(tmp_path / "killed", 3, kill_after=15)
    start(tmp_path / "killed", 1)
    taken = [*range(1, 7), *range(5, 16), *range(13, 31)]
    assert steps(tmp_path / "killed") == [whole[step - 1] for step in taken]
