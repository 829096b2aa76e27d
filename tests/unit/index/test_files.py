"""The index of files."""

import copy
import pickle

import pytest

import midepoch as me
from files import write_numbers


@pytest.mark.parametrize("in_memory", [False, True], ids=["mapped", "in-memory"])
@pytest.mark.parametrize("how", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy])
def test_a_dataset_goes_on_where_it_stood_after_pickling(folder, tmp_path, kept, in_memory, how):
    (tmp_path / "file").touch()
    dataset = me.read(folder, index_dir=tmp_path / "file" / "x" if in_memory else kept).shuffle(seed=4).batch(4)
    whole = list(copy.copy(dataset))
    rows = iter(dataset)
    taken = [next(rows) for _ in range(3)]
    assert taken + list(how(dataset)) == whole


def test_a_pickled_dataset_is_small_however_many_blocks_there_are(tmp_path, kept):
    write_numbers(tmp_path / "few.arrow", 0, 10)
    write_numbers(tmp_path / "many.arrow", 0, 4000)
    few, many = (pickle.dumps(me.read(tmp_path / name, index_dir=kept)) for name in ("few.arrow", "many.arrow"))
    assert len(many) <= len(few) + 20
