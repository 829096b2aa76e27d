"""Real torchrun, real gloo, real SIGKILL: what all ranks received together is the uninterrupted run's sequence.

Ranks that are neither killed nor launched again are forked by ``ranks.py`` rather than by torchrun.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import torch

import midepoch as me
import ranks
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
    return subprocess.run(command, env=ranks.environment(), capture_output=True, text=True, check=False)


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


def written(out, name, count):
    """What each rank wrote."""
    return [json.loads((out / f"{name}-{rank}.json").read_text()) for rank in range(count)]


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", [20, 0, 7, 33])


@pytest.fixture
def documents(tmp_path):
    lengths = [10 + number % 17 for number in range(60)] + [number % 6 for number in range(92)]
    return write_documents(tmp_path / "documents", lengths, block=10)


def test_E6_ranks_that_run_dry_wait_in_step_and_their_states_merge(folder, tmp_path):
    ranks.run("rank_steps.in_step_or_not", [(3, "in step", folder, tmp_path), (2, "lanes", folder, tmp_path)], tmp_path)
    of_ranks = written(tmp_path, "in step", 3)
    assert len({len(steps) for steps in of_ranks}) == 1
    padded = [sum(step["padding"] for step in steps) for steps in of_ranks]
    assert max(padded) > 1, "no rank ran dry early: the test would prove nothing"
    assert min(padded) == 0
    dataset = me.read(folder).shuffle(1, window=20).lanes(3).filter(is_late).batch(2)
    whole = sorted(ids(dataset))
    got = []
    for step in zip(*of_ranks, strict=True):
        got += [row for rank in step for row in rank["ids"]]
        assert step[0]["state"] == step[1]["state"] == step[2]["state"]
        resumed = me.read(folder).shuffle(1, window=20).lanes(3).filter(is_late).batch(2)
        resumed.load_state_dict(step[0]["state"])
        resumed.set_epoch(0)
        assert sorted(got + ids(resumed)) == whole
    # With fixed lanes, ranks may have any numbers of workers.
    steps = [[step["ids"] for step in rank] for rank in written(tmp_path, "lanes", 2)]
    expected = ids(me.read(folder).shuffle(1, window=20).lanes(4).batch(2))
    assert [row for both in zip(*steps, strict=True) for one in both for row in one] == expected


def test_ranks_that_disagree_are_refused(folder, documents, tmp_path):
    refused = {
        "workers": r"the number of lanes is \d on rank \d and \d on rank \d",
        "seeds": "seed of stage 2, shuffle",
    }
    legs = [(2, action, folder, tmp_path) for action in refused]
    codes, said = ranks.start("rank_steps.in_step_or_not", legs, tmp_path)
    assert all(map(any, codes))
    half, more = ranks.start("rank_steps.counted", [(2, "half surveyed", documents, tmp_path)], tmp_path)
    assert any(half[0])
    for message in (*refused.values(), r"the kind of counting is by \w+ on rank \d"):
        assert re.search(rf"RanksDisagreeError: (The ranks do not read the same)?.*{message}", said + more), said + more


@pytest.mark.parametrize("pipeline", ["rows", "filtered"])
def test_distributed_checkpoint_saved_by_four_and_loaded_by_two(folder, tmp_path, pipeline):
    legs = [(4, "save", pipeline, folder, tmp_path), (2, "load", pipeline, folder, tmp_path)]
    ranks.run("rank_steps.checkpointed", legs, tmp_path)
    dataset = me.read(folder).shuffle(1, window=20).lanes(4)
    whole = ids(dataset.filter(is_kept) if pipeline == "filtered" else dataset)
    saved = [row for step in zip(*written(tmp_path, "save", 4), strict=True) for row in step]
    loaded = written(tmp_path, "load", 2)
    assert saved == whole[:20]
    assert sorted(saved + loaded[0] + loaded[1]) == sorted(whole)
    assert [row for step in zip(*loaded, strict=False) for row in step][:8] == whole[20:28]


def test_distributed_checkpoints_of_packs_are_loaded_by_two_and_by_three_ranks(documents, tmp_path):
    legs = [(4, 3), (2, 4), (3, 1000)]
    arguments = [(count, leg, steps, documents, tmp_path) for leg, (count, steps) in enumerate(legs)]
    ranks.run("rank_steps.checkpointed_packs", arguments, tmp_path)
    got = []
    for leg, (count, _) in enumerate(legs):
        got += [pack for step in zip(*written(tmp_path, f"leg-{leg}", count), strict=True) for pack in step if pack]
    whole = [ids_of_packs(pack) for pack in pipelines("best_fit", documents).survey().lanes(4)]
    assert len(whole) > 3 * 4 + 4 * 2 + 3
    assert got == whole


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_E1_rank_0_saves_one_file_of_packs_and_other_ranks_load_it(documents, tmp_path, before, after):
    whole = [ids_of_packs(pack) for pack in pipelines("best_fit", documents).lanes(3)]
    save_at = next(step for step in (5, 6, 7) if (len(whole) - before * step) % after)  # so that a rank is padded
    legs = [(before, "save", documents, tmp_path, save_at)]
    legs += [(after, action, documents, tmp_path) for action in ("load", "whole")]
    ranks.run("rank_steps.counted", legs, tmp_path)
    saved, loaded, whole_epoch = (
        written(tmp_path, name, count) for name, count in (("save", before), ("load", after), ("whole", after))
    )
    got = [step["pack"] for steps in zip(*(rank["steps"] for rank in saved), strict=True) for step in steps]
    assert got == whole[: save_at * before]
    left = len(whole) - len(got)
    assert {len(rank["steps"]) for rank in loaded} == {-(-left // after)}
    for steps in zip(*(rank["steps"] for rank in loaded), strict=True):
        got += [step["pack"] for step in steps if not step["padding"]]
    assert got == whole
    assert sum(step["padding"] for rank in loaded for step in rank["steps"]) == -left % after
    assert {rank["length"] for rank in whole_epoch} == {len(rank["steps"]) for rank in whole_epoch}


def test_tensor_parallel_peers_of_a_mesh_read_the_same_and_data_parallel_ranks_do_not(folder, tmp_path):
    ranks.run("rank_steps.mesh", [(4, folder, tmp_path)], tmp_path)
    rows = {(one["dp"], one["tp"]): one["rows"] for one in written(tmp_path, "mesh", 4)}
    assert rows[0, 0] == rows[0, 1]
    assert rows[1, 0] == rows[1, 1]
    assert sorted(rows[0, 0] + rows[1, 0]) == list(range(60))
