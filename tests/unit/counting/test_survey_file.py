import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midepoch.counting import survey_file as module
from midepoch.counting.survey_file import HEADER, KEPT, LENGTHS, Survey, UnitRows, write_survey
from midepoch.errors import DataChangedError, NoDataError


def made(folder, kept, lengths, cuts=(), name="a.survey"):
    """A survey of these rows, which was joined from units that begin at the cuts."""
    rows = len(kept) if kept is not None else len(lengths)
    bounds = [0, *sorted(cut for cut in cuts if cut <= rows), rows]
    units = [
        UnitRows(None if kept is None else kept[begin:end], None if lengths is None else lengths[begin:end])
        for begin, end in pairwise(bounds)
    ]
    units = [UnitRows.from_bytes(unit.to_bytes()) for unit in units]
    return write_survey(folder / name, units, rows=rows, covered=1, work=folder)


@pytest.fixture
def small_pages(monkeypatch):
    """Pages of 16 rows, so that few rows have several pages."""
    monkeypatch.setattr(module, "PAGE_ROWS", 16)


def random_rows(rows, seed=0, dtype=np.uint32):
    rng = np.random.default_rng(seed)
    kept = rng.random(rows) < 0.6
    return kept, (rng.integers(1, 1000, rows) * kept).astype(dtype)


@settings(max_examples=60)
@given(rows=st.integers(0, 100), cuts=st.lists(st.integers(0, 100), max_size=6), seed=st.integers(0, 99))
def test_a_survey_says_of_each_row_what_its_unit_said(tmp_path_factory, rows, cuts, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAGE_ROWS", 16)
        kept, lengths = random_rows(rows, seed)
        survey = made(tmp_path_factory.mktemp("survey"), kept, lengths, cuts)
        assert (survey.rows, *survey.kept_before(np.array([rows]))) == (rows, kept.sum())
        chosen = np.random.default_rng(seed).integers(0, max(1, rows), 50 if rows else 0)
        assert survey.kept(chosen).tolist() == kept[chosen].tolist()
        assert survey.lengths(chosen).tolist() == lengths[chosen].tolist()
        bounds = np.sort(np.random.default_rng(seed).integers(0, rows + 1, 12))
        before = np.concatenate([[0], np.cumsum(kept)])
        assert survey.kept_before(bounds[::-1]).tolist() == before[bounds[::-1]].tolist()


def test_without_filters_all_rows_are_kept(tmp_path):
    survey = made(tmp_path, None, np.array([3, 0, 5], np.uint32))
    assert not survey.has_kept
    assert survey.kept(np.array([2, 0])).tolist() == [True, True]
    assert survey.kept_before(np.array([0, 2, 3])).tolist() == [0, 2, 3]


def test_without_pack_there_are_no_lengths(tmp_path):
    survey = made(tmp_path, np.array([True, False]), None)
    assert not survey.has_lengths
    with pytest.raises(ValueError, match=r"has no lengths.*Call survey\(\) after pack"):
        survey.lengths(np.array([0]))


def test_a_pickle_holds_the_folder_only(tmp_path):
    kept, lengths = random_rows(100_000)
    survey = made(tmp_path, kept, lengths)
    content = pickle.dumps(survey)
    assert len(content) < 500
    again = pickle.loads(content)
    assert again.digest == survey.digest
    assert (again.lengths(np.arange(100_000)) == lengths).all()


def test_on_a_machine_without_the_folder_a_pickle_is_refused(tmp_path):
    survey = made(tmp_path, *random_rows(10))
    content = pickle.dumps(survey)
    survey.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(NoDataError, match="a folder that all machines share"):
        pickle.loads(content)


def test_a_pickle_of_a_survey_that_was_replaced_is_refused(tmp_path):
    survey = made(tmp_path, *random_rows(10))
    content = pickle.dumps(survey)
    survey.folder.rename(tmp_path / "old")
    made(tmp_path, *random_rows(10, seed=1))
    with pytest.raises(DataChangedError, match="replaced by another one"):
        pickle.loads(content)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("name", [KEPT, LENGTHS])
def test_a_damaged_page_raises_when_it_is_first_used(tmp_path, name):
    survey = made(tmp_path, *random_rows(64))
    path = survey.folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 4 + 1] ^= 1  # in the second of four pages
    path.write_bytes(content)
    gather = Survey.load(survey.folder).kept if name == KEPT else Survey.load(survey.folder).lengths
    gather(np.array([0, 15, 32, 63]))
    with pytest.raises(DataChangedError, match=rf"damaged at row 16 or after it: {name} has a wrong checksum"):
        gather(np.array([0, 20]))


@pytest.mark.parametrize("name", [HEADER, KEPT, LENGTHS])
def test_a_truncated_survey_is_not_opened(tmp_path, name):
    survey = made(tmp_path, *random_rows(640))
    path = survey.folder / name
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"checksum|instead of|version"):
        Survey.load(survey.folder)


def test_of_two_processes_that_finish_at_once_the_first_wins(tmp_path):
    first = made(tmp_path, *random_rows(64))
    second = made(tmp_path, *random_rows(64, seed=1))
    assert second.digest == first.digest
    assert [path.name for path in tmp_path.iterdir()] == ["a.survey"]


def test_the_digest_says_what_is_surveyed_and_not_where(tmp_path):
    one = made(tmp_path, *random_rows(64), cuts=[7])
    same = made(tmp_path, *random_rows(64), cuts=[30], name="b.survey")
    other = made(tmp_path, *random_rows(64, seed=1), name="c.survey")
    assert one.digest == same.digest != other.digest


def test_units_of_too_few_rows_are_refused(tmp_path):
    with pytest.raises(ValueError, match="have 3 rows, but the dataset has 4"):
        write_survey(tmp_path / "a", [UnitRows(np.ones(3, bool), None)], rows=4, covered=1, work=tmp_path)
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=80)
@given(
    rows=st.integers(0, 150),
    page_bits=st.integers(3, 6),
    cell=st.sampled_from([8, 16, 64, 512]),
    kept_share=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_kept_rows_are_found_by_their_number(tmp_path_factory, rows, page_bits, cell, kept_share, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAGE_ROWS", 1 << page_bits)
        patch.setattr(module, "CELL_ROWS", cell)
        patch.setattr(module, "ROWS_AT_ONCE", 3)
        random = np.random.default_rng(seed)
        kept = random.random(rows) < kept_share
        survey = made(tmp_path_factory.mktemp("survey"), kept, None)
        numbers = random.permutation(int(kept.sum()))
        assert survey.kept_at(numbers).tolist() == np.flatnonzero(kept)[numbers].tolist()
        assert (survey.kept_before(survey.kept_at(numbers)) == numbers).all()


def test_the_digest_of_kept_rows_is_that_of_the_bits_alone(tmp_path):
    kept = np.array([True, False, True])
    first, second = made(tmp_path, kept, None), made(tmp_path, kept, np.array([3, 0, 5], np.uint32), name="b.survey")
    assert first.kept_digest == second.kept_digest
    assert first.digest != second.digest
    assert made(tmp_path, ~kept, None, name="c.survey").kept_digest != first.kept_digest
