"""Ray Train on a real local cluster: a worker is killed, and the run is resumed on another number of workers."""

import json
import subprocess
import sys

import midepoch as me
import ranks
from worlds import ids, write_files


def steps_of(folder, number):
    paths = folder.glob(f"rows-{number}-*.jsonl")
    steps = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return sorted(steps, key=lambda step: (step["step"], step["rank"]))


def test_a_killed_run_resumes_on_another_number_of_workers(tmp_path):
    data = write_files(tmp_path / "data", [25, 17], ["stream"])
    with (tmp_path / "output.txt").open("w") as output:  # processes of Ray may outlive the script and keep a pipe open
        command = [sys.executable, str(ranks.TESTS / "ray_steps.py"), str(tmp_path)]
        code = subprocess.run(command, env=ranks.environment(), stdout=output, stderr=output, check=False).returncode
    assert code == 0, (tmp_path / "output.txt").read_text()[-5000:]
    assert (tmp_path / "ended-0.txt").read_text() != "whole"
    assert (tmp_path / "ended-1.txt").read_text() == "whole"

    before, after = steps_of(tmp_path, 0), steps_of(tmp_path, 1)
    # Ray registers a checkpoint some time after it was reported, so the last one before the kill may be unknown to it.
    resumed = after[0]["step"] - 1
    assert 0 <= resumed < max(step["step"] for step in before) == 4
    kept = [row for step in before if step["step"] <= resumed for row in step["rows"]]
    kept += [row for step in after for row in step["rows"]]
    assert {step["rank"] for step in after} == {0, 1, 2}
    assert kept == ids(me.Loader(me.read(data).shuffle(1, window=20).lanes(6), batch_size=2))
