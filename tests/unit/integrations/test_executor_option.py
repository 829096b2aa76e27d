"""The front doors that build an index take the executor of ``read``."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

import midepoch as me
from files import values, write_numbers


class Watched(ThreadPoolExecutor):
    """An executor that counts its jobs."""

    jobs = 0

    def submit(self, *arguments, **options):
        self.jobs += 1
        return super().submit(*arguments, **options)


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        write_numbers(tmp_path / "data" / f"{number}.arrow", 10 * number, 10 * number + 10)
    return tmp_path / "data"


DOORS = {
    "StructuredDataset": lambda folder, **options: me.StructuredDataset(folder, **options),
    "create_dataloader": lambda folder, **options: me.StructuredDataset.create_dataloader(
        folder, output_format="dict", **options
    )[1],
    "SimpleArrowIterableDataset": lambda folder, **options: me.SimpleArrowIterableDataset(folder, **options),
}


@pytest.mark.parametrize("door", DOORS)
def test_its_workers_scan_the_files_and_it_is_not_kept(folder, door):
    with Watched(2) as executor:
        dataset = DOORS[door](folder, executor=executor)
    assert executor.jobs == 3
    rows = values(pickle.loads(pickle.dumps(dataset)))
    assert (rows[0] if door == "create_dataloader" else rows) == list(range(30)), "that door makes batches"
    with Watched(2) as executor:
        DOORS[door](folder, executor=executor)
    assert executor.jobs == 0, "the index was there"


@pytest.mark.parametrize("door", DOORS)
def test_something_else_is_refused_with_what_to_pass(folder, door):
    with pytest.raises(TypeError, match=r"executor is a int.*client.get_executor\(\)"):
        DOORS[door](folder, executor=4)
