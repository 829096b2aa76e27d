"""Drawing from the parts of a mixture: long runs however short those of the parts are, and a first row at once."""

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
