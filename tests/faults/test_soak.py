"""Some legs of the soak: random kills, stalls and resizes lose and repeat no row, and planted bugs are found (F14)."""

import json
import os
import subprocess
import sys

import pytest

from ranks import environment
from soak.audit import Delivery, audit, read_leg
from soak.plants import PLANTS
from soak.processes import MARK, marked


def soak(*options):
    """The exit code of a soak, and what it printed. It has to leave no process."""
    token = os.urandom(8).hex()
    command = [sys.executable, "-m", "soak", "--token", token, "--no-ray", *map(str, options)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert not marked(MARK, token)
    return done.returncode, done.stdout + done.stderr


def test_F14_random_kills_stalls_and_resizes_lose_and_repeat_no_row():
    code, said = soak("--seed", 2, "--legs", 6)
    assert code == 0, said
    assert said.count("lost 0, repeated 0") >= 2, said
    assert "rank killed" in said
    assert "worker killed" in said


@pytest.mark.parametrize("plant", [name for name in PLANTS if name != "none"])
def test_F14_a_planted_bug_is_found(plant):
    code, said = soak("--seed", 16055, "--legs", 2, "--run", 0, "--plant", plant)
    assert code == 1, said
    assert "'lost'" in said or "'repeated'" in said, said
    assert "make soak SEED=16055 RUN=0" in said


def test_what_came_after_the_newest_complete_checkpoint_does_not_count(tmp_path):
    for rank, steps in enumerate([2, 4]):
        lines = [json.dumps([step, [] if step == 0 else [10 * step + rank]]) for step in range(6)]
        (tmp_path / f"rows-{rank}.jsonl").write_text("\n".join(lines) + "\n[6, [9")
        for step in range(2, steps + 1, 2):
            (tmp_path / f"state-{step}-{rank}.json").write_text(json.dumps({"step": step}))
    checkpoint, delivered = read_leg(tmp_path, 3, 2)
    assert (checkpoint.step, checkpoint.states) == (2, [{"step": 2}, {"step": 2}])
    assert [value for one in delivered for value in one.values] == [10, 11, 20, 21]
    assert read_leg(tmp_path / "nothing", 0, 1) == (None, [])


@pytest.mark.parametrize(
    ("values", "order", "wrong"),
    [
        ([1, 2, 3, 4], "global", {}),
        ([1, 2, 4], None, {"lost": 1}),
        ([1, 2, 3, 3, 4], None, {"repeated": 1}),
        ([1, 2, 4, 3], "global", {"out of order": 2}),
        ([1, 2, 4, 3], "rank", {"out of order": 1}),
        ([1, 2, 4, 3], None, {}),
    ],
)
def test_the_audit_tells_what_is_wrong(values, order, wrong):
    delivered = [Delivery(leg=0, step=1 + step, rank=0, values=[value]) for step, value in enumerate(values)]
    assert audit([1, 2, 3, 4], delivered, order=order) == wrong
