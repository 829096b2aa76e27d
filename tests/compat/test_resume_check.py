"""``check_resume``: correct loaders pass, and each planted bug is found and named."""

import functools
import multiprocessing
import os
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch

import judged
from midepoch.resume_check import rows_of
from midepoch.testing import check_resume


@pytest.mark.parametrize("kill", [False, True])
def test_an_exact_loader_passes_with_and_without_a_key(kill):
    for key in ("id", None):
        report = check_resume(judged.exact, key=key, kill=kill)
        assert report.good, report
        assert [one.verdict for one in report.resumes] == ["exact"] * 4
        assert (report.rows, report.whole) == (60 if key else 15, True)
    assert [one.step for one in report.resumes] == [1, 7, 11, 14]
    assert "second resume" in report.resumes[2].on


def test_only_the_process_that_saved_the_states_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTES", str(tmp_path))
    notes = []
    for kill in (False, True):
        assert check_resume(judged.leaves_a_note, key="id", kill=kill).good
        notes.append(len(list(tmp_path.iterdir())))
    assert notes == [6, 6 + 5]


@pytest.mark.parametrize(
    ("make_loader", "verdict", "counts"),
    [
        (judged.LosesPrefetched, "loses 8 from right after the stop, which were read ahead", (8, 0, 0, 0)),
        (judged.RepeatsABatch, "repeats 4 before the stop", (0, 4, 0, 0)),
        (judged.StartsOver, "starts over from the beginning; repeats 28 before the stop", (0, 28, 0, 0)),
        (judged.WrongOrder, "delivers out of order 28", (0, 0, 0, 28)),
        (judged.OtherRows, "changes 32", (0, 0, 32, 0)),
    ],
)
def test_a_planted_bug_is_found_and_named(make_loader, verdict, counts):
    report = check_resume(make_loader, key="id")
    middle = report.resumes[1]
    assert not report.good
    assert middle.verdict == verdict
    assert (middle.lost, middle.repeated, middle.changed, middle.out_of_order) == counts
    assert middle.example.startswith(("loses id=", "repeats id=", "changes id=", "delivers out of order id="))


def test_a_bug_is_found_without_a_key_too_and_names_the_batch():
    report = check_resume(judged.LosesPrefetched)
    assert report.resumes[1].lost == 2
    assert "{'id': [" in report.resumes[1].example


def test_a_loader_that_is_exact_only_once_is_found():
    report = check_resume(judged.SecondTime, key="id")
    assert [one.good for one in report.resumes] == [True, True, False, True]
    assert "starts over" in report.resumes[2].verdict or "repeats" in report.resumes[2].verdict


def test_workers_are_started_as_in_the_process_that_asks():
    if multiprocessing.get_start_method() == "fork":
        assert check_resume(judged.StartMethod, key="id").good


@pytest.mark.parametrize("make_loader", [judged.Tuples, judged.ListsOfRows])
def test_batches_of_other_shapes(make_loader):
    assert check_resume(make_loader, key="id" if make_loader is judged.ListsOfRows else 1).good


def test_of_an_endless_loader_the_first_steps_are_judged():
    assert check_resume(judged.Endless, key="id", steps=20).good
    report = check_resume(judged.EndlessLoss, key="id", steps=20)
    assert not report.whole
    assert [one.lost for one in report.resumes] == [8, 8, 8]


def test_ranks_resume_on_other_numbers_of_ranks():
    report = check_resume(judged.ranks, key="id", kill=True)
    assert {one.on for one in report.resumes} >= {"2 ranks", "1 rank", "3 ranks"}
    assert all(one.good for one in report.resumes if one.on == "2 ranks")
    report = check_resume(judged.stuck_when_resized, key="id")
    assert [one.good for one in report.resumes[-2:]] == [False, False]


def test_our_loader_is_exact_and_a_state_that_counts_a_prefetched_batch_is_found():
    report = check_resume(judged.ours, key="id", kill=True)
    assert report.good, report
    report = check_resume(judged.ours_ahead, key="id")
    assert report.resumes[1].verdict == "loses 4 from right after the stop, which were read ahead"


def test_a_stateful_dataloader_loses_what_a_dataset_reads_ahead():
    report = check_resume(judged.stateful_buffered, key="id")
    assert report.resumes[1].lost == 6
    assert "which were read ahead" in report.resumes[1].verdict


def test_a_stateful_dataloader_with_a_dataset_without_a_state_fails_at_the_second_resume():
    report = check_resume(judged.stateful_naive, key="id", kill=True)
    assert [one.good for one in report.resumes] == [True, True, False, True]


def test_to_refuse_other_workers_is_no_fault_and_to_refuse_the_same_is():
    report = check_resume(judged.other_workers, key="id")
    assert report.good
    assert [one.verdict for one in report.resumes[-2:]] == ["refused: RuntimeError: another number of workers"] * 2
    assert not check_resume(judged.Refuses, key="id").good


def test_a_resume_that_hangs_is_reported():
    report = check_resume(judged.HangsAfterResume, key="id", timeout=3)
    assert report.resumes[0].verdict.startswith("The loader hangs: no batch in 3 s")
    assert not report.good


@pytest.mark.parametrize(
    ("make_loader", "key", "message"),
    [
        (judged.no_state, None, "returned list, which has no state_dict and no load_state_dict. Return a loader"),
        (judged.Nothing, None, "The loader yields nothing"),
        (judged.Twins, "id", "uninterrupted run are the same: id=1. Pass a key that is unique"),
        (judged.Twins, None, "uninterrupted run are the same: {"),
        (judged.Lock, "id", "The state cannot be pickled"),
        (judged.Unsteady, "id", "Seed the shuffle"),
        (judged.Broken, "id", "The loader failed: OSError: the disk is gone"),
        (judged.exact, "name", "A batch has no column 'name'"),
        (judged.path_needed, None, "missing 1 required positional argument: 'path'"),
        (lambda: judged.Exact(), None, "define it with def in a module"),
        ("judged:exact", None, "A new process cannot call 'judged:exact'"),
        (functools.partial(os._exit, 3), None, "ended with exit code 3"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_a_remedy(make_loader, key, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        check_resume(make_loader, key=key)


COLUMNS = {"id": [1, 2], "x": [[1.0, 2.0], [3.0, 4.0]]}


def keys(batch, key):
    return [name for name, _ in rows_of(batch, key)]


def test_rows_of_batches_of_all_kinds_have_the_keys():
    tensors = {"id": torch.tensor([1, 2]), "x": torch.ones(2, 3, dtype=torch.bfloat16), "y": ["a", None]}
    for batch in (COLUMNS, tensors, pa.record_batch(COLUMNS), {"id": np.array([1, 2])}):
        assert keys(batch, "id") == ["id=1", "id=2"]
    assert keys({"id": 5, "x": "one row"}, "id") == ["id=5"]
    assert keys((torch.zeros(2, 2), torch.tensor([7, 8])), "1") == ["1=7", "1=8"]


def test_a_batch_without_a_key_is_known_by_its_whole_content():
    many = np.arange(10_000)
    other = many.copy()
    other[5_000] = 0
    assert rows_of({"x": many}, None) != rows_of({"x": other}, None)
    assert rows_of({"x": many}, None) == rows_of({"x": torch.from_numpy(many)}, None)


def test_a_script_without_a_guard_is_told(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import judged\nfrom midepoch.testing import check_resume\ncheck_resume(judged.exact)\n")
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode != 0
    assert "below `if __name__ == '__main__':`" in ended.stderr


def test_the_picture_shows_each_resume(tmp_path):
    pytest.importorskip("matplotlib")
    report = check_resume(judged.RepeatsABatch, key="id")
    assert set(report.resumes[1].picture) == {1, 2, 3}
    report.save_png(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
