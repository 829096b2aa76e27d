"""Samples of tar files in any order, on any ranks and workers: nothing is lost, nothing comes twice, nothing moves."""

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch.formats import tar
from midepoch.testing import assert_elastic, assert_resumes
from tars import numbered_tar, samples_of, without_nulls
from worlds import is_kept

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ORDERS: dict[str, Any] = {
    "in order": lambda dataset: dataset,
    "file": lambda dataset: dataset.shuffle(1, level="file"),
    "block": lambda dataset: dataset.shuffle(2, window=16),
    "row": lambda dataset: dataset.shuffle(3, level="row"),
}
STAGES: dict[str, Any] = {
    "batch": lambda dataset: dataset.decode("integer").batch(3),
    "filter": lambda dataset: dataset.decode("integer").filter(is_kept),
}
layouts = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=2, max_size=3)


def check(folder: str, sizes: list[int], order: str, stage: str, legs: list[tuple[int, int]]) -> None:
    first, paths = 0, []
    for number, size in enumerate(sizes):
        paths.append(numbered_tar(Path(folder) / f"{number}.tar", first, first + size, 200))
        first += size
    with patch.object(tar, "BLOCK_BYTES", 4096):  # so that small files have several blocks
        plain = me.read(f"{folder}/{{0..{len(sizes) - 1}}}.tar", index_dir=f"{folder}/index")
    ordered = ORDERS[order](plain)
    rows = without_nulls(ordered)
    assert sorted(rows, key=lambda row: row["__key__"]) == samples_of(*paths)
    assert rows == samples_of(*paths) or order != "in order"
    dataset = STAGES[stage](ordered.lanes(2))
    assert_resumes(dataset, every=5)
    assert_elastic(dataset, legs, steps=2)


@few
@given(
    st.lists(st.integers(1, 25), min_size=1, max_size=3),
    st.sampled_from([*ORDERS]),
    st.sampled_from([*STAGES]),
    layouts,
)
def test_F3_samples_are_resumed_and_resized_like_rows(
    sizes: list[int], order: str, stage: str, legs: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(folder, sizes, order, stage, legs)


def test_a_sample_of_another_block_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = tar._samples

    def without_first(path: Any, members: Any) -> Any:
        found = [*samples(path, members)]
        return iter([found[-1], *found[1:]])

    parsed = tar.TarBlocks._parsed

    def planted(self: Any, block: Any, data: bytes) -> Any:
        with patch.object(tar, "_samples", without_first):
            return parsed(self, block, data)

    monkeypatch.setattr(tar.TarBlocks, "_parsed", planted)
    with pytest.raises(AssertionError):
        check(str(tmp_path), [20, 9], "block", "batch", [(1, 1), (2, 1)])
