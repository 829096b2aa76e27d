import os

from midepoch.counting import window_counts
from midepoch.counting.window_counts import KEPT_FILES, WindowCounts


def opened(folder, key="a", **changes):
    return WindowCounts(folder, key, **({"lane_rows": 100, "size": 10} | changes))


def test_what_one_process_writes_others_read(tmp_path):
    mine, others = opened(tmp_path), opened(tmp_path)
    assert mine.get(1, 20) is None
    mine.put(1, 20, 7)
    mine.put(2, 100, 0)
    for counts in (mine, others, opened(tmp_path)):
        assert counts.get(1, 20) == 7
        assert counts.get(2, 100) == 0
        assert counts.get(0, 20) is None
        assert counts.get(1, 30) is None


def test_a_count_is_that_of_one_first_row_only(tmp_path):
    counts = opened(tmp_path)
    counts.put(0, 23, 7)
    assert counts.get(0, 23) == 7
    assert [counts.get(0, start) for start in (20, 22, 24, 33)] == [None] * 4
    counts.put(0, 25, 8)
    assert counts.get(0, 23) is None
    assert counts.get(0, 25) == 8


def test_other_keys_are_other_files(tmp_path):
    opened(tmp_path, "a").put(0, 0, 3)
    assert opened(tmp_path, "b").get(0, 0) is None


def test_positions_after_the_lane_are_not_kept(tmp_path):
    counts = opened(tmp_path)
    counts.put(0, 110, 3)
    assert counts.get(0, 110) is None
    assert counts.get(1, 0) is None


def test_counts_that_need_too_many_bits_are_not_kept(tmp_path):
    counts = opened(tmp_path, lane_rows=1 << 30, size=1 << 26)
    counts.put(0, 0, 1 << 28)
    counts.put(0, 1 << 25, 1)
    assert counts.get(0, 0) is None
    assert counts.get(0, 1 << 25) is None
    counts.put(0, 0, (1 << 28) - 2)
    assert counts.get(0, 0) == (1 << 28) - 2


def test_a_damaged_entry_is_unknown(tmp_path):
    counts = opened(tmp_path)
    counts.put(0, 30, 5)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    for bit in range(64):
        damaged = content.copy()
        damaged[24 + bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert opened(tmp_path).get(0, 30) is None
    moved = content[24:32] + content[8:]
    path.write_bytes(moved)
    assert opened(tmp_path).get(0, 0) is None


def test_without_a_folder_counts_stay_in_memory(tmp_path):
    for folder in (None, tmp_path / "missing"):
        counts = opened(folder)
        counts.put(0, 10, 4)
        assert counts.get(0, 10) == 4
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_no_error(tmp_path, monkeypatch):
    counts = opened(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(window_counts.os, "pwrite", full)
    counts.put(0, 10, 4)
    counts.put(0, 20, 4)
    assert counts.get(0, 10) is None


def test_old_files_are_removed(tmp_path):
    for number in range(KEPT_FILES + 5):
        opened(tmp_path, f"{number}").put(0, 0, number)
        os.utime(tmp_path / f"{number}.counts", (number, number))
    opened(tmp_path, "last")
    left = {path.stem for path in tmp_path.iterdir()}
    assert left == {"last", *map(str, range(6, KEPT_FILES + 5))}


def test_a_file_has_8_bytes_a_window(tmp_path):
    opened(tmp_path).put(2, 100, 0)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == 8 * 3 * 11
