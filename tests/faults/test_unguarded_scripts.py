"""A script without ``if __name__ == "__main__":`` ends with an error that says so: no process waits for another."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from midepoch._common.world import usable_cores

FUNCTIONS = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import midepoch as me


def tokenise(row):
    return {"input_ids": list(row["text"].encode()[:20])}


def processes(method):
    return ProcessPoolExecutor(2, get_context(method))
"""
WORK = {
    "survey": 'me.read("data").map(tokenise).pack(16).survey()',
    "cache": 'me.read("data").map(tokenise).cache("rows")',
    "survey on spawned processes": 'me.read("data").map(tokenise).pack(16).survey(executor=processes("spawn"))',
    "cache on a fork server": 'me.read("data").map(tokenise).cache("rows", executor=processes("forkserver"))',
    "index": 'me.read("data", executor=processes("spawn"))',
}
GUARD = "if __name__ == '__main__':"


@pytest.fixture
def folder(tmp_path):
    """A folder with files that are large enough for several jobs."""
    (tmp_path / "data").mkdir()
    letters = np.random.default_rng(1).integers(97, 123, (200, 20_000), dtype=np.uint8)
    table = pa.table({"text": [bytes(line).decode() for line in letters]})
    for number in range(2):
        pq.write_table(table, tmp_path / "data" / f"{number}.parquet", row_group_size=20)
    return tmp_path


def run(folder, code):
    (folder / "script.py").write_text(FUNCTIONS + code)
    return subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.skipif(usable_cores() < 2, reason="no process is started on one core")
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_an_unguarded_script_ends_with_an_error_that_names_the_guard(work, folder):
    ended = run(folder, work)
    assert ended.returncode == 1
    assert GUARD in ended.stderr
    assert "is called while this process is still being started" in ended.stderr
    if "executor" not in work:
        assert "RuntimeError: The processes for this work ended while they started." in ended.stderr


@pytest.mark.parametrize("work", [WORK["survey"], WORK["cache on a fork server"]])
def test_the_same_script_with_a_guard_does_its_work(work, folder):
    ended = run(folder, f'if __name__ == "__main__":\n    {work}\n')
    assert ended.returncode == 0, ended.stderr
    assert "one process only" not in ended.stderr


@pytest.mark.parametrize("work", ["survey", "cache"])
def test_what_is_made_already_is_found_while_a_process_is_started(work, folder):
    """So a module may open what exists at its top level, which workers import."""
    for guard in ('if __name__ == "__main__":', "if True:"):
        code = f"""
{guard}
    rows = {WORK[work]}
if __name__ == "__main__":
    with processes("spawn") as pool:
        assert pool.submit(len, [1, 2]).result() == 2
"""
        ended = run(folder, code)
        assert ended.returncode == 0, ended.stderr
