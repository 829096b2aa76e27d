import json
import logging
import os
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from files import numbers, write
from midepoch.counting import survey as module
from midepoch.counting.survey import SurveyPass, Unit, cut_units
from midepoch.dataset import file_rows, plan_of, with_stage
from midepoch.index.saved import clean
from midepoch.stages.skip import SkipErrors, SkipLog

ROWS = 60
LISTS = [pa.list_(pa.int32()), pa.large_list(pa.uint16()), pa.list_(pa.int64(), 4)]


def tokens_of(row):
    return list(range(row * 7 % 11))


def batch_of(rows):
    ids = pa.array(rows, pa.int64())
    return pa.record_batch({"id": ids, "input_ids": pa.array([tokens_of(row) for row in rows], LISTS[0])})


@pytest.fixture
def folder(tmp_path):
    """Three Arrow files with the ids 0 to 59 and a list of tokens for each."""
    for number in range(3):
        blocks = [range(first, first + 5) for first in range(20 * number, 20 * number + 20, 5)]
        write(tmp_path / "data" / f"{number}.arrow", [batch_of(rows) for rows in blocks])
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def _small_units(monkeypatch):
    """Units of one or two blocks, so that few rows have many units, surveyed in this process."""
    monkeypatch.setattr("midepoch._common.jobs.usable_cores", lambda: 1)
    monkeypatch.setattr(module, "SMALLEST_UNIT", 400)
    monkeypatch.setattr(module, "COLUMN_BYTES", 400)


def pass_of(dataset):
    """What a survey of a dataset runs."""
    return SurveyPass.of(file_rows(dataset, ""), plan_of(dataset).pipeline.stages)


def facts(dataset):
    """What the survey of a dataset says of each row: kept or not, and its length."""
    survey, rows = plan_of(dataset).pipeline.survey, np.arange(ROWS)
    return survey.kept(rows).tolist(), survey.lengths(rows).tolist() if survey.has_lengths else None


def is_even(row):
    return row["id"] % 2 == 0


@pytest.mark.parametrize("kind", ["stream", "file", "parquet"])
@pytest.mark.parametrize("lists", LISTS, ids=str)
def test_lengths_of_lists_in_files_need_no_rows(tmp_path, monkeypatch, kind, lists):
    monkeypatch.setattr(SurveyPass, "flow", None)
    fixed = pa.types.is_fixed_size_list(lists)
    values = [[0] * 4 if fixed else tokens_of(row) for row in range(ROWS)]
    batches = [
        pa.record_batch({"input_ids": pa.array(values[at : at + 7], lists), "text": ["a"] * len(values[at : at + 7])})
        for at in range(0, ROWS, 7)
    ]
    write(tmp_path / "a", batches, kind)
    surveyed = me.read(tmp_path / "a").select_columns(["text", "input_ids"]).with_format("numpy").pack(16).survey()
    assert facts(surveyed)[1] == [len(value) for value in values]


def test_only_the_column_of_tokens_is_read(folder):
    dataset = me.read(folder).pack(16)
    assert pass_of(dataset).source.names == ["input_ids"]
    filtered = me.read(folder, filters=pc.field("id") > 10)
    assert pass_of(filtered).source.names == []
    assert pass_of(filtered.filter(is_even)).source.names == ["id", "input_ids"]


@pytest.mark.parametrize("values", [[[1], None, [2]], [[1], [2, None], [3]]], ids=["list", "token"])
@pytest.mark.parametrize("kind", ["stream", "parquet"])
def test_a_null_raises_as_in_pack_and_names_the_row(tmp_path, kind, values):
    batch = pa.record_batch({"input_ids": pa.array(values, pa.list_(pa.int32()))})
    write(tmp_path / "a", [batch.slice(0, 1), batch], kind)
    with pytest.raises(ValueError, match="holds a null") as caught:
        me.read(tmp_path / "a").pack(8).survey()
    assert caught.value.__notes__ == ["midepoch: in pack, at row 2 of a"]


def test_an_error_of_a_function_names_stage_file_and_row(folder):
    def fails(row):
        return 1 / (row["id"] - 47)

    with pytest.raises(ZeroDivisionError) as caught:
        me.read(folder).filter(fails).survey()
    assert caught.value.__notes__[0].endswith("fails), at row 7 of 2.arrow")


def test_a_filter_that_judges_rows_by_their_batch_does_not_keep_what_its_survey_says(folder):
    first = me.read(folder).shuffle(seed=1).filter(lambda rows: [n == rows["id"][0] for n in rows["id"]], batched=True)
    with pytest.raises(me.SurveyMismatchError, match=r"The survey says that filter (keeps|leaves out) row"):
        list(first.survey())


def test_rows_that_are_skipped_as_broken_are_not_kept(folder):
    def breaks(row):
        return {"x": 1 / (row["id"] % 5)}

    dataset = me.read(folder)
    stage = SkipErrors(call=plan_of(dataset).pipeline.call("process", breaks), skip_log=SkipLog())
    surveyed = with_stage(dataset, stage).survey()
    assert facts(surveyed)[0] == [row % 5 != 0 for row in range(ROWS)]
    assert len(stage.skip_log.lines()) == ROWS // 5


def test_stages_after_the_last_counting_one_are_not_called(folder):
    surveyed = me.read(folder).filter(is_even).map(lambda row: 1 / 0).batch(2).survey()
    assert facts(surveyed)[0] == [row % 2 == 0 for row in range(ROWS)]


def test_order_seed_and_shard_change_nothing(folder, monkeypatch):
    dataset = me.read(folder).shuffle(seed=1).skip(7).shard(2, 1).lanes(4).filter(is_even).survey()
    monkeypatch.setattr(SurveyPass, "_make", None)
    again = me.read(folder).shuffle(seed=2, level="row").filter(is_even).survey()
    assert plan_of(again).pipeline.survey.digest == plan_of(dataset).pipeline.survey.digest
    assert facts(again) == ([row % 2 == 0 for row in range(ROWS)], None)


def test_the_parameters_of_pack_change_nothing_but_its_column(folder, monkeypatch):
    me.read(folder).pack(16).survey()
    monkeypatch.setattr(SurveyPass, "_make", lambda *_: 1 / 0)
    me.read(folder).pack(32, strategy="concat", eos=1).survey()
    with pytest.raises(ZeroDivisionError):
        me.read(folder).map(lambda row: {"other": [1]}).pack(32, column="other").survey()


def test_a_file_that_was_written_again_is_surveyed_again(tmp_path):
    kept = []
    for first in (0, 1):  # the same names, sizes and rows
        write(tmp_path / "data" / "a.arrow", [numbers(first, first + 10, name="id")])
        os.utime(tmp_path / "data" / "a.arrow", (first, first))
        survey = plan_of(me.read(tmp_path / "data").filter(is_even).survey(folder=tmp_path / "surveys")).pipeline.survey
        kept.append(survey.kept(np.arange(10)).tolist())
    assert kept == [[True, False] * 5, [False, True] * 5]


def test_a_survey_lies_beside_the_index_or_in_the_folder(folder, tmp_path):
    beside = me.read(folder, index_dir=tmp_path / "index").filter(is_even).survey()
    chosen = me.read(folder, index_dir=tmp_path / "index").filter(is_even).survey(folder=tmp_path / "surveys")
    assert plan_of(beside).pipeline.survey.folder.parent == tmp_path / "index"
    assert sorted(path.suffix for path in (tmp_path / "surveys").iterdir()) == [".lock", ".survey"]
    assert facts(beside) == facts(chosen)


def test_nothing_to_survey(folder, caplog):
    caplog.set_level(logging.INFO)
    dataset = me.read(folder).map(lambda row: row).batch(4)
    assert dataset.survey() is dataset
    assert "nothing to survey" in caplog.text


def test_a_survey_keeps_the_class_and_is_in_no_state(folder):
    dataset = me.SimpleArrowIterableDataset(folder).filter(is_even)
    surveyed = dataset.survey()
    assert type(surveyed) is me.SimpleArrowIterableDataset
    assert plan_of(surveyed).pipeline == plan_of(dataset).pipeline
    assert json.dumps(surveyed.state_dict()) == json.dumps(dataset.state_dict())
    assert [row["id"] for row in surveyed] == [row["id"] for row in dataset]


def test_every_part_of_a_mixture_is_surveyed(folder):
    even = me.read(folder).filter(is_even)
    inner = me.mix([even, me.read(folder)]).map(lambda row: {"x": 1}).with_format("numpy")
    mixture = me.mix({"inner": inner, "packs": me.read(folder).pack(8)})
    surveyed = mixture.survey()
    parts = plan_of(surveyed).pipeline.source.parts
    survey = parts[0].source.parts[0].survey
    assert survey.kept_before(np.array([survey.rows])).tolist() == [ROWS // 2]
    assert parts[0].source.parts[1].survey is None
    assert parts[1].survey.has_lengths
    assert plan_of(surveyed).pipeline.fingerprint == plan_of(mixture).pipeline.fingerprint
    plain = me.mix([me.read(folder), me.read(folder)])
    assert plain.survey() is plain


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda rows: rows.map(lambda row, rng: row, with_rng=True).filter(is_even),
            "filter comes after map with with_rng=True, which makes other rows in every epoch: put filter first",
        ),
        (
            lambda rows: rows.batch(2).filter(bool),
            "filter comes after batch, whose items have no row numbers.*: use filter before batch",
        ),
        (lambda rows: rows.pack(8, window=1).filter(bool), "filter comes after pack, whose items have no row numbers"),
        (
            lambda rows: rows.filter(is_even).map(lambda rows: rows, batched=True),
            r"map\(batched=True\) may return any number of rows: pass one_to_one=True .* or cache\(\) the rows",
        ),
        (
            lambda rows: me.mix([rows, rows]).filter(is_even),
            "filter after a mixture .* Use filter on each of the datasets",
        ),
        (
            lambda rows: me.mix([rows, rows]).filter(is_even).pack(8),
            "filter after a mixture .* Use filter on each of the datasets",
        ),
        (
            lambda rows: me.mix([rows.pack(8), rows.pack(8)]).pack(8),
            "pack comes after pack, whose items have no row numbers",
        ),
    ],
)
def test_what_cannot_be_surveyed_is_refused_with_a_remedy(folder, build, message):
    with pytest.raises(ValueError, match=message):
        build(me.read(folder)).survey()


@pytest.mark.parametrize("version", [1.5, True, ["a"]])
def test_a_version_is_text_or_a_number(folder, version):
    with pytest.raises(TypeError, match=r"version is .*; it can be a string, an integer, or left out"):
        me.read(folder).filter(is_even).survey(version=version)


def test_no_rows_at_all(tmp_path):
    write(tmp_path / "a.arrow", [batch_of([])])
    survey = plan_of(me.read(tmp_path / "a.arrow").filter(is_even).pack(8).survey()).pipeline.survey
    assert (survey.rows, survey.has_lengths) == (0, True)


def test_objects_in_memory_are_surveyed_in_the_process_that_has_them(folder, monkeypatch):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    monkeypatch.setattr("midepoch._common.jobs.usable_cores", lambda: 2)
    memory.put(str(folder), "/surveyed", recursive=True)
    try:
        surveyed = me.read("memory://surveyed").filter(is_even).survey()
        assert facts(surveyed)[0] == [row % 2 == 0 for row in range(ROWS)]
    finally:
        memory.rm("/surveyed", recursive=True)


def test_a_damaged_survey_is_made_again(folder, caplog):
    survey = plan_of(me.read(folder).filter(is_even).survey()).pipeline.survey
    (survey.folder / "header").write_bytes(b"damaged")
    surveyed = me.read(folder).filter(is_even).survey()
    assert facts(surveyed)[0] == [row % 2 == 0 for row in range(ROWS)]
    assert "cannot be used" in caplog.text


def test_a_length_beyond_32_bits_is_refused(folder, monkeypatch):
    monkeypatch.setattr(module, "MAX_LENGTH", 7)
    with pytest.raises(ValueError, match=r"row 4 of 0.arrow has 9 tokens; at most 7 are possible"):
        me.read(folder).map(lambda row: {"input_ids": [0] * (9 if row["id"] == 4 else 1)}).pack(8).survey()


@given(blocks=st.lists(st.tuples(st.integers(0, 5), st.floats(0, 3)), max_size=40))
def test_units_are_whole_blocks_that_cover_all_rows_once(blocks):
    rows = np.array([count for count, _ in blocks], np.int64)
    weights = np.array([weight for _, weight in blocks])
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    made = cut_units(starts, weights, 1)
    assert [unit.number for unit in made] == list(range(len(made)))
    assert (made[0].begin, made[-1].end) == (0, starts[-1])
    assert all(one.end == other.begin for one, other in pairwise(made))
    assert {unit.begin for unit in made} <= set(starts.tolist())
    assert all(unit.begin < unit.end for unit in made) or made == [Unit(0, 0, 0)]
    for unit in made:
        inside = (starts[:-1] >= unit.begin) & (starts[1:] <= unit.end)
        blocks_with_rows = weights[inside & (rows > 0)]
        assert blocks_with_rows[:-1].sum() <= 1 + 1e-9  # the last one may be heavy


def test_an_old_index_takes_its_surveys_along(folder, tmp_path):
    for number in range(4):
        write(folder / "3.arrow", [batch_of(range(number + 1))])
        me.read(folder, index_dir=tmp_path / "index").filter(is_even).survey()
    indexes = sorted((tmp_path / "index").glob("*.index"))
    clean(tmp_path / "index", most_bytes=0, keep=indexes[2])
    assert [*(tmp_path / "index").glob("*.index")] == [indexes[2]]
    assert [path.name.startswith(indexes[2].stem) for path in (tmp_path / "index").glob("*.survey")] == [True]
