"""Opening an index: which files are scanned, and which are not."""

import os
import sys

import pytest

import midepoch as me
from files import values, write_numbers
from midepoch._common import progress_bar
from midepoch.index import build
from midepoch.index.build import open_index


def touch_later(path):
    """Give a file a time of change that differs whatever the clock's resolution."""
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))


def test_the_second_open_scans_nothing(folder, kept, monkeypatch):
    assert values(me.read(folder, index_dir=kept)) == list(range(30))

    def never(path, format=None):
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
    def refuse(path, format=None):
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


def test_an_unknown_format_is_refused_with_the_known_ones(folder):
    with pytest.raises(ValueError, match=r"format is 'xml'; it can be 'arrow', 'parquet'"):
        open_index(folder, format="xml")
