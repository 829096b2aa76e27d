"""Opening an index: which files are scanned, and which are not."""

import copy
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from socket import gethostname
from types import SimpleNamespace

import pytest

import midepoch as me
from files import values, write_numbers
from midepoch._common import jobs as jobs_module
from midepoch.errors import DataChangedError, DataFormatError, StoreError
from midepoch.formats import scan_file
from midepoch.index import build
from midepoch.index.build import (
    ListedFile,
    ScanOptions,
    StoredBlocks,
    _scan_group,
    open_index,
)


def touch_later(path):
    """Give a file a time of change that differs whatever the clock's resolution."""
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))


def test_the_second_open_scans_nothing(folder, kept, monkeypatch):
    assert values(me.read(folder, index_dir=kept)) == list(range(30))

    def never(path, *options):
        raise AssertionError(f"{path} was scanned again")

    monkeypatch.setattr(build, "scan_file", never)
    assert values(me.read(folder, index_dir=kept)) == list(range(30))
    assert values(me.read(str(folder), index_dir=str(kept), columns=["x"])) == list(range(30))


CHANGES = {
    "changed": (lambda data: write_numbers(data / "1.arrow", 90, 95, "parquet"), [0, 90, 20], ["1.arrow"]),
    "new": (lambda data: write_numbers(data / "00.arrow", 90, 95), [0, 90, 10, 20], ["00.arrow"]),
    "removed": (lambda data: (data / "1.arrow").unlink(), [0, 20], []),
    "renamed": (lambda data: (data / "1.arrow").rename(data / "9.arrow"), [0, 20, 10], ["9.arrow"]),
}


@pytest.mark.parametrize(("change", "firsts", "names"), CHANGES.values(), ids=CHANGES)
def test_only_files_that_changed_are_scanned_again(folder, kept, scanned, change, firsts, names):
    me.read(folder, index_dir=kept)
    scanned.clear()
    change(folder)
    expected = [row for first in firsts for row in range(first, first + (5 if first == 90 else 10))]
    assert values(me.read(folder, index_dir=kept)) == expected
    assert scanned == names


def test_a_file_of_the_same_size_with_another_time_is_scanned_again(folder, kept, scanned):
    me.read(folder, index_dir=kept)
    scanned.clear()
    before = (folder / "0.arrow").stat().st_size
    write_numbers(folder / "0.arrow", 50, 60)
    assert (folder / "0.arrow").stat().st_size == before
    touch_later(folder / "0.arrow")
    assert values(me.read(folder, index_dir=kept))[:10] == list(range(50, 60))
    assert scanned == ["0.arrow"]


def test_a_rescan_reads_all_files_again(folder, kept, scanned):
    open_index(folder, index_dir=kept)
    scanned.clear()
    assert open_index(folder, index_dir=kept, rescan=True).view.rows == 30
    assert sorted(scanned) == ["0.arrow", "1.arrow", "2.arrow"]
    scanned.clear()
    open_index(folder, index_dir=kept)
    assert scanned == []


def test_the_index_of_one_large_text_file_shows_that_it_goes_on(tmp_path, kept, monkeypatch):
    (tmp_path / "rows.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    went_on = threading.Event()

    def slowly(path, *options):
        went_on.wait()  # the scan is as long as it takes until the bar is told
        return scan_file(path, *options)

    monkeypatch.setattr(build, "scan_file", slowly)
    monkeypatch.setattr(jobs_module.ProgressBar, "tick", lambda bar: went_on.set())
    assert values(me.read(tmp_path / "rows.jsonl", index_dir=kept)) == [1, 2]
    assert went_on.is_set()


@pytest.mark.parametrize("files", [1, 5, 200])
def test_workers_of_an_executor_scan_every_file_once(tmp_path, scanned, files):
    ends = list(accumulate([number % 5 + 1 for number in range(files)], initial=0))
    for number, (begin, end) in enumerate(pairwise(ends)):
        write_numbers(tmp_path / "data" / f"{number:03}.arrow", begin, end)
    with ThreadPoolExecutor(3) as executor:
        dataset = me.read(tmp_path / "data", index_dir=tmp_path / "there", executor=executor)
    assert values(dataset) == list(range(ends[-1]))
    assert sorted(scanned) == [f"{number:03}.arrow" for number in range(files)]
    me.read(tmp_path / "data", index_dir=tmp_path / "here")
    (here,), (there,) = (tmp_path / "here").glob("*.index"), (tmp_path / "there").glob("*.index")
    assert here.read_bytes() == there.read_bytes()


def test_what_is_no_executor_is_refused_even_if_nothing_is_scanned(folder, kept):
    me.read(folder, index_dir=kept)
    with pytest.raises(TypeError, match=r"executor is a str; it must be a concurrent\.futures\.Executor"):
        me.read(folder, index_dir=kept, executor="processes")


@pytest.mark.parametrize("change", ["gone", "longer"])
def test_files_that_another_machine_does_not_have_are_explained(folder, change):
    paths = [folder / f"{number}.arrow" for number in range(2)]
    files = [ListedFile(number, str(path), path.stat().st_size) for number, path in enumerate(paths)]
    assert [scan.format for scan in _scan_group(ScanOptions(), None, gethostname(), files)] == ["arrow", "arrow"]
    path = paths[1]
    if change == "gone":
        path.unlink()
        expected = pytest.raises(me.NoDataError, match=r"1\.arrow cannot be read: No such file")
    else:
        path.write_bytes(path.read_bytes() + bytes(8))
        expected = pytest.raises(me.DataChangedError, match=r"1\.arrow has \d+ bytes, but had \d+ when it was listed")
    with expected as here:
        _scan_group(ScanOptions(), None, gethostname(), files)
    assert not hasattr(here.value, "__notes__")
    with expected as elsewhere:
        _scan_group(ScanOptions(), None, "head-node", files)
    assert "the files were listed on head-node" in elsewhere.value.__notes__[0]
    assert "same files at the same paths" in elsewhere.value.__notes__[0]


@pytest.mark.parametrize("in_memory", [False, True], ids=["mapped", "in-memory"])
@pytest.mark.parametrize("how", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy])
def test_a_copied_dataset_has_the_position_of_the_first(folder, tmp_path, kept, in_memory, how):
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


CHANGED = DataChangedError("the object was replaced")
BROKEN = DataFormatError("not a file of this format")
REFUSED = StoreError("403 Forbidden")


@pytest.mark.parametrize(
    ("raised", "of_the_store", "shown"),
    [(CHANGED, None, CHANGED), (BROKEN, CHANGED, CHANGED), (BROKEN, REFUSED, REFUSED), (BROKEN, None, BROKEN)],
)
def test_an_error_of_the_store_hides_that_of_a_format_and_a_replaced_object_loses_its_index(
    raised, of_the_store, shown
):
    def opened():
        raise raised

    forgotten = []
    with pytest.raises(type(shown)) as caught:
        StoredBlocks(SimpleNamespace(failure=of_the_store), opened, lambda: forgotten.append(True))
    assert caught.value is shown
    assert bool(forgotten) == (shown is CHANGED)
