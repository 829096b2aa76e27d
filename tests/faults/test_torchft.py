"""torchft's own lighthouse and managers: groups are killed and join, and each committed step has its rows once."""

import json
import os
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

import midepoch as me
from worlds import ids, write_files

pytest.importorskip("torchft", reason="torchft is not installed: it is not among the packages of development")
STEPS = 24


def test_replica_groups_are_killed_and_join_and_no_row_is_lost_or_read_twice(tmp_path):
    from torchft.coordination import LighthouseServer

    data = write_files(tmp_path / "data", [150, 170])
    log = tmp_path / "steps.jsonl"
    log.touch()
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=1000, heartbeat_timeout_ms=1000)
    script = Path(__file__).parents[1] / "torchft_steps.py"

    def start(group):
        arguments = [str(script), str(group), str(data), str(STEPS), str(log), lighthouse.address()]
        return subprocess.Popen([sys.executable, *arguments], env=dict(os.environ, OMP_NUM_THREADS="1"))

    def committed():
        return [json.loads(line) for line in log.read_text().splitlines()]

    def wait_for(steps):
        while max([step for step, *_ in committed()], default=-1) < steps:
            assert any(process.poll() is None for process in groups)
            time.sleep(0.01)

    groups = [start(group) for group in range(3)]
    try:
        wait_for(4)
        groups[1].kill()
        wait_for(9)
        groups[0].kill()  # the one that is left waits for another
        groups.append(start(1))
        for process in groups[2:]:
            assert process.wait() == 0
    finally:
        for process in groups:
            process.kill()
            process.wait()
        lighthouse.shutdown()
    steps = {}
    for step, group, among, rows in committed():
        steps.setdefault(step, {})[group] = among, rows
    complete = {step: of for step, of in steps.items() if all(len(of) == among for among, _ in of.values())}
    assert len(complete) >= STEPS - 2  # a group may be killed after it committed and before it wrote that
    loader = me.Loader(me.read(data).shuffle(1, window=20).lanes(8), batch_size=2)
    whole = [ids([batch]) for _ in range(3) for batch in loader]
    starts = [0]  # 160 micro-batches an epoch
    for _ in range(STEPS):
        left = 160 - starts[-1] % 160
        starts.append(starts[-1] + min(12, left))
    for step, of in complete.items():
        expected = [row for batch in islice(whole, starts[step], starts[step + 1]) for row in batch]
        assert sorted(row for _, rows in of.values() for row in rows) == sorted(expected)
    assert {among for of in complete.values() for among, _ in of.values()} >= {2, 3}
