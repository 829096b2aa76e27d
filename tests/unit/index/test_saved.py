"""Index files on disk: damaged, outdated, unwritable."""

import logging
import os
import time
from pathlib import Path

import midepoch as me
from files import values, write_numbers
from midepoch.index.build import open_index
from midepoch.index.saved import clean


def index_file(kept):
    (path,) = kept.glob("*.index")
    return path


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
    for offset in sorted({*range(0, len(whole), 97), *range(len(whole) - 16, len(whole))}):
        damaged = bytearray(whole)
        damaged[offset] ^= 0x41
        path.write_bytes(damaged)
        scanned.clear()
        assert values(me.read(folder, index_dir=kept)) == list(range(30)), offset
        assert sorted(scanned) == ["0.arrow", "1.arrow", "2.arrow"], offset
        assert path.read_bytes() == whole
    assert "cannot be used" in caplog.text
    assert str(path) in caplog.text


def test_an_index_folder_that_cannot_be_written_is_a_warning_not_an_error(folder, tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with caplog.at_level(logging.WARNING, "midepoch"):
        dataset = me.read(folder, index_dir=blocked / "index")
    assert values(dataset) == list(range(30))
    assert "The index cannot be kept in" in caplog.text
    assert str(blocked / "index") in caplog.text


def test_an_index_of_other_files_under_the_same_name_is_not_used(folder, kept, scanned):
    path = Path(open_index(folder, index_dir=kept).view.saved_at)
    write_numbers(folder / "9.arrow", 0, 1)
    newer = Path(open_index(folder, index_dir=kept).view.saved_at)
    newer.write_bytes(path.read_bytes())
    scanned.clear()
    assert open_index(folder, index_dir=kept).view.names == ["0.arrow", "1.arrow", "2.arrow", "9.arrow"]
    assert scanned == ["9.arrow"]


def test_an_index_that_another_process_just_removed_is_passed_over(folder, kept):
    path = Path(open_index(folder, index_dir=kept).view.saved_at)
    path.with_name(f"{path.name.partition('-')[0]}-gone.index").symlink_to("nowhere")
    write_numbers(folder / "9.arrow", 0, 1)
    assert open_index(folder, index_dir=kept).view.rows == 31


def test_another_format_has_an_index_of_its_own(tmp_path, kept):
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    assert open_index(tmp_path / "a.jsonl", index_dir=kept).view.formats == ["jsonl"]
    assert open_index(tmp_path / "a.jsonl", format="lines", index_dir=kept).view.formats == ["lines"]
    assert open_index(tmp_path / "a.jsonl", index_dir=kept).view.formats == ["jsonl"]
    assert len(list(kept.glob("*.index"))) == 2


def test_indexes_that_nobody_uses_are_removed_and_others_stay(tmp_path):
    now, paths = time.time(), []
    for age in (0, 10, 80, 100, 200):
        path = tmp_path / f"{age}-a.index"
        path.write_bytes(bytes(1000))
        (tmp_path / f"{age}-a-b.kept").touch()
        os.utime(path, (now, now - age * 86400))
        paths.append(path)
    assert clean(tmp_path) == (2, 2000)
    assert [path.name for path in paths if path.exists()] == ["0-a.index", "10-a.index", "80-a.index"]
    assert len(list(tmp_path.glob("*.kept"))) == 3
    assert clean(tmp_path, most_bytes=2500) == (1, 1000)
    assert clean(tmp_path, days=5, keep=paths[1]) == (0, 0)
    assert clean(tmp_path, days=5) == (1, 1000)
    assert clean(tmp_path / "nothing") == (0, 0)


def test_saving_an_index_removes_old_ones_and_opening_one_keeps_it(folder, kept):
    first = Path(open_index(folder, index_dir=kept).view.saved_at)
    os.utime(first, (1, 1))
    old = kept / "other-b.index"
    old.write_bytes(b"")
    os.utime(old, (1, 1))
    open_index(folder, index_dir=kept)
    open_index(folder / "0.arrow", index_dir=kept)
    assert first.exists()
    assert not old.exists()
