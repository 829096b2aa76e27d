"""Drawing from the parts of a mixture: long runs however short those of the parts are, and a first row at once."""

from itertools import islice, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from files import write
from midepoch.pipeline import draws
from midepoch.pipeline.draws import RUN_ROWS, PartRows, deal
from midepoch.sources.blocks import FileBlocks
from midepoch.stages.flow import RowRun
from midepoch.testing import same
from midepoch.values.rows import Rows

SIZES = {"a": 9000, "b": 6000, "c": 3000}
WEIGHTS = [3, 2, 1]
BLOCK = 500
FORMS = ["python", "numpy", "torch", "arrow"]


@pytest.fixture
def parts(tmp_path):
    for part, size in SIZES.items():
        rows = pa.record_batch({"x": [f"{part}{number}" for number in range(size)]})
        write(tmp_path / f"{part}.arrow", [rows.slice(start, BLOCK) for start in range(0, size, BLOCK)])
    return {part: me.read(tmp_path / f"{part}.arrow") for part in SIZES}


@pytest.fixture
def drawn(monkeypatch):
    """How many rows are drawn at a time."""
    lengths = []

    def watched(parts, *arguments):
        lengths.append(len(parts))
        return deal(parts, *arguments)

    monkeypatch.setattr(draws, "deal", watched)
    return lengths


def one_by_one(parts):
    """The same mixture with a function on each part, which is drawn item by item."""
    return me.mix({name: part.map(lambda row: row) for name, part in parts.items()}, WEIGHTS, stop="all")


@pytest.mark.parametrize("order", [{}, {"window": 700}, {"level": "row"}], ids=str)
def test_runs_are_long_though_those_of_the_parts_are_short(parts, drawn, order):
    if order:
        parts = {name: part.shuffle(seed=2, **order) for name, part in parts.items()}
    mixture = me.mix(parts, WEIGHTS, stop="all")
    got = [row["x"] for row in mixture]
    assert len(drawn) < 30
    assert sorted(drawn)[len(drawn) // 2] == RUN_ROWS
    assert got == [row["x"] for row in one_by_one(parts)]


@pytest.mark.parametrize("cut", [0, 1, 499, 500, 501, 1024, 5000, 17_999])
def test_runs_resume_at_any_row_with_the_next(parts, cut):
    mixture = me.mix(parts, WEIGHTS, stop="all")
    whole = [row["x"] for row in mixture]
    mixture.set_epoch(0)
    begun = [row["x"] for row in islice(mixture, cut)]
    again = me.mix(parts, WEIGHTS, stop="all")
    again.load_state_dict(mixture.state_dict())
    assert begun + [row["x"] for row in again] == whole


def test_the_first_row_waits_for_one_block_of_one_part(parts, monkeypatch):
    blocks = []
    read = FileBlocks.view_of
    monkeypatch.setattr(FileBlocks, "view_of", lambda self, number: blocks.append(number) or read(self, number))
    rows = iter(me.mix(parts, WEIGHTS))
    next(rows)
    assert len(blocks) == 1


@pytest.mark.parametrize("stop", ["first", "all", "never"])
def test_items_that_are_drawn_one_by_one_are_those_of_runs_where_parts_end_too(parts, stop):
    """The parts of many draws are found together, and those after the end of a part are others."""
    short = {name: part.take(size) for (name, part), size in zip(parts.items(), (40, 11, 3), strict=True)}
    weights = [0.5000001, 0.3, 0.2]
    expected = [row["x"] for row in islice(me.mix(short, weights, stop=stop), 150)]
    assert len(expected) > 10
    mapped = {name: part.map(lambda row: row) for name, part in short.items()}
    iterator, got = iter(me.mix(mapped, weights, stop=stop)), []
    for number in range(len(expected)):
        resumed = me.mix(mapped, weights, stop=stop)
        resumed.load_state_dict(iterator.state_dict())
        following = expected[number : number + 5]
        assert [row["x"] for row in islice(resumed, len(following))] == following
        got.append(next(iterator)["x"])
    assert got == expected


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_batches_of_a_mixture_in_every_form_have_the_rows_that_are_drawn_one_by_one(tmp_path, form, shuffled):
    parts = {}
    for part, size in {"a": 2500, "b": 900}.items():
        numbers = range(size)
        rows = {
            "text": [None if number % 7 == 3 else f"{part}{number}" for number in numbers],
            "n": [number if part == "a" else -number for number in numbers],
            "score": [number / 8 for number in numbers],
            "pair": [[number, number + 1] for number in numbers],
        }
        batch = pa.record_batch(rows)
        write(tmp_path / f"{part}.arrow", [batch.slice(start, 300) for start in range(0, size, 300)])
        parts[part] = me.read(tmp_path / f"{part}.arrow")
        parts[part] = parts[part].shuffle(seed=4, window=600) if shuffled else parts[part]
    expected = list(me.mix({name: part.map(dict) for name, part in parts.items()}, [3, 1], stop="all"))
    got = []
    for batch in me.mix(parts, [3, 1], stop="all").with_format(form).batch(37):
        columns = batch.to_pydict() if form == "arrow" else {name: plain(column) for name, column in batch.items()}
        assert list(columns) == ["text", "n", "score", "pair"]
        got += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    assert got == expected


def plain(column):
    return column.tolist() if hasattr(column, "tolist") else column


def run_of(part, start, size, form):
    """A run of rows of a part; their numbers, and names, say which they are."""
    numbers = np.arange(start, start + size)
    columns = {"name": [f"{part}:{number}" for number in numbers.tolist()], "x": numbers + 1000 * part}
    batch = pa.record_batch(columns)
    rows = Rows(batch, form)
    return RowRun(rows, numbers[:, None] + 1, numbers)


@given(
    parts=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 59), max_size=3),
    form=st.sampled_from(FORMS),
)
def test_each_draw_takes_the_next_row_of_its_part(parts, sizes, cuts, form):
    def runs(part, start=0):
        while True:
            size = sizes[(part + start) % len(sizes)]
            yield run_of(part, start, size, form)
            start += size

    waiting = [PartRows(runs(part)) for part in range(4)]
    assert [of_part.ready(len(parts)) for of_part in waiting] == [len(parts)] * 4
    got, keys, taken = [], [], [[] for _ in waiting]
    bounds = sorted({0, len(parts), *(cut for cut in cuts if cut < len(parts))})
    for begin, end in pairwise(bounds):
        run, slices = deal(np.array(parts[begin:end], np.int32), waiting)
        assert len(run.rows) == len(run) == end - begin
        got += [(str(row["name"]), int(row["x"])) for row in map(plain_row, run.rows.items())]
        keys += run.keys.tolist()
        for part, of_part in enumerate(slices):
            taken[part] += [cursor for some in of_part for (cursor,) in some.cursors.tolist()]
    numbers = [parts[:draw].count(part) for draw, part in enumerate(parts)]
    expected = list(zip(parts, numbers, strict=True))
    assert got == [(f"{part}:{number}", 1000 * part + number) for part, number in expected]
    assert keys == numbers
    assert taken == [list(range(1, parts.count(part) + 1)) for part in range(4)]


def plain_row(row):
    return (
        {name: column[0].as_py() for name, column in zip(row.schema.names, row.columns, strict=True)}
        if isinstance(row, pa.RecordBatch)
        else row
    )


@pytest.mark.parametrize("form", FORMS)
def test_batches_of_dealt_rows_are_those_of_one_record_batch(form):
    waiting = [PartRows(iter([run_of(part, start, 5, form) for start in (0, 5, 10)])) for part in range(2)]
    assert [of_part.ready(20) for of_part in waiting] == [15, 15]
    parts = np.array([0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 1], np.int32)
    rows = deal(parts, waiting)[0].rows
    numbers = [parts[:draw].tolist().count(part) for draw, part in enumerate(parts.tolist())]
    whole = pa.record_batch(
        {
            "name": [f"{part}:{number}" for part, number in zip(parts, numbers, strict=True)],
            "x": np.array(numbers) + 1000 * parts.astype(np.int64),
        }
    )
    for size in (1, 4, 11):
        assert same(list(rows.batches(size)), list(Rows(whole, form).batches(size)))
    assert same(rows.columns(), Rows(whole, form).columns())
