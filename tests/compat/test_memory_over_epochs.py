"""What a Loader holds does not grow from epoch to epoch."""

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.files import write
from torch.utils.data import DataLoader

import midepoch as me

ROWS, BLOCK, BATCH = 400, 100, 16
EPOCHS = 6


def _even(row: dict[str, Any]) -> bool:
    return bool(row["number"] % 2 == 0)


def _read(folder: Path, kind: str, rows: int = ROWS) -> me.Dataset:
    blocks = [
        pa.record_batch(
            {
                "number": pa.array(range(first, first + BLOCK), pa.int64()),
                "text": [f"text {number}" * 10 for number in range(first, first + BLOCK)],
                "ids": [list(range(number % 7 + 1)) for number in range(first, first + BLOCK)],
            }
        )
        for first in range(0, rows, BLOCK)
    ]
    path = write(folder / f"{kind}-{rows}.{'parquet' if kind == 'parquet' else 'arrow'}", blocks, kind)
    return me.read(path, index_dir=folder / "index").shuffle(1, window=200)


def _dataset(folder: Path, name: str) -> me.Dataset:
    dataset = _read(folder, "parquet" if name == "parquet" else "stream")
    if name == "filter":
        return dataset.filter(_even)
    if name == "pack":
        return dataset.pack(64, column="ids").with_format("torch")
    if name == "mixture":
        return me.mix([dataset, _read(folder, "stream", ROWS // 2)], [2, 1], stop="all")
    return dataset


def _check_nothing_is_left(loader: DataLoader[Any]) -> None:
    """Some epochs after others leave no objects, no memory of Python's or NumPy's, and none of Arrow's."""
    tracemalloc.start()
    try:
        for _ in range(3):  # what is kept for good is there after that, such as NumPy's memory for small arrays
            _held(loader)
        objects, traced, arrow = _held(loader)
        more_objects, more_traced, more_arrow = _held(loader)
    finally:
        tracemalloc.stop()
    assert more_objects < objects + EPOCHS
    assert more_traced < traced + 2000 * EPOCHS
    assert more_arrow <= arrow


def _held(loader: DataLoader[Any]) -> tuple[int, int, int]:
    for _ in range(EPOCHS):
        assert sum(1 for _ in loader) > 1
    gc.collect()
    return len(gc.get_objects()), tracemalloc.get_traced_memory()[0], pa.total_allocated_bytes()


@pytest.mark.parametrize("name", ["text", "parquet", "filter", "pack", "mixture"])
def test_epochs_leave_nothing_behind(tmp_path, name):
    _check_nothing_is_left(me.Loader(_dataset(tmp_path, name), batch_size=BATCH))


@pytest.mark.parametrize("persistent", [True, False])
def test_epochs_through_workers_leave_nothing_behind(tmp_path, persistent):
    dataset = _dataset(tmp_path, "text")
    _check_nothing_is_left(me.Loader(dataset, batch_size=BATCH, num_workers=2, persistent_workers=persistent))
