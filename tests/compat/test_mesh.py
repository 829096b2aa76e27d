"""A real DeviceMesh over gloo: tensor-parallel peers read the same rows, data-parallel ranks different ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

from worlds import write_files

ROOT = Path(__file__).parents[2]


def test_peers_read_the_same_and_data_parallel_ranks_do_not(tmp_path):
    data = write_files(tmp_path / "data", [30, 30])
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": paths}
    command = [sys.executable, str(ROOT / "tests" / "mesh_steps.py"), str(data), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(4)]
    rows = {(one["dp"], one["tp"]): one["rows"] for one in found}
    assert rows[0, 0] == rows[0, 1]
    assert rows[1, 0] == rows[1, 1]
    assert sorted(rows[0, 0] + rows[1, 0]) == list(range(60))
