"""Packs of lists in local Arrow files find the lengths of the rows by themselves."""

import errno
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import midepoch as me
from counted import is_kept, write_files
from files import write
from midepoch.counting import survey as module
from midepoch.counting.survey import SurveyPass
from midepoch.dataset import plan_of
from surveys import without_survey

STRATEGIES = ["best_fit", "first_fit", "balanced", "concat"]


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    write_files(tmp_path / "data")
    return tmp_path / "data"


def packs(data, strategy="best_fit", **options):
    window = {} if strategy == "concat" else {"window": 7}
    return me.read(data, **options).shuffle(3, level="row").lanes(3).pack(20, strategy=strategy, **window)


def tokens(items):
    return [item["input_ids"].tolist() for item in items]


def surveys_in(folder):
    return [path for path in Path(folder).glob("*.survey") if path.is_dir()]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_E1_they_are_counted_and_are_the_same_packs(data, strategy):
    dataset = packs(data, strategy)
    assert not without_survey(dataset).counted
    assert dataset.counted
    assert dataset.why_not_counted() is None
    expected = tokens(without_survey(dataset))
    assert tokens(dataset) == expected
    assert len(packs(data, strategy)) == len(expected)


def test_nothing_is_surveyed_before_items_are_counted(data, tmp_path):
    dataset = packs(data, index_dir=tmp_path / "index")
    mixture = me.mix([me.read(data, index_dir=tmp_path / "index").pack(20)])
    assert "found out when it is first asked for" in repr(dataset.batch(2))
    assert "found out when it is first asked for" in repr(mixture)
    assert not surveys_in(tmp_path / "index")
    assert dataset.counted
    assert "the number of items is known" in repr(dataset)
    assert len(surveys_in(tmp_path / "index")) == 1


def test_the_lengths_are_found_once(data, tmp_path, monkeypatch):
    index = {"index_dir": tmp_path / "index"}
    expected, folders = len(packs(data, **index)), surveys_in(tmp_path / "index")
    monkeypatch.setattr(SurveyPass, "survey_unit", None)
    assert len(packs(data, **index)) == expected
    assert len(packs(data, **index).survey()) == expected
    assert surveys_in(tmp_path / "index") == folders


def test_only_offsets_are_read(data, monkeypatch):
    monkeypatch.setattr(SurveyPass, "flow", None)
    assert packs(data).counted


@pytest.mark.parametrize(
    "build",
    [
        lambda data: me.read(data, filters=pc.field("id") > 4),
        lambda data: me.read(data).filter(is_kept),
        lambda data: me.read(data).map(dict),
        lambda data: me.read(data).map(dict, batched=True),
    ],
)
def test_other_packs_name_the_survey(data, build):
    dataset = build(data).pack(20)
    assert plan_of(dataset).pipeline.own_lengths is None
    assert not dataset.counted


@pytest.mark.parametrize(("kind", "options"), [("parquet", {}), ("stream", {"compression": "lz4"}), ("file", {})])
def test_only_uncompressed_arrow_is_surveyed_unasked(tmp_path, kind, options):
    write(tmp_path / "a", pa.record_batch({"input_ids": [[1, 2], [3]]}), kind, **options)
    assert me.read(tmp_path / "a").pack(20).counted == (kind == "file")


def failing(monkeypatch, error):
    calls = []

    def fail(self, *arguments):
        calls.append(self)
        raise error

    monkeypatch.setattr(SurveyPass, "_make", fail)
    return calls


ERRORS = [OSError(errno.EROFS, "Read-only file system"), OSError(errno.ENOSPC, "The disk is full"), ValueError("odd")]


@pytest.mark.parametrize("error", ERRORS)
def test_if_they_cannot_be_kept_packs_go_on_uncounted_and_the_reason_is_logged_once(data, monkeypatch, caplog, error):
    expected = tokens(without_survey(packs(data)))
    calls = failing(monkeypatch, error)
    dataset = packs(data)
    assert not dataset.counted
    assert tokens(dataset) == expected
    assert "call .survey()" in dataset.why_not_counted()
    copied = pickle.loads(pickle.dumps(dataset.batch(2)))
    assert list(copied)
    assert not copied.counted
    (line,) = [line for line in caplog.messages if "cannot be kept" in line]
    assert line.startswith("0.arrow+3: packs and tokens are not counted")
    assert str(error) in line
    assert ".survey(folder=" in line
    assert len(calls) == 1


def test_a_folder_that_cannot_be_written_leaves_packs_uncounted(data, tmp_path, caplog, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MIDEPOCH_INDEX_DIR", str(tmp_path / "file" / "index"))
    assert not packs(data).counted
    assert [line for line in caplog.messages if "cannot be kept" in line and "index" in line]


@pytest.mark.parametrize(("error", "raises"), [*zip(ERRORS, [False, True, True], strict=True)])
def test_in_a_worker_only_what_every_worker_finds_leaves_packs_uncounted(data, monkeypatch, error, raises):
    failing(monkeypatch, error)
    monkeypatch.setattr(module, "torch_worker", lambda: (0, 2))
    if raises:
        with pytest.raises(type(error)):
            _ = packs(data).counted
    else:
        assert not packs(data).counted


def test_a_pickle_holds_the_survey(data, monkeypatch):
    dataset = packs(data)
    expected = len(dataset)
    copied = pickle.loads(pickle.dumps(dataset))
    monkeypatch.setattr(SurveyPass, "survey", None)
    assert len(copied.batch(1)) == expected
