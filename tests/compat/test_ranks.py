"""Ranks of real process groups: what all of them received together is the uninterrupted run's sequence.

They are forked by ``ranks.py``, which takes a fraction of the time. The demo and the README start torchrun itself.
"""

import json
import re
import runpy
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest

import midepoch as me
import ranks
from counted_pipelines import ids_of_packs, pipelines
from worlds import ids, is_kept, is_late, write_documents, write_files

ROWS = 600
EXAMPLES = Path(__file__).parents[2] / "examples"
HUGGING_FACE = "datasets,midepoch.loader,midepoch.integrations.huggingface,torch._dynamo"


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


def kept_rows(out, pattern="ids-{}.jsonl"):
    """The first step of each session, and the rows of all in the order of turns, as far as a checkpoint kept them.

    In the log of each rank, a session begins after the step of the last checkpoint of the one before.
    """
    begins, sessions = [], defaultdict(list)
    for rank in range(len(list(out.glob(pattern.format("*"))))):
        reached = 10**9
        for line in map(json.loads, (out / pattern.format(rank)).read_text().splitlines()):
            if line["step"] <= reached:
                begins += [line["step"]] if rank == 0 else []
                begin = line["step"]
            reached = line["step"]
            sessions[begin].append((line["step"], rank, line["ids"]))
    ends = dict(zip(begins, [*begins[1:], 10**9], strict=True))
    kept = [line for begin in begins for line in sorted(sessions[begin]) if line[0] < ends[begin]]
    return begins, [row for _, _, rows in kept for row in rows]


def test_a_killed_rank_resumes_as_three_and_as_one(data, tmp_path):
    """Of a uniform and of a filtered run, and of one that dies while it saves."""
    legs, outs = [], {}
    for name, extra in {"uniform": [], "filtered": ["--keep-even", "--batch-size", 4]}.items():
        outs[name] = tmp_path / name
        own = ["--data", data, "--out", outs[name], *extra]
        legs += [
            (2, "train", *own, "--workers", 2, "--die-at", 9, "--log-every", 3),
            (3, "train", *own, "--workers", 1, "--die-at", 13),
            (1, "train", *own, "--workers", 3),
        ]
    outs["saving"] = tmp_path / "saving"
    own = ["--data", data, "--out", outs["saving"]]
    legs += [(1, "train", *own, "--die-saving-at", 6), (1, "train", *own, "--workers", 1)]
    for out in outs.values():
        out.mkdir()
    codes, said = ranks.start("rank_steps.launched", [[count, *map(str, more)] for count, *more in legs], tmp_path)
    assert [any(of_ranks) for of_ranks in codes] == [True, True, False] * 2 + [True, False], said[-5000:]
    for line in (
        "began at step 0 of 42 on 2 processes with --workers 2",
        "resumed at step 8 of 31 on 3 processes with --workers 1",
        "began at step 0 on 2 processes with --workers 2",
        "resumed at step 8 on 3 processes with --workers 1",
    ):
        assert f"{line}\n" in said
    assert said.count("resumed at step 12") == 2
    assert re.findall(r"each of its (\d+) rows came once", said) == ["600", "300", "600"]
    assert re.findall(r"step (\d+): loss", said)[:3] == ["3", "6", "9"]
    dataset = me.read(data).shuffle(seed=42, window=64).lanes(12)
    assert kept_rows(outs["uniform"]) == ([1, 9, 13], ids(dataset.batch(8)))
    assert kept_rows(outs["filtered"]) == ([1, 9, 13], ids(dataset.filter(is_even).batch(4)))
    assert kept_rows(outs["saving"]) == ([1, 5], ids(dataset.batch(8)))


def is_even(row):
    return row["id"] % 2 == 0


def test_A15_A16_the_state_of_rank_0_of_a_hugging_face_dataset_restores_other_ranks(tmp_path):
    write, build = (runpy.run_path(str(EXAMPLES / "huggingface_ddp.py"))[name] for name in ("write", "build"))
    write(tmp_path / "data")
    legs = [(2, "huggingface_ddp", tmp_path, "--kill-after", "9"), (3, "huggingface_ddp", tmp_path)]
    codes, said = ranks.start("rank_steps.launched", legs, tmp_path, preload=HUGGING_FACE)
    assert [any(of_ranks) for of_ranks in codes] == [True, False], said[-5000:]
    dataset = build(tmp_path)
    whole = [row for _ in range(3) for batch in dataset for row in batch["id"].tolist()]
    assert kept_rows(tmp_path, "rows-{}.jsonl") == ([1, 9], whole)


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
