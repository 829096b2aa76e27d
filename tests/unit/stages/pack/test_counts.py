"""The packs of windows are planned once, and the numbers are shared through a file."""

import os

import pytest

import midepoch as me
from counted import is_kept, write_files
from midepoch._common.checks import log_once
from midepoch.dataset import plan_of
from midepoch.pipeline import surveyed
from midepoch.pipeline.pipeline import PipelineLanes
from midepoch.sources.source import EpochCut
from midepoch.stages.pack import counts as module
from midepoch.stages.pack import windows
from midepoch.stages.pack.counts import KEPT_FILES, WindowCounts


def opened(folder, key="a", **changes):
    return WindowCounts(folder, key, **({"lanes": 3, "size": 10} | changes))


def test_what_one_process_writes_others_read(tmp_path):
    mine, others = opened(tmp_path), opened(tmp_path)
    assert mine.get(1, 20) is None
    mine.put(1, 20, 7)
    mine.put(2, 100, 0)
    for counts in (mine, others, opened(tmp_path)):
        assert counts.get(1, 20) == 7
        assert counts.get(2, 100) == 0
        assert counts.get(0, 20) is None
        assert counts.get(1, 30) is None


def test_a_count_is_that_of_one_first_row_only(tmp_path):
    counts = opened(tmp_path)
    counts.put(0, 23, 7)
    assert counts.get(0, 23) == 7
    assert [counts.get(0, start) for start in (20, 22, 24, 33)] == [None] * 4
    counts.put(0, 25, 8)
    assert counts.get(0, 23) is None
    assert counts.get(0, 25) == 8


def test_a_damaged_entry_is_unknown(tmp_path):
    counts = opened(tmp_path)
    counts.put(0, 30, 5)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    for bit in range(64):
        damaged = content.copy()
        damaged[72 + bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert opened(tmp_path).get(0, 30) is None
    path.write_bytes(content[72:80])
    assert opened(tmp_path).get(0, 0) is None, "it is that of another window"
    path.write_bytes(content[:76])
    assert opened(tmp_path).get(0, 30) is None, "it is half written"


def test_a_full_disk_is_no_error(tmp_path, monkeypatch):
    counts = opened(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "pwrite", full)
    counts.put(0, 10, 4)
    counts.put(0, 20, 4)
    assert counts.get(0, 10) is None


def test_old_files_are_removed(tmp_path):
    for number in range(KEPT_FILES + 5):
        opened(tmp_path, f"{number}").put(0, 0, number)
        os.utime(tmp_path / f"{number}.counts", (number, number))
    opened(tmp_path, "last")
    left = {path.stem for path in tmp_path.iterdir()}
    assert left == {"last", *map(str, range(6, KEPT_FILES + 5))}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    write_files(tmp_path / "data")
    return tmp_path


def packs(folder, *, kept=False, window=4, lanes=3, **options):
    dataset = me.read(folder / "data", index_dir=folder / "index").shuffle(3, level="row")
    dataset = dataset.filter(is_kept) if kept else dataset
    dataset = dataset.pack(20, window=window, **options).survey()
    return dataset if lanes is None else dataset.lanes(lanes)


@pytest.fixture
def plans(monkeypatch):
    """How many windows are planned."""
    made, plan = [], windows.pack

    def counted(lengths, **options):
        made.append(len(lengths))
        return plan(lengths, **options)

    monkeypatch.setattr(windows, "pack", counted)
    return made


@pytest.fixture
def jobs(monkeypatch):
    """The jobs of few documents that are done in parallel."""
    done = []

    def run(function, some, executor=None):
        done.extend(some)
        return [(job, function(job)) for job in some]

    monkeypatch.setattr(surveyed, "IN_PARALLEL", 0)
    monkeypatch.setattr(surveyed, "JOB_DOCUMENTS", 8)
    monkeypatch.setattr(surveyed, "run_all", run)
    return done


@pytest.mark.parametrize("kept", [False, True])
def test_a_length_that_is_known_is_not_planned_again(folder, plans, kept):
    length = len(packs(folder, kept=kept))
    assert plans
    plans.clear()
    assert len(packs(folder, kept=kept)) == length
    assert not plans
    other = packs(folder, kept=kept)
    other.set_epoch(1)
    assert len(other) > 0
    assert plans


@pytest.mark.parametrize("change", [{"window": 5}, {"strategy": "first_fit"}, {"overlong": "drop"}, {"eos": 1}])
def test_other_packs_have_other_counts(folder, plans, change):
    len(packs(folder))
    plans.clear()
    changed = packs(folder, **change)
    length = len(changed)
    assert plans
    assert length == len(list(changed))


def test_wrong_counts_are_noticed(folder):
    dataset = packs(folder)
    lanes = PipelineLanes(plan_of(dataset).pipeline, EpochCut(epoch=0, lanes=3))
    of_lane = lanes.output_counts(0)
    of_lane.put(4, 9)
    with pytest.raises(me.DataChangedError, match=r"says 9. That file is damaged"):
        list(dataset)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("shared", [True, False])
def test_many_packs_are_counted_in_parallel(folder, monkeypatch, plans, jobs, kept, shared):
    expected = len(list(packs(folder, kept=kept)))
    jobs.clear()
    dataset = packs(folder, kept=kept)
    survey = plan_of(dataset).pipeline.survey
    for file in survey.folder.glob("*.counts"):
        file.unlink()
    if not shared:
        monkeypatch.setattr("midepoch.stages.pack.counts.os.open", refused)
    assert len(dataset) == expected
    assert {job.lane for job in jobs} == {0, 1, 2}
    assert len(jobs) > 3
    count_once = len(plans)
    jobs.clear()
    assert len(dataset) == expected
    if shared:
        assert not jobs
        assert len(plans) == count_once


def refused(*_):
    raise PermissionError("read-only")


def test_packs_without_a_survey_name_it_once(folder, caplog):
    log_once.cache_clear()
    with caplog.at_level("INFO", "midepoch"):
        list(packs(folder))
        assert not [line for line in caplog.messages if ".survey()" in line]
        plain = me.read(folder / "data", index_dir=folder / "index").map(dict).pack(20)
        for _ in range(2):
            list(plain)
    (line,) = [line for line in caplog.messages if ".survey()" in line]
    assert line.startswith("0.arrow+3: how many items pack yields is only known by reading the rows: call .survey()")
