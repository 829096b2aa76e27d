"""Drawing from the parts of a mixture: long runs however short those of the parts are, and a first row at once."""

from itertools import islice

import pyarrow as pa
import pytest

import midepoch as me
from files import write
from midepoch.pipeline import draws
from midepoch.pipeline.draws import RUN_ROWS, deal
from midepoch.sources.blocks import FileBlocks

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
