"""The README's blocks run one after the other in one folder, as a reader would run them, and print what they show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INSTALLS = ("pip ", "make ")
SHOWN = re.compile(r"^ *print\(.*\n *# (.*)$", re.MULTILINE)
"""A block shows what it prints in a comment on the next line."""
START = "import multiprocessing\n\nmultiprocessing.set_start_method({!r})\n"
"""A module that Python imports before every script: the start method is what a newer Python would have."""


def blocks():
    return BLOCK.findall((ROOT / "README.md").read_text())


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_all_blocks_run_in_one_folder_and_print_what_they_show(tmp_path, method):
    folder, customize = tmp_path / "folder", tmp_path / "customize"
    folder.mkdir()
    customize.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")  # the reader is in a clone
    (customize / "sitecustomize.py").write_text(START.format(method))
    paths = [str(customize), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HF_HOME": str(tmp_path / "huggingface"),
        "HF_DATASETS_CACHE": str(tmp_path / "huggingface"),
    }
    printed = {}
    for number, (kind, code) in enumerate(blocks()):
        if code.startswith(INSTALLS):
            continue
        script = folder / f"block-{number}.{'py' if kind == 'python' else 'sh'}"
        script.write_text(code)
        command = [sys.executable if kind == "python" else "bash", script.name]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        printed[number] = done.stdout
        if kind == "python":
            assert done.stderr == ""
            shown = SHOWN.findall(code)
            assert code.count("print(") == len(shown) > 0
            assert done.stdout.splitlines() == shown
    assert len(printed) == 2
    run = next(text for text in printed.values() if "resumed at step" in text)
    assert re.search(r"ended after step \d+: each of its 1,000 rows came once", run)
