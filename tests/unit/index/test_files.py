"""The index of files: where they are, whether they changed, and copies for other processes."""

import copy
import pickle

import pytest

import midepoch as me
from files import write_numbers
from midepoch.index.build import open_index
from midepoch.index.files import FileIndex, is_mapped, location_of
from midepoch.storage.objects import StoredFile
from midepoch.storage.store import Store


@pytest.mark.parametrize("in_memory", [False, True], ids=["mapped", "in-memory"])
@pytest.mark.parametrize("how", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy])
def test_a_copied_dataset_has_the_start_point_of_the_first(folder, tmp_path, kept, in_memory, how):
    (tmp_path / "file").touch()
    dataset = me.read(folder, index_dir=tmp_path / "file" / "x" if in_memory else kept).shuffle(seed=4).batch(4)
    whole = list(copy.copy(dataset))
    rows = iter(dataset)
    taken = [next(rows) for _ in range(3)]
    dataset.load_state_dict(dataset.state_dict())
    assert taken + list(how(dataset)) == whole


def test_a_pickled_dataset_is_small_however_many_blocks_there_are(tmp_path, kept):
    write_numbers(tmp_path / "few.arrow", 0, 10)
    write_numbers(tmp_path / "many.arrow", 0, 4000)
    few, many = (pickle.dumps(me.read(tmp_path / name, index_dir=kept)) for name in ("few.arrow", "many.arrow"))
    assert len(many) <= len(few) + 20


def test_a_local_file_is_named_by_its_path_and_an_object_by_its_version(folder, kept):
    index = open_index(folder, index_dir=kept)
    assert location_of(index, 1) == str(folder / "1.arrow")
    stored = location_of(FileIndex(index.view, Store("s3://bucket/data", {})), 1)
    assert isinstance(stored, StoredFile)
    assert str(stored) == str(folder / "1.arrow")


def test_only_local_arrow_files_are_mapped(folder, kept):
    index = open_index(folder, index_dir=kept)
    assert [is_mapped(index, file) for file in range(3)] == [True, True, False]
    remote = FileIndex(index.view, Store("s3://bucket/data", {}))
    assert [is_mapped(remote, file) for file in range(3)] == [False, False, False]


def test_a_changed_file_is_noticed_and_an_object_is_checked_only_when_read(folder, kept):
    index = open_index(folder, index_dir=kept)
    index.check(0)
    write_numbers(folder / "0.arrow", 0, 99)
    with pytest.raises(me.DataChangedError, match=r"0\.arrow was changed"):
        index.check(0)
    index.check(1)
    FileIndex(index.view, Store("s3://bucket/data", {})).check(0)


def test_files_have_the_columns_that_are_in_them_and_no_others(folder, kept):
    index = open_index(folder, index_dir=kept)
    assert index.constants(0) == index.layout == {}
    assert index.schema(None).names == ["x"]
    wanted = index.schema(None)
    for file in range(3):
        _, block = index.view.block(int(index.view.first_blocks[file]) + 1)
        assert index.open(file, wanted).read(block)["x"].to_pylist() == [10 * file + number for number in range(4, 8)]
