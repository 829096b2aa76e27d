"""Images: the example killed and started again with other workers, and a folder of a store against a local one."""

import json
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import midepoch as me
import s3
from media import picture

EXAMPLE = Path(__file__).parents[2] / "examples" / "vision.py"
CLASSES = {"cat": 9, "dog": 7}


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
    assert run.returncode == (0 if kill_after is None else -signal.SIGKILL), (folder.parent / "said.txt").read_text()


def steps(folder):
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


def test_F5_C1_a_killed_example_resumes_with_the_same_pixels(tmp_path):
    start(tmp_path / "whole", 0)
    whole = steps(tmp_path / "whole")
    assert [one["step"] for one in whole] == list(range(1, 31))
    first_epoch = [path for one in whole for path in one["paths"]][:90]
    assert len(set(first_epoch)) == 90
    start(tmp_path / "killed", 2, kill_after=6)
    start(tmp_path / "killed", 1, kill_after=15)
    start(tmp_path / "killed", 3)
    taken = [*range(1, 7), *range(5, 16), *range(13, 31)]
    assert steps(tmp_path / "killed") == [whole[step - 1] for step in taken]


def test_F5_a_folder_of_a_store_has_the_rows_of_a_local_one_and_takes_its_state(s3_port, proxy, tmp_path):
    content = {f"{label}/{n}.png": picture(9 * n, "PNG") for label, count in CLASSES.items() for n in range(count)}
    for name, image in content.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(image)
    s3.put_all(s3_port, "pictures", {f"train/{name}": image for name, image in content.items()})
    stored = me.image_folder("s3://pictures/train", storage_options=proxy.options).shuffle(seed=1)
    local = me.image_folder(tmp_path).shuffle(seed=1)
    rows = list(local)
    for row, other in zip(rows, stored, strict=True):
        assert (row["path"], row["label"]) == (other["path"], other["label"])
        assert np.array_equal(row["image"], other["image"])
    begun = iter(me.image_folder(tmp_path).shuffle(seed=1))
    got = [row["path"] for row in islice(begun, 5)]
    stored.load_state_dict(begun.state_dict())
    assert [*got, *(row["path"] for row in stored)] == [row["path"] for row in rows]
    s3.put_all(s3_port, "pictures", {"train/cat/0.png": picture(255, "PNG")})
    with pytest.raises(me.DataChangedError, match=r"train/cat/0\.png was changed"):
        list(stored)
