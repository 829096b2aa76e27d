"""Mapped files: one map for all readers of a file, which is still there in the next epoch."""

import gc
import os
import shutil
import sys
from pathlib import Path

import pytest

import midepoch as me
from files import values, write_numbers
from midepoch.errors import DataChangedError, DataFormatError
from midepoch.storage import maps

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc/self/maps")


def maps_of(folder):
    """The files below a folder that this process has mapped, once for each map."""
    gc.collect()
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted(Path(line.split(maxsplit=5)[5]).name for line in lines if f"{folder}/" in line)


@pytest.fixture
def folder(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for number, kind in enumerate(["stream", "file", "stream"]):
        write_numbers(data / f"{number}.arrow", 20 * number, 20 * number + 20, kind)
    return data


ALL = ["0.arrow", "1.arrow", "2.arrow"]


def test_files_stay_mapped_as_long_as_the_dataset_lives(folder):
    dataset = me.read(folder)
    assert maps_of(folder) == []
    assert values(dataset) == list(range(60))
    assert maps_of(folder) == ALL
    shuffled = dataset.shuffle(seed=1, window=7)
    del dataset
    assert sorted(values(shuffled)) == list(range(60))
    assert maps_of(folder) == ALL
    del shuffled
    assert maps_of(folder) == []


def test_all_who_read_a_file_share_its_map(folder):
    dataset = me.read(folder)
    others = [dataset, dataset.shuffle(seed=3, level="row"), dataset.select_columns(["x"]), me.read(folder).batch(7)]
    readers = [iter(one) for one in others]
    for _ in range(4):
        for reader in readers:
            next(reader)
        assert len(maps_of(folder)) == len(set(maps_of(folder)))
    for number, reader in enumerate(readers):
        assert len(list(reader)) == (5 if number == 3 else 56)
    assert maps_of(folder) == ALL


def test_no_more_than_the_most_bytes_stay_mapped(folder, monkeypatch):
    sizes = [os.path.getsize(folder / name) for name in ALL]
    for most, stay in [(0, []), (sizes[0], ALL[:1]), (sum(sizes) - 1, ALL[:2]), (sum(sizes), ALL)]:
        monkeypatch.setattr(maps, "KEPT_BYTES", most)
        dataset = me.read(folder)
        for _ in range(2):
            assert values(dataset) == list(range(60))
            dataset.set_epoch(0)
        assert maps_of(folder) == stay


def test_no_more_than_the_most_files_of_all_datasets_stay_mapped(folder, monkeypatch):
    write_numbers(folder.parent / "other" / "a.arrow", 0, 5)
    monkeypatch.setattr(maps.PROCESS_MAPS, "_maps", type(maps.PROCESS_MAPS._maps)())
    for most in range(5):
        monkeypatch.setattr(maps, "KEPT_FILES", most)
        dataset = me.read(folder)
        assert values(dataset) == list(range(60))
        assert maps_of(folder) == ALL[:most]
        other = me.read(folder.parent / "other").shuffle(seed=1)
        assert sorted(values(other)) == list(range(5))
        assert maps_of(folder.parent / "other") == (["a.arrow"] if most > 3 else [])
        del dataset, other


def test_a_changed_file_is_noticed_though_it_is_still_mapped(folder):
    old = me.read(folder)
    assert values(old) == list(range(60))
    write_numbers(folder / "new", 100, 130, "stream")
    os.replace(folder / "new", folder / "1.arrow")
    with pytest.raises(DataChangedError, match=r"1\.arrow was changed"):
        values(old)
    assert values(me.read(folder)) == [*range(20), *range(100, 130), *range(40, 60)]


def test_another_file_in_its_place_is_mapped_even_if_it_looks_the_same(folder):
    old = me.read(folder)
    assert values(old) == list(range(60))
    before = os.stat(folder / "1.arrow")
    write_numbers(folder / "new", 120, 140, "file")
    assert os.path.getsize(folder / "new") == before.st_size
    os.utime(folder / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(folder / "new", folder / "1.arrow")
    assert values(me.read(folder)) == [*range(20), *range(120, 140), *range(40, 60)]


def test_a_file_that_was_taken_away_and_came_back_is_read_again(folder, tmp_path):
    dataset = me.read(folder)
    assert values(dataset) == list(range(60))
    shutil.move(folder / "1.arrow", tmp_path / "aside")
    with pytest.raises(DataChangedError, match=r"1\.arrow cannot be read"):
        values(dataset)
    shutil.copy2(tmp_path / "aside", folder / "1.arrow")
    dataset = me.read(folder)
    assert values(dataset) == list(range(60))


def test_a_file_that_cannot_be_mapped_is_named_with_what_to_do(folder, monkeypatch):
    dataset = me.read(folder)

    def full(path):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(maps.pa, "memory_map", full)
    with pytest.raises(
        DataFormatError, match=r"0\.arrow cannot be mapped: .*Cannot allocate memory.*vm\.max_map_count"
    ):
        values(dataset)
