import copy
import logging
import os
import pickle
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from files import KINDS, numbers, values, write, write_numbers
from midepoch._common import progress_bar
from midepoch._common.files import TRAILER
from midepoch._common.world import default_index_dir
from midepoch.formats import scan_file
from midepoch.index import build as indexing
from midepoch.index.build import open_index
from midepoch.index.index import Index


@pytest.fixture
def scanned(monkeypatch):
    """The names of the files that were scanned, as they are."""
    names = []

    def note(path, format=None):
        names.append(Path(path).name)
        return scan_file(path, format)

    monkeypatch.setattr(indexing, "scan_file", note)
    return names


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "data"
    for number, kind in enumerate(KINDS):
        write_numbers(root / f"{number}.arrow", 10 * number, 10 * number + 10, kind)
    return root


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "kept"


def index_file(kept):
    (path,) = kept.glob("*.index")
    return path


def touch_later(path):
    """Give a file a time of change that differs whatever the clock's resolution."""
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))


def test_the_second_open_scans_nothing(folder, kept, monkeypatch):
    assert values(me.read(folder, index_dir=kept)) == list(range(30))

    def never(path, format=None):
        raise AssertionError(f"{path} was scanned again")

    monkeypatch.setattr(indexing, "scan_file", never)
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


def test_a_grown_folder_scans_only_the_new_file(folder, kept, scanned):
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


def test_sources_have_an_index_each(folder, kept):
    me.read(folder, index_dir=kept)
    me.read(folder / "0.arrow", index_dir=kept)
    me.read([folder / "0.arrow", folder / "1.arrow"], index_dir=kept)
    me.read([folder / "1.arrow", folder / "0.arrow"], index_dir=kept)
    assert len(list(kept.glob("*.index"))) == 4
    assert values(me.read([folder / "1.arrow", folder / "0.arrow"], index_dir=kept)) == [*range(10, 20), *range(10)]


def test_flipped_bytes_are_noticed_and_the_index_built_again(folder, kept, scanned, caplog):
    me.read(folder, index_dir=kept)
    path = index_file(kept)
    whole = path.read_bytes()
    places = sorted({*range(0, len(whole), 97), *range(len(whole) - 16, len(whole))})
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 0x41
        path.write_bytes(damaged)
        scanned.clear()
        assert values(me.read(folder, index_dir=kept)) == list(range(30)), place
        assert sorted(scanned) == ["0.arrow", "1.arrow", "2.arrow"], place
        assert path.read_bytes() == whole
    assert "cannot be used" in caplog.text
    assert str(path) in caplog.text


def test_a_truncated_index_is_built_again(folder, kept, scanned):
    me.read(folder, index_dir=kept)
    path = index_file(kept)
    whole = path.read_bytes()
    for size in (0, 1, 15, 16, 17, 100, len(whole) // 2, len(whole) - 17, len(whole) - 16, len(whole) - 1):
        path.write_bytes(whole[:size])
        scanned.clear()
        assert values(me.read(folder, index_dir=kept)) == list(range(30)), size
        assert len(scanned) == 3, size
        assert path.read_bytes() == whole


def test_an_index_with_bytes_after_it_is_built_again(folder, kept, scanned):
    me.read(folder, index_dir=kept)
    path = index_file(kept)
    path.write_bytes(path.read_bytes() + b"more")
    scanned.clear()
    assert values(me.read(folder, index_dir=kept)) == list(range(30))
    assert len(scanned) == 3


def test_an_index_folder_that_cannot_be_written_is_a_warning_not_an_error(folder, tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with caplog.at_level(logging.WARNING, "midepoch"):
        dataset = me.read(folder, index_dir=blocked / "index")
    assert values(dataset) == list(range(30))
    assert "The index cannot be kept in" in caplog.text
    assert str(blocked / "index") in caplog.text


def test_a_full_disk_leaves_no_half_written_index(folder, kept, monkeypatch, caplog):
    def full(self, content):
        with open(self, "wb") as file:
            file.write(bytes(content)[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        assert values(me.read(folder, index_dir=kept)) == list(range(30))
    assert "No space left on device" in caplog.text
    assert [path.name for path in kept.iterdir() if path.suffix != ".lock"] == []
    assert values(me.read(folder, index_dir=kept)) == list(range(30))


def test_an_unreadable_file_is_named(folder, kept, monkeypatch):
    def refuse(path, format=None):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(indexing, "scan_file", refuse)
    with pytest.raises(me.NoDataError, match=r"\.arrow cannot be read: Permission denied"):
        me.read(folder, index_dir=kept)


@pytest.mark.parametrize("in_memory", [False, True], ids=["mapped", "in-memory"])
def test_an_index_can_be_pickled(folder, tmp_path, kept, in_memory):
    (tmp_path / "file").touch()
    index = open_index(folder, format=None, index_dir=tmp_path / "file" / "x" if in_memory else kept)
    copied = pickle.loads(pickle.dumps(index))
    assert copied.names == index.names
    assert copied.fingerprint == index.fingerprint
    assert copied.block_starts.tolist() == index.block_starts.tolist()
    assert copied.schema(None) == index.schema(None)
    assert copied.path(0) == str(folder / "0.arrow")


@pytest.mark.parametrize("in_memory", [False, True], ids=["mapped", "in-memory"])
@pytest.mark.parametrize("how", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy])
def test_a_dataset_goes_on_where_it_stood_after_pickling(folder, tmp_path, kept, in_memory, how):
    (tmp_path / "file").touch()
    dataset = me.read(folder, index_dir=tmp_path / "file" / "x" if in_memory else kept).shuffle(seed=4).batch(4)
    whole = list(copy.copy(dataset))
    rows = iter(dataset)
    taken = [next(rows) for _ in range(3)]
    assert taken + list(how(dataset)) == whole


def test_a_pickled_index_stays_the_one_it_was_when_files_are_added_and_indexed(folder, kept):
    index = open_index(folder, format=None, index_dir=kept)
    pickled = pickle.dumps(index)
    write_numbers(folder / "9.arrow", 0, 99)
    assert open_index(folder, format=None, index_dir=kept).rows == index.rows + 99
    assert pickle.loads(pickled).names == index.names


def test_old_versions_of_an_index_are_not_kept_for_ever(folder, kept):
    for number in range(15):
        write_numbers(folder / f"new-{number}.arrow", 0, 1)
        open_index(folder, format=None, index_dir=kept)
    assert len(list(kept.glob("*.index"))) < 12


def test_a_pickled_index_is_not_taken_for_another(folder, kept):
    pickled = pickle.dumps(open_index(folder, format=None, index_dir=kept))
    path = index_file(kept)
    write_numbers(folder / "9.arrow", 0, 99)
    open_index(folder, format=None, index_dir=kept)
    newest = max(kept.glob("*.index"), key=lambda one: one.stat().st_mtime_ns)
    newest.replace(path)
    with pytest.raises(me.DataChangedError, match="changed and were indexed anew"):
        pickle.loads(pickled)


def test_a_pickled_index_whose_file_is_gone_says_so(folder, kept):
    pickled = pickle.dumps(me.read(folder, index_dir=kept))
    index_file(kept).unlink()
    with pytest.raises(me.DataChangedError, match=r"The index of .*data is gone from .*\.index"):
        pickle.loads(pickled)


def test_a_pickled_dataset_is_small_however_many_blocks_there_are(tmp_path, kept):
    write_numbers(tmp_path / "few.arrow", 0, 10)
    write_numbers(tmp_path / "many.arrow", 0, 4000)
    few, many = (pickle.dumps(me.read(tmp_path / name, index_dir=kept)) for name in ("few.arrow", "many.arrow"))
    assert len(many) <= len(few) + 20


def test_the_environment_chooses_the_folder(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("MIDEPOCH_INDEX_DIR", str(tmp_path / "chosen"))
    assert default_index_dir() == tmp_path / "chosen"
    me.read(folder)
    assert index_file(tmp_path / "chosen").is_file()
    me.read(folder, index_dir=tmp_path / "argument")
    assert index_file(tmp_path / "argument").is_file()


def test_without_a_choice_the_index_is_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("MIDEPOCH_INDEX_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_index_dir() == tmp_path / "cache" / "midepoch" / "index"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_index_dir() == tmp_path / ".cache" / "midepoch" / "index"


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


def test_rows_and_blocks_are_found_by_number(folder, kept):
    index = open_index(folder, format=None, index_dir=kept)
    assert index.rows == 30
    assert index.file_starts.tolist() == [0, 10, 20, 30]
    assert index.block_starts.tolist() == [0, 4, 8, 10, 14, 18, 20, 24, 28, 30]
    assert [index.locate(row) for row in (0, 9, 10, 29)] == [
        ("0.arrow", 0),
        ("0.arrow", 9),
        ("1.arrow", 0),
        ("2.arrow", 9),
    ]
    file, block = index.block(4)
    assert (file, block.number, block.rows) == (1, 1, 4)
    assert [index.block(number)[0] for number in range(9)] == [0] * 3 + [1] * 3 + [2] * 3


def test_the_row_after_empty_files_and_blocks_is_located_in_the_file_that_has_it(tmp_path, kept):
    (tmp_path / "a.arrow").touch()
    write(tmp_path / "b.arrow", [numbers(0, 0), numbers(0, 2), numbers(0, 0)])
    (tmp_path / "c.arrow").touch()
    write(tmp_path / "d.arrow", [numbers(0, 0), numbers(2, 3)])
    index = open_index(tmp_path, format=None, index_dir=kept)
    assert [index.locate(row) for row in range(3)] == [("b.arrow", 0), ("b.arrow", 1), ("d.arrow", 0)]
    rows = np.arange(3)
    blocks = np.searchsorted(index.block_starts, rows, "right") - 1
    assert [index.block(int(block))[0] for block in blocks] == [1, 1, 3]


def test_an_index_too_short_for_its_trailer_is_refused():
    with pytest.raises(ValueError, match="too short"):
        Index("/", pa.py_buffer(b"short"))


def test_an_index_of_the_previous_layout_is_built_again(folder, kept, scanned):
    me.read(folder, index_dir=kept)
    path = index_file(kept)
    body = path.read_bytes()[: -TRAILER.size]
    path.write_bytes(body + struct.pack("<QII", len(body) // 2, zlib.crc32(body), 0x3244494D))
    scanned.clear()
    assert values(me.read(folder, index_dir=kept)) == list(range(30))
    assert len(scanned) == 3


def test_an_opened_index_is_mapped_not_read(folder, kept):
    me.read(folder, index_dir=kept)
    before = pa.total_allocated_bytes()
    index = Index.load(str(folder), str(index_file(kept)))
    buffer = index._blocks["rows"].chunk(0).buffers()[1]
    assert index._content.address <= buffer.address < index._content.address + index._content.size
    assert pa.total_allocated_bytes() == before
