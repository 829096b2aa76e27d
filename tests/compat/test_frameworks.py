"""The examples for accelerate, Lightning and transformers: killed and started again, they go on with the very rows."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMEWORKS = ["accelerate", "lightning", "transformers"]
ROWS, EPOCHS, STEPS_AN_EPOCH, SAVE_EVERY = 100, 2, 14, 7
"""Two workers read a lane of 50 rows each, seven batches of at most 8 an epoch."""

CHAIN = [9, 14, 24, None]
"""Killed after so many steps: between two checkpoints, at one that is an epoch's last step, in the second epoch."""

AT_THE_END_OF_EPOCHS = """
import sys
from pathlib import Path
import lightning, lightning_resume as example
from lightning.pytorch.callbacks import ModelCheckpoint

folder = Path(sys.argv[1])
example.write(folder / "data")
for epochs in (1, example.EPOCHS):
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=epochs, callbacks=[ModelCheckpoint(folder, save_last=True)], logger=False
    )
    trainer.fit(example.Model(folder), datamodule=example.Data(folder), ckpt_path="last")
"""


def start(folder, *command):
    """Start Python with one thread a process, and what it says in a file: killed, it leaves workers with its pipes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(EXAMPLES)}
    with (folder / "said.txt").open("a") as said:
        return subprocess.Popen([sys.executable, *map(str, command)], stdout=said, stderr=said, env=environment)


def finish(process, folder, *, killed=False):
    expected = -signal.SIGKILL if killed else 0
    assert process.wait(timeout=200) == expected, (folder / "said.txt").read_text()[-5000:]


def steps_in(folder):
    """Which rows each step received, in the order in which the steps were taken."""
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    return [(line["step"], line["ids"]) for line in lines]


def assert_whole(steps):
    """Every step was taken once, and every epoch has every row once, in an order of its own."""
    assert [step for step, _ in steps] == list(range(1, EPOCHS * STEPS_AN_EPOCH + 1))
    epochs = [
        [row for _, ids in steps[first : first + STEPS_AN_EPOCH] for row in ids]
        for first in range(0, len(steps), STEPS_AN_EPOCH)
    ]
    for rows in epochs:
        assert Counter(rows) == Counter(range(ROWS))
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_killed_example_goes_on_with_the_same_rows(tmp_path, framework):
    example = EXAMPLES / f"{framework}_resume.py"
    folders = [tmp_path / "uninterrupted", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
    uninterrupted = start(folders[0], example, folders[0])

    taken = []
    for number, kill_after in enumerate(CHAIN):
        arguments = [] if kill_after is None else ["--kill-after", kill_after]
        finish(start(folders[1], example, folders[1], *arguments), folders[1], killed=kill_after is not None)
        saved = CHAIN[number - 1] // SAVE_EVERY * SAVE_EVERY if number else 0
        taken += range(saved + 1, (kill_after or EPOCHS * STEPS_AN_EPOCH) + 1)
    finish(uninterrupted, folders[0])

    whole, steps = steps_in(folders[0]), steps_in(folders[1])
    assert_whole(whole)
    rows_of = dict(whole)
    assert steps == [(step, rows_of[step]) for step in taken]


def test_lightning_goes_on_from_a_checkpoint_at_the_end_of_an_epoch(tmp_path):
    finish(start(tmp_path, "-c", AT_THE_END_OF_EPOCHS, tmp_path), tmp_path)
    assert_whole(steps_in(tmp_path))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_finished_example_does_nothing_when_it_is_started_again(tmp_path, framework):
    example = EXAMPLES / f"{framework}_resume.py"
    for _ in range(2):
        finish(start(tmp_path, example, tmp_path), tmp_path)
    assert_whole(steps_in(tmp_path))
