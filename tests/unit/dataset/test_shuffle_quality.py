"""Dataset.shuffle_quality: its figures are those of the rows that the dataset delivers."""

import shutil

import numpy as np
import pytest

import midepoch as me
from files import write_numbers

ROWS, BLOCK, BATCH = 2000, 50, 100


@pytest.fixture(params=["parquet", "stream"])
def folder(tmp_path, request):
    """Four files of ten blocks."""
    for number, first in enumerate(range(0, ROWS, 500)):
        suffix = "parquet" if request.param == "parquet" else "arrow"
        write_numbers(tmp_path / "data" / f"part-{number}.{suffix}", first, first + 500, request.param, rows=BLOCK)
    return tmp_path / "data"


def delivered(dataset):
    return np.array([row["x"] for row in dataset])


def batches(numbers):
    return [numbers[start : start + BATCH] for start in range(0, len(numbers), BATCH)]


def blocks_in_batches(numbers):
    return [len(np.unique(batch // BLOCK)) for batch in batches(numbers)]


SHUFFLES = {
    "in order": lambda dataset: dataset,
    "file": lambda dataset: dataset.shuffle(1, level="file"),
    "block": lambda dataset: dataset.shuffle(1, window=150, window_blocks=1),
    "row": lambda dataset: dataset.shuffle(1, level="row"),
    "split": lambda dataset: dataset.train_test_split(0.5).train.shuffle(1, window=150, window_blocks=1),
}


@pytest.mark.parametrize("shuffle", SHUFFLES.values(), ids=SHUFFLES)
def test_a_batch_comes_from_the_blocks_that_are_delivered(folder, shuffle):
    dataset = shuffle(me.read(folder))
    quality, numbers = dataset.shuffle_quality(BATCH), delivered(dataset)
    counts = blocks_in_batches(numbers)
    assert quality.blocks_per_batch == pytest.approx(np.mean(counts))
    assert quality.fewest_blocks == min(counts)
    assert (quality.rows, quality.blocks, quality.batch_size, quality.lanes) == (len(numbers), 40, BATCH, 1)


def test_the_figures_are_those_of_the_lanes_of_the_present_epoch(folder):
    dataset = me.read(folder).shuffle(1, window=150, window_blocks=1).lanes(4)
    for epoch in range(2):
        quality, numbers = dataset.shuffle_quality(BATCH), delivered(dataset)
        assert quality.blocks_across_lanes == pytest.approx(np.mean(blocks_in_batches(numbers))), epoch
        in_lanes = [blocks for lane in range(4) for blocks in blocks_in_batches(numbers[lane::4])]
        assert quality.blocks_per_batch == pytest.approx(np.mean(in_lanes))
        assert quality.lanes == 4


def test_no_data_is_read(folder):
    dataset = me.read(folder).shuffle(1).map(str).batch(7)
    shutil.rmtree(folder)
    assert dataset.shuffle_quality().rows == ROWS


@pytest.mark.parametrize("mode", ["example", "file"])
def test_every_shard_is_a_lane(folder, mode):
    shards = [me.read(folder).shuffle(1, window=150, window_blocks=1).shard(2, index, mode=mode) for index in range(2)]
    quality = shards[0].shuffle_quality(BATCH)
    assert quality == shards[1].shuffle_quality(BATCH)
    assert (quality.rows, quality.lanes) == (ROWS, 2)
    counts = [blocks for shard in shards for blocks in blocks_in_batches(delivered(shard))]
    assert quality.blocks_per_batch == pytest.approx(np.mean(counts))


def test_blocks_that_a_filter_rules_out_are_not_counted(tmp_path):
    write_numbers(tmp_path / "part.parquet", 0, ROWS, "parquet", rows=BLOCK)
    dataset = me.read(tmp_path / "part.parquet", filters=[("x", "<", 500)]).shuffle(1, level="row")
    quality = dataset.shuffle_quality(BATCH)
    assert (quality.rows, quality.blocks) == (500, 10)
    assert quality.blocks_per_batch == 10
    assert quality.blocks_of_permutation == 10


def test_a_mixture_names_the_remedy(folder):
    parts = [me.read(folder).shuffle(1), me.read(folder).shuffle(2)]
    with pytest.raises(TypeError, match="on each of the datasets before mixing"):
        me.mix(parts).shuffle_quality()


def test_an_empty_dataset_says_what_to_check(folder):
    with pytest.raises(ValueError, match=r"no rows.*take and skip"):
        me.read(folder).take(0).shuffle_quality()


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (1.5, TypeError)])
def test_the_batch_size_is_checked(folder, size, error):
    with pytest.raises(error, match="batch_size"):
        me.read(folder).shuffle_quality(size)
