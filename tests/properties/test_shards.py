"""Samples of tar files and MDS in any order, on any ranks and workers: nothing is lost, or comes twice, or moves."""

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch.formats import mds, tar
from midepoch.testing import assert_elastic, assert_resumes
from shards import numbered_mds
from tars import numbered_tar, samples_of, without_nulls
from worlds import ids, is_kept

few = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ORDERS: dict[str, Any] = {
    "in order": lambda dataset: dataset,
    "file": lambda dataset: dataset.shuffle(1, level="file"),
    "block": lambda dataset: dataset.shuffle(2, window=16),
    "row": lambda dataset: dataset.shuffle(3, level="row"),
}
STAGES: dict[str, Any] = {
    "batch": lambda dataset: dataset.batch(3),
    "filter": lambda dataset: dataset.filter(is_kept),
}
layouts = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=2, max_size=3)


def written(folder: str, kind: str, sizes: list[int]) -> Any:
    """A dataset of files of these numbers of rows, in blocks of a few rows."""
    first = 0
    for number, size in enumerate(sizes):
        if kind == "tar":
            numbered_tar(Path(folder) / f"{number}.tar", first, first + size, 200)
        else:
            numbered_mds(Path(folder) / str(number), first + size, 9, first)
        first += size
    with patch.object(tar, "BLOCK_BYTES", 4096), patch.object(mds, "BLOCK_BYTES", 200):
        source = f"{folder}/{{0..{len(sizes) - 1}}}.tar" if kind == "tar" else folder
        return me.read(source, index_dir=f"{folder}/index")


def check(dataset: Any, order: str, stage: str, legs: list[tuple[int, int]]) -> None:
    ordered = ORDERS[order](dataset)
    rows = ids(ordered)
    assert sorted(rows) == list(range(len(rows)))
    assert rows == sorted(rows) or order != "in order"
    staged = STAGES[stage](ordered.lanes(2))
    assert_resumes(staged, every=5)
    assert_elastic(staged, legs, steps=2)


@pytest.mark.parametrize("kind", ["tar", "mds"])
@few
@given(
    st.lists(st.integers(1, 25), min_size=1, max_size=3),
    st.sampled_from([*ORDERS]),
    st.sampled_from([*STAGES]),
    layouts,
)
def test_F3_F4_samples_are_resumed_and_resized_like_rows(
    kind: str, sizes: list[int], order: str, stage: str, legs: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        dataset = written(folder, kind, sizes)
        assert len(dataset) == sum(sizes)
        if kind == "tar":
            paths = sorted(Path(folder).glob("*.tar"))
            assert without_nulls(dataset) == samples_of(*paths)
            dataset = dataset.decode("integer")
        check(dataset, order, stage, legs)


@pytest.mark.parametrize("kind", ["tar", "mds"])
def test_blocks_whose_rows_are_exchanged_are_noticed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = written(str(tmp_path), kind, [20, 9])
    planted = tar.TarBlocks if kind == "tar" else mds.MdsBlocks
    made, calls = planted.decode, []

    def turned(self: Any, block: Any, data: Any) -> Any:
        calls.append(block)
        rows = made(self, block, data)
        return rows.take([*range(rows.num_rows)][::-1]) if len(calls) % 3 == 0 else rows

    monkeypatch.setattr(planted, "decode", turned)
    with pytest.raises(AssertionError):
        check(dataset.decode("integer") if kind == "tar" else dataset, "block", "batch", [(1, 1), (2, 1)])
