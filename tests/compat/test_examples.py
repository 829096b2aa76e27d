"""The examples: killed and started again, also with other workers, each goes on with the very rows of a whole run."""

import json
import signal
from dataclasses import dataclass

import pytest

import ranks


@dataclass(frozen=True)
class Example:
    """What a script trains on, and the starts of a run of it: the step after which each is killed, and its workers."""

    rows: int
    """In each epoch."""
    steps: int
    save_every: int
    starts: list[int | None]
    """Before the first checkpoint, between two, at the end of an epoch, in a later epoch; None runs to the end."""
    preload: str
    workers: list[int] | None = None
    """Of the whole run, and of each start."""
    log: str = "rows.jsonl"
    names: str = "ids"
    """What the log calls the rows of a step."""


def of_framework(name):
    """Two workers read a lane of 50 rows each: seven batches of at most 8 rows in an epoch."""
    return Example(100, 28, 7, [4, 9, 14, 24, None, None], name)


HUGGING_FACE = "datasets,midepoch.loader,midepoch.integrations.huggingface,torch._dynamo"
STARTS = [3, 12, 22, 36, None]
EXAMPLES = {
    "accelerate_resume": of_framework("accelerate"),
    "lightning_resume": of_framework("lightning"),
    "transformers_resume": of_framework("transformers"),
    "huggingface_loop": Example(96, 36, 4, STARTS, HUGGING_FACE),
    "huggingface_stateful": Example(96, 36, 4, STARTS, HUGGING_FACE, [0, 2, 2, 4, 1, 0]),
    "text_to_tokens": Example(380, 40, 4, [6, 27, None], "tokenizers", [0, 2, 1, 0], "steps.jsonl"),
    "multimodal": Example(94, 30, 4, [6, 15, None], "", [0, 2, 3, 1], "steps.jsonl"),  # two of 96 are broken
    "vision": Example(90, 30, 4, [6, 15, None], "", [0, 2, 1, 3], "steps.jsonl", "paths"),
}


def steps_of_starts(example):
    """The steps that all starts take, each from the last checkpoint of the one before."""
    taken, reached = [], 0
    for kill_after in example.starts:
        end = kill_after or example.steps
        taken += range(reached // example.save_every * example.save_every + 1, end + 1)
        reached = end
    return taken


@pytest.mark.parametrize("name", EXAMPLES)
def test_A14_A16_C1_C4_C5_F5_a_killed_example_resumes_with_the_same_rows(tmp_path, monkeypatch, name):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    example, legs = EXAMPLES[name], []
    for number, kill_after in enumerate([None, *example.starts]):
        flags = [] if kill_after is None else ["--kill-after", str(kill_after)]
        flags += [] if example.workers is None else ["--workers", str(example.workers[number])]
        legs.append((1, name, tmp_path / ("killed" if number else "whole"), *flags))
    codes, said = ranks.start("rank_steps.example", legs, tmp_path, preload=example.preload)
    assert codes == [[-signal.SIGKILL if kill_after else 0] for kill_after in [None, *example.starts]], said[-5000:]
    whole, killed = (
        [json.loads(line) for line in (tmp_path / run / example.log).read_text().splitlines()]
        for run in ("whole", "killed")
    )
    assert [line["step"] for line in whole] == list(range(1, example.steps + 1))
    rows, count = [row for line in whole for row in line[example.names]], example.rows
    epochs = [rows[first : first + count] for first in range(0, len(rows) - count + 1, count)]
    assert epochs
    assert all(set(epoch) == set(epochs[0]) and len(set(epoch)) == count for epoch in epochs)
    assert len({str(epoch) for epoch in epochs}) == len(epochs), "each epoch has an order of its own"
    assert killed == [whole[step - 1] for step in steps_of_starts(example)]
    if name == "multimodal":
        assert "row 30 of chats.jsonl" in said
        assert "row 61 of chats.jsonl" in said
