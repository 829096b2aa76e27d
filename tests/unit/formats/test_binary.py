"""What Arrow and Parquet files have in common: blocks from headers, damage, files without rows."""

import numpy as np
import pytest

import midepoch as me
from files import KINDS, cuts_of, numbers, values, write, write_numbers
from midepoch.formats import scan_file


@pytest.mark.parametrize("kind", ["file", "parquet"])
def test_a_truncated_file_with_a_footer_is_an_error_that_names_it(tmp_path, kind):
    whole = write_numbers(tmp_path / "whole", 0, 12, kind).read_bytes()
    path = tmp_path / "cut.arrow"
    for size in cuts_of(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(me.DataFormatError) as caught:
            me.read(path)
        assert str(path) in str(caught.value), size


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_headers_are_a_named_error_or_scanned(tmp_path, kind):
    whole = write_numbers(tmp_path / "whole", 0, 12, kind).read_bytes()
    path = tmp_path / "damaged"
    random = np.random.default_rng(0)
    messages = []
    for _ in range(400):
        damaged = bytearray(whole)
        for place in random.integers(0, len(whole), 3):
            damaged[place] = random.choice([0, 127, 128, 255])
        path.write_bytes(damaged)
        try:
            scan_file(str(path))
        except me.DataFormatError as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert all(str(path) in one for one in messages)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_files_and_files_without_rows_among_others_are_fine(tmp_path, kind):
    (tmp_path / "a.arrow").touch()
    write_numbers(tmp_path / "b.arrow", 0, 5, kind)
    write(tmp_path / "c.arrow", [numbers(0, 0)], kind)
    write(tmp_path / "d.arrow", [numbers(5, 7), numbers(0, 0), numbers(7, 8)], kind)
    (tmp_path / "e.arrow").touch()
    dataset = me.read(tmp_path)
    assert len(dataset) == 8
    assert values(dataset) == list(range(8))
    for level in ("file", "block", "row"):
        assert sorted(values(me.read(tmp_path).shuffle(seed=2, level=level))) == list(range(8))
    assert len(me.read(tmp_path, format="parquet" if kind == "parquet" else "arrow")) == 8
