"""Real torchrun, real gloo, real SIGKILL: what all ranks received together is the uninterrupted run's sequence."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import torch

import midepoch as me
from counted_pipelines import ids_of_packs, pipelines
from worlds import ids, is_kept, is_late, write_documents, write_files

ROOT = Path(__file__).parents[2]
ROWS = 600


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchrun") / "data"
    folder.mkdir()
    for number, first in enumerate(range(0, ROWS, 150)):
        table = pa.table({"id": range(first, first + 150), "x": [float(row) for row in range(first, first + 150)]})
        path = str(folder / f"{number}.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    return folder


def torchrun(processes, script, *arguments):
    """Start a script on some ranks, and wait for all of them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "127.0.0.1:0", "--nproc-per-node", str(processes)]
    command += map(str, [Path(__file__).with_name("leaving.py"), script, *arguments])
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]),
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def train(data, out, processes, *arguments, dies=False):
    done = torchrun(processes, ROOT / "examples" / "train.py", "--data", data, "--out", out, *arguments)
    assert (done.returncode != 0) == dies, done.stderr
    return done.stdout.splitlines()


class Runs:
    """The legs of one run: what their steps received, as far as a checkpoint kept it."""

    def __init__(self, out):
        self.out, self.kept, self.begun = out, [], 0

    def leg_ended(self, *, killed):
        """Add the steps since the last checkpoint, from which the next session resumes, in the order of turns."""
        until = torch.load(self.out / "checkpoint.pt", weights_only=True)["step"] if killed else 10**9
        steps = []
        for path in self.out.glob("ids-*.jsonl"):
            rank = int(path.stem.split("-")[1])
            steps += [(line["step"], rank, line["ids"]) for line in map(json.loads, path.read_text().splitlines())]
            path.unlink()
        self.kept += [step for step in sorted(steps) if self.begun < step[0] <= until]
        self.begun = until

    @property
    def ids(self):
        return [row for _, _, rows in self.kept for row in rows]


@pytest.mark.parametrize("filtered", [False, True], ids=["uniform", "filtered"])
def test_a_killed_rank_and_resumes_as_three_and_as_one(data, tmp_path, filtered):
    runs = Runs(tmp_path)
    extra = ["--keep-even", "--batch-size", 4] if filtered else []
    said = train(data, tmp_path, 2, "--workers", 2, "--die-at", 9, "--log-every", 3, *extra, dies=True)
    assert said[0] == f"began at step 0{'' if filtered else ' of 42'} on 2 processes with --workers 2"
    assert [line.split(": loss ")[0] for line in said[1:]] == ["step 3", "step 6", "step 9"]
    runs.leg_ended(killed=True)
    assert runs.begun == 8
    said = train(data, tmp_path, 3, "--workers", 1, "--die-at", 13, *extra, dies=True)
    assert said[0] == f"resumed at step 8{'' if filtered else ' of 31'} on 3 processes with --workers 1"
    assert not any("came once" in line for line in said)
    runs.leg_ended(killed=True)
    assert runs.begun == 12
    said = train(data, tmp_path, 1, "--workers", 3, *extra)
    runs.leg_ended(killed=False)
    assert said[0].startswith("resumed at step 12")
    assert said[-1].endswith(f": each of its {ROWS // 2 if filtered else ROWS} rows came once")
    dataset = me.read(data).shuffle(seed=42, window=64).lanes(12)
    if filtered:
        dataset = dataset.filter(lambda row: row["id"] % 2 == 0)
    assert runs.ids == ids(dataset.batch(4 if filtered else 8))


def test_a_trainer_that_dies_while_it_saves_leaves_the_last_checkpoint_whole(data, tmp_path):
    runs = Runs(tmp_path)
    train(data, tmp_path, 1, "--die-saving-at", 6, dies=True)
    assert (tmp_path / "checkpoint.tmp").exists()
    runs.leg_ended(killed=True)
    assert runs.begun == 4
    train(data, tmp_path, 1, "--workers", 1)
    runs.leg_ended(killed=False)
    assert runs.ids == ids(me.read(data).shuffle(seed=42, window=64).lanes(12).batch(8))


def steps_of(action, processes, folder, out):
    done = torchrun(processes, Path(__file__).with_name("rank_steps.py"), action, folder, out)
    assert done.returncode == 0, done.stderr
    return [json.loads(path.read_text()) for path in sorted(out.glob("rank-*.json"))]


def test_E6_ranks_that_run_dry_wait_in_step_and_their_states_merge(tmp_path):
    folder = write_files(tmp_path / "data", [20, 0, 7, 33])
    ranks = steps_of("in step", 3, folder, tmp_path)
    assert len({len(steps) for steps in ranks}) == 1
    padded = [sum(step["padding"] for step in steps) for steps in ranks]
    assert max(padded) > 1, "no rank ran dry early: the test would prove nothing"
    assert min(padded) == 0
    dataset = me.read(folder).shuffle(1, window=20).lanes(3).filter(is_late).batch(2)
    whole = sorted(ids(dataset))
    got = []
    for step in zip(*ranks, strict=True):
        got += [row for rank in step for row in rank["ids"]]
        assert step[0]["state"] == step[1]["state"] == step[2]["state"]
        resumed = me.read(folder).shuffle(1, window=20).lanes(3).filter(is_late).batch(2)
        resumed.load_state_dict(step[0]["state"])
        resumed.set_epoch(0)
        assert sorted(got + ids(resumed)) == whole


@pytest.mark.parametrize(
    ("action", "message"),
    [("workers", r"the number of lanes is \d on rank \d and \d on rank \d"), ("seeds", "seed of stage 2, shuffle")],
)
def test_ranks_that_disagree_are_refused(tmp_path, action, message):
    folder = write_files(tmp_path / "data", [20, 0, 7, 33])
    done = torchrun(2, Path(__file__).with_name("rank_steps.py"), action, folder, tmp_path)
    assert done.returncode != 0
    assert re.search(rf"RanksDisagreeError: The ranks do not read the same.*{message}", done.stderr), done.stderr


def test_with_fixed_lanes_ranks_may_have_any_workers(tmp_path):
    folder = write_files(tmp_path / "data", [20, 0, 7, 33])
    ranks = steps_of("lanes", 2, folder, tmp_path)
    steps = [[step["ids"] for step in rank] for rank in ranks]
    assert [row for both in zip(*steps, strict=True) for one in both for row in one] == ids(
        me.read(folder).shuffle(1, window=20).lanes(4).batch(2)
    )


@pytest.mark.parametrize("pipeline", ["rows", "filtered"])
def test_distributed_checkpoint_saved_by_four_and_loaded_by_two(tmp_path, pipeline):
    folder = write_files(tmp_path / "data", [20, 0, 7, 33])
    for processes, action in ((4, "save"), (2, "load")):
        done = torchrun(processes, Path(__file__).with_name("dcp_steps.py"), action, pipeline, folder, tmp_path)
        assert done.returncode == 0, done.stderr
    got = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    dataset = me.read(folder).shuffle(1, window=20).lanes(4)
    whole = ids(dataset.filter(is_kept) if pipeline == "filtered" else dataset)
    saved = [row for step in zip(*got[2:], strict=True) for row in step]
    assert saved == whole[:20]
    assert sorted(saved + got[0] + got[1]) == sorted(whole)
    assert [row for step in zip(*got[:2], strict=False) for row in step][:8] == whole[20:28]


def test_distributed_checkpoints_of_packs_are_loaded_by_two_and_by_three_ranks(tmp_path):
    lengths = [10 + number % 17 for number in range(60)] + [number % 6 for number in range(92)]
    folder = write_documents(tmp_path / "data", lengths, block=10)
    got = []
    for leg, (processes, steps) in enumerate([(4, 3), (2, 4), (3, 1000)]):
        script = Path(__file__).with_name("dcp_counted_steps.py")
        done = torchrun(processes, script, leg, steps, folder, tmp_path)
        assert done.returncode == 0, done.stderr
        ranks = [json.loads((tmp_path / f"leg-{leg}-{rank}.json").read_text()) for rank in range(processes)]
        got += [pack for step in zip(*ranks, strict=True) for pack in step if pack]
    whole = [ids_of_packs(pack) for pack in pipelines("best_fit", folder).survey().lanes(4)]
    assert len(whole) > 3 * 4 + 4 * 2 + 3
    assert got == whole


def counted_steps(action, processes, folder, out, save_at=0):
    script = Path(__file__).with_name("counted_steps.py")
    done = torchrun(processes, script, folder, out, action, out / "surveys", save_at)
    assert done.returncode == 0, done.stderr
    return [json.loads((out / f"{action}-{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_E1_rank_0_saves_one_file_of_packs_and_other_ranks_load_it(tmp_path, before, after):
    lengths = [10 + number % 17 for number in range(60)] + [number % 6 for number in range(92)]
    folder = write_documents(tmp_path / "data", lengths, block=10)
    whole = [ids_of_packs(pack) for pack in pipelines("best_fit", folder).lanes(3)]
    save_at = next(step for step in (5, 6, 7) if (len(whole) - before * step) % after)  # so that a rank is padded
    saved = counted_steps("save", before, folder, tmp_path, save_at)
    got = [step["pack"] for steps in zip(*(rank["steps"] for rank in saved), strict=True) for step in steps]
    assert got == whole[: save_at * before]
    loaded = counted_steps("load", after, folder, tmp_path)
    left = len(whole) - len(got)
    assert {len(rank["steps"]) for rank in loaded} == {-(-left // after)}
    for steps in zip(*(rank["steps"] for rank in loaded), strict=True):
        got += [step["pack"] for step in steps if not step["padding"]]
    assert got == whole
    assert sum(step["padding"] for rank in loaded for step in rank["steps"]) == -left % after
    whole_epoch = counted_steps("whole", after, folder, tmp_path)
    assert {rank["length"] for rank in whole_epoch} == {len(rank["steps"]) for rank in whole_epoch}


def test_ranks_of_which_one_is_not_surveyed_are_refused(tmp_path):
    folder = write_documents(tmp_path / "data", [number % 6 for number in range(92)], block=10)
    script = Path(__file__).with_name("counted_steps.py")
    done = torchrun(2, script, folder, tmp_path, "half surveyed", tmp_path / "surveys", 0)
    assert done.returncode != 0
    assert re.search(r"RanksDisagreeError: .*the kind of counting is by \w+ on rank \d", done.stderr), done.stderr
