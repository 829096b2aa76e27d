"""What type checkers say of code that uses midepoch: names that do not exist are errors, and torch takes a Dataset."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = """
from torch.utils.data import DataLoader, IterableDataset

import midepoch as me

dataset = me.read("data/*.parquet").shuffle(seed=1).batch(4)
loader = DataLoader(dataset, batch_size=None)
items: IterableDataset[object] = dataset
own = me.Loader(dataset, num_workers=2)
me.raed("data")  # line 10
dataset.shufle(seed=1)  # line 11
me.read(3.5)  # line 12
"""


def test_type_checkers_see_wrong_names_and_torch_takes_a_dataset(tmp_path):
    (tmp_path / "code.py").write_text(CODE)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--cache-dir={ROOT / '.mypy_cache'}",
        "code.py",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT / "src")}, capture_output=True, text=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("code.py")]
    assert [int(line.split(":")[1]) for line in lines if " error: " in line] == [10, 11, 12], done.stdout + done.stderr
