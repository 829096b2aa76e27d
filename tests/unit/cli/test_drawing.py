"""The picture of a state shows the rows that were delivered, and nothing else."""

import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from midepoch.checkpoint.lanes import LanePosition
from midepoch.checkpoint.state import LanePositions, State
from midepoch.cli import drawing
from midepoch.cli.main import main

FILES, ROWS = 3, 100
"""A file has as many rows as a line of the picture has parts."""

DATASETS = {
    "in order": lambda rows: rows,
    "windows": lambda rows: rows.shuffle(seed=1, window=32, window_blocks=2),
    "rows": lambda rows: rows.shuffle(seed=1, level="row"),
    "files": lambda rows: rows.shuffle(seed=3, level="file").take(170),
    "one split": lambda rows: rows.train_test_split(0.25, seed=1)[0].shuffle(seed=1),
    "skipped": lambda rows: rows.skip(130),
}


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for number in range(FILES):
        table = pa.table({"id": range(number * ROWS, number * ROWS + ROWS)})
        pq.write_table(table, f"data/part-{number}.parquet", row_group_size=10)
    return me.read("data")


def delivered_by(loaders, batches):
    """The ids that some ranks receive in their first batches, and the state of the first rank."""
    ids = []
    for loader in loaders:
        passing = iter(loader)
        ids += [row for _ in range(batches) for row in next(passing)["id"]]
    return ids, loaders[0].state_dict()


def drawn(state, dataset, rows=None):
    state = State.from_dict(state)
    sizes, orders = drawing._lanes_of(state, rows, dataset)
    return drawing.parts_of_files(dataset, orders, drawing.delivered_of_lanes(state, sizes))


BY_FILE = ["in order", "windows", "files", "skipped"]
"""Rows of the others cannot be divided by files."""


@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "example") for name in DATASETS), *((name, "file") for name in BY_FILE)]
)
def test_the_parts_of_files_are_those_of_the_rows_that_came(rows, name, mode):
    dataset = DATASETS[name](rows)
    ranks = [me.Loader(dataset.shard(2, rank, mode=mode), batch_size=4) for rank in range(2)]
    ids, state = delivered_by(ranks, 5)
    expected = np.full(FILES * ROWS, np.nan)
    expected[[row["id"] for row in dataset]] = 0
    expected[ids] = 1
    np.testing.assert_array_equal(drawn(state, dataset).delivered.ravel(), expected)


def test_rows_that_a_faster_reader_is_ahead_are_drawn(rows):
    positions = LanePositions.pack([(1, LanePosition((4,), (1, 3))), (1, LanePosition((148,)))])
    state = State(lanes=2, turn=3, item_rows=4, positions=positions)
    expected = [[(0, 4), (8, 12), (16, 20)], [(0, 148)]]
    assert drawing.delivered_of_lanes(state, [150, 150]) == expected
    assert drawing.delivered_of_lanes(state, [150, 147])[1] == [(0, 147)]  # a short last batch


def test_many_files_share_lines_and_many_rows_are_sampled(rows, monkeypatch):
    monkeypatch.setattr(drawing, "MOST_LINES", 2)
    monkeypatch.setattr(drawing, "MOST_ROWS", 150)
    _, state = delivered_by([me.Loader(rows, batch_size=30)], 5)
    found = drawn(state, rows)
    assert found.names == ["part-0.parquet … (2)", "part-2.parquet … (1)"]
    assert (found.files, found.sampled) == (3, 150)
    assert np.nanmean(found.delivered[0]) == pytest.approx(0.75)
    assert np.nanmax(found.delivered[1]) == 0


def test_inspect_draws_lanes_without_the_files_and_both_with_them(rows, tmp_path, capsys):
    tokens = rows.map(lambda row: {"input_ids": [1] * (row["id"] % 7 + 1)})
    for name, dataset in {"plain": rows.shuffle(seed=1).batch(2), "packs": tokens.pack(16, window=20)}.items():
        loader = me.Loader(dataset)
        batches = iter(loader)
        for _ in range(9):
            next(batches)
        (tmp_path / f"{name}.json").write_text(json.dumps(loader.state_dict()))
        assert main(["inspect", f"{name}.json", "--png", f"{name}.png"]) == 0
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert main(["inspect", "plain.json", "--data", "data", "--png", "files.png"]) == 0
    assert "drawn in files.png" in capsys.readouterr().out
    size = [int.from_bytes((tmp_path / name).read_bytes()[20:24]) for name in ("plain.png", "files.png")]
    assert size[0] < size[1]


def test_what_cannot_be_drawn_is_said(rows, tmp_path, capsys, monkeypatch):
    mixed = me.Loader(me.mix([rows, rows.shuffle(seed=1)], weights=[1, 1], seed=1), batch_size=4)
    by_file = me.Loader(rows.shard(3, 0, mode="file"), batch_size=4)
    for name, loader in {"mixed": mixed, "by-file": by_file, "new": me.Loader(rows)}.items():
        if name != "new":
            next(iter(loader))
        (tmp_path / f"{name}.json").write_text(json.dumps(loader.state_dict()))
    said = {"mixed": "of a mixture", "by-file": "needs --data", "new": "the epoch has not begun"}
    for name, message in said.items():
        assert main(["inspect", f"{name}.json", "--png", "out.png"]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["inspect", "by-file.json", "--data", "data", "--png", "out.png"]) == 2
    assert "pip install 'midepoch[viz]'" in capsys.readouterr().err
    assert not (tmp_path / "out.png").exists()
