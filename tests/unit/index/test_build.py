"""Opening an index: which files are scanned, and which are not."""

import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate, pairwise
from types import SimpleNamespace

import pytest

import midepoch as me
from files import values, write_numbers
from midepoch._common import progress_bar
from midepoch.formats import scan_file
from midepoch.index import build
from midepoch.index.build import FileGroup, ScanOptions, open_index
from midepoch.storage.listing import Listing, find
from midepoch.storage.local import FileStamp
from midepoch.storage.store import Store


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


def test_a_changed_file_is_scanned_again_and_only_that_one(folder, kept, scanned):
    me.read(folder, index_dir=kept)
    assert sorted(scanned) == ["0.arrow", "1.arrow", "2.arrow"]
    scanned.clear()
    write_numbers(folder / "1.arrow", 100, 105, "parquet")
    assert values(me.read(folder, index_dir=kept)) == [*range(10), *range(100, 105), *range(20, 30)]
    assert scanned == ["1.arrow"]


def test_a_file_of_the_same_size_with_another_time_is_scanned_again(folder, kept, scanned):
    me.read(folder, index_dir=kept)
    scanned.clear()
    before = (folder / "0.arrow").stat().st_size
    write_numbers(folder / "0.arrow", 50, 60)
    assert (folder / "0.arrow").stat().st_size == before
    touch_later(folder / "0.arrow")
    assert values(me.read(folder, index_dir=kept))[:10] == list(range(50, 60))
    assert scanned == ["0.arrow"]


def test_only_the_new_file_of_a_folder_is_scanned(folder, kept, scanned):
    me.read(folder, index_dir=kept)
    scanned.clear()
    write_numbers(folder / "00.arrow", 90, 95)
    assert values(me.read(folder, index_dir=kept)) == [*range(10), *range(90, 95), *range(10, 30)]
    assert scanned == ["00.arrow"]


def test_a_removed_file_is_noticed_and_nothing_scanned(folder, kept, scanned):
    me.read(folder, index_dir=kept)
    scanned.clear()
    (folder / "1.arrow").unlink()
    assert values(me.read(folder, index_dir=kept)) == [*range(10), *range(20, 30)]
    assert scanned == []


def test_a_renamed_file_is_scanned_under_its_new_name(folder, kept, scanned):
    me.read(folder, index_dir=kept)
    scanned.clear()
    (folder / "1.arrow").rename(folder / "9.arrow")
    assert values(me.read(folder, index_dir=kept)) == [*range(10), *range(20, 30), *range(10, 20)]
    assert scanned == ["9.arrow"]


def test_an_unreadable_file_is_named(folder, kept, monkeypatch):
    def refuse(path, *options):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(build, "scan_file", refuse)
    with pytest.raises(me.NoDataError, match=r"\.arrow cannot be read: Permission denied"):
        me.read(folder, index_dir=kept)


def test_a_terminal_sees_the_progress_of_long_indexing(folder, kept, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(progress_bar, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress_bar, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    me.read(folder, index_dir=kept)
    shown = capsys.readouterr().err
    assert "indexing [##########--------------------] 1/3 files" in shown
    assert shown.endswith("[" + "#" * 30 + "] 3/3 files\n")
    me.read(folder, index_dir=kept)
    assert capsys.readouterr().err == ""


def test_a_rescan_reads_all_files_again(folder, kept, scanned):
    open_index(folder, index_dir=kept)
    scanned.clear()
    assert open_index(folder, index_dir=kept, rescan=True).view.rows == 30
    assert sorted(scanned) == ["0.arrow", "1.arrow", "2.arrow"]
    scanned.clear()
    open_index(folder, index_dir=kept)
    assert scanned == []


@pytest.mark.parametrize(("waits", "kind", "alone"), [(0, "stream", 30), (1, "stream", 2), (0, "parquet", 1)])
def test_threads_scan_arrow_files_only_if_one_thread_waits_for_them(tmp_path, kept, monkeypatch, waits, kind, alone):
    """After the first file of another format, and after a second of waiting, the rest is for the threads."""
    for number in range(30):
        write_numbers(tmp_path / f"{number:02}.arrow", 10 * number, 10 * number + 10, kind)
    here, scanned = threading.get_ident(), []

    def note(path, *options):
        scanned.append(threading.get_ident() == here)
        return scan_file(path, *options)

    monkeypatch.setattr(build, "scan_file", note)
    clock = SimpleNamespace(
        thread_time=lambda: len(scanned) * 0.01, perf_counter=lambda: len(scanned) * (0.01 + 0.04 * waits)
    )
    monkeypatch.setattr(build, "time", clock)
    assert values(me.read(tmp_path, index_dir=kept)) == list(range(300))
    assert scanned == [True] * alone + [False] * (30 - alone)


def test_the_index_of_one_large_text_file_shows_that_it_goes_on(tmp_path, kept, monkeypatch):
    (tmp_path / "rows.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    went_on = threading.Event()

    def slowly(path, *options):
        went_on.wait()  # the scan is as long as it takes until the bar is told
        return scan_file(path, *options)

    monkeypatch.setattr(build, "scan_file", slowly)
    monkeypatch.setattr(progress_bar.ProgressBar, "tick", lambda bar: went_on.set())
    assert values(me.read(tmp_path / "rows.jsonl", index_dir=kept)) == [1, 2]
    assert went_on.is_set()


def test_an_unknown_format_is_refused_with_the_known_ones(folder):
    with pytest.raises(ValueError, match=r"format is 'xml'; it can be 'arrow', 'parquet'"):
        open_index(folder, format="xml")


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


def test_only_changed_files_are_scanned_by_workers(folder, kept, scanned):
    me.read(folder, index_dir=kept)
    scanned.clear()
    write_numbers(folder / "1.arrow", 100, 105, "parquet")
    with ThreadPoolExecutor(1) as executor:
        assert values(me.read(folder, index_dir=kept, executor=executor))[10:15] == list(range(100, 105))
        assert scanned == ["1.arrow"]
        me.read(folder, index_dir=kept, executor=executor)
    assert scanned == ["1.arrow"]


def test_other_front_doors_use_the_index_that_workers_built(tmp_path, kept, scanned):
    write_numbers(tmp_path / "data" / "0.parquet", 0, 10, "parquet")
    with ThreadPoolExecutor(1) as executor:
        me.read(tmp_path / "data", format="parquet", index_dir=kept, executor=executor)
    assert scanned == ["0.parquet"]
    assert values(me.StructuredDataset(tmp_path / "data", "parquet", index_dir=kept)) == list(range(10))
    assert scanned == ["0.parquet"]


def test_what_is_no_executor_is_refused_even_if_nothing_is_scanned(folder, kept):
    me.read(folder, index_dir=kept)
    with pytest.raises(TypeError, match=r"executor is a str; it must be a concurrent\.futures\.Executor"):
        me.read(folder, index_dir=kept, executor="processes")


@pytest.mark.parametrize("change", ["gone", "longer"])
def test_files_that_another_machine_does_not_have_are_explained(folder, change):
    group = FileGroup.of(find(folder, suffixes=[".arrow"]), ScanOptions(), [0, 1])
    assert [scan.format for scan in group.scan()] == ["arrow", "arrow"]
    path = folder / "1.arrow"
    if change == "gone":
        path.unlink()
        expected = pytest.raises(me.NoDataError, match=r"1\.arrow cannot be read: No such file")
    else:
        path.write_bytes(path.read_bytes() + bytes(8))
        expected = pytest.raises(me.DataChangedError, match=r"1\.arrow has \d+ bytes, but had \d+ when it was listed")
    with expected as here:
        group.scan()
    assert not hasattr(here.value, "__notes__")
    with expected as elsewhere:
        replace(group, host="head-node").scan()
    assert "the files were listed on head-node" in elsewhere.value.__notes__[0]
    assert "same files at the same paths" in elsewhere.value.__notes__[0]


def test_files_to_scan_in_a_store_do_not_show_its_secrets():
    store = Store("s3://bucket", {"key": "hidden", "secret": "hidden"})
    listing = Listing("", "s3://bucket", ("a.parquet",), (FileStamp(1, 1),), store)
    group = FileGroup.of(listing, ScanOptions(), [0])
    assert "hidden" not in repr(group)
    assert pickle.loads(pickle.dumps(group)).paths == ["s3://bucket/a.parquet"]
