"""Errors about values name the row of the file."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import midepoch as me
from files import write
from midepoch.values.rows import RowOrigin, Rows, join_origins

BAD = 13
WRONG = r"The column 'text' has text that is not UTF-8 in row 5 of b\.arrow: invalid start byte, 0xff\."


def texts(first, stop, bad=BAD):
    values = pa.array([b"\xff" if number == bad else b"%d" % number for number in range(first, stop)], pa.binary())
    as_text = pa.StringArray.from_buffers(len(values), values.buffers()[1], values.buffers()[2])
    return pa.record_batch({"id": range(first, stop), "text": as_text})


@pytest.fixture
def dataset(tmp_path):
    """Sixteen rows in two files; the text of row 13, row 5 of the second file, is not UTF-8."""
    write(tmp_path / "a.arrow", [texts(0, 4), texts(4, 8)])
    write(tmp_path / "b.arrow", [texts(8, 12), texts(12, 16)])
    return me.read(tmp_path)


def double(batch):
    return {"twice": [2 * number for number in batch["id"]]}


@pytest.mark.parametrize("form", ["python", "numpy", "torch"])
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_text_that_is_not_utf8_names_file_row_and_column(dataset, form, shuffled):
    rows = dataset.shuffle(seed=1) if shuffled else dataset
    rows = rows.with_format(form)
    pipelines = [rows, rows.batch(4), rows.map(double, batched=True, batch_size=3), rows.filter(lambda row: True)]
    for pipeline in pipelines:
        with pytest.raises(me.DataFormatError, match=WRONG):
            list(pipeline)


def test_rows_that_are_left_out_do_not_shift_the_name(tmp_path, dataset):
    kept = me.read(tmp_path, filters=pc.field("id") >= 6)
    for rows in (kept, kept.shuffle(seed=2), dataset.skip(3), dataset.without([("a.arrow", 2)])):
        with pytest.raises(me.DataFormatError, match=WRONG):
            list(rows)


def test_rows_of_unknown_origin_name_the_column():
    with pytest.raises(me.DataFormatError, match=r"The column 'text' .* in a row .without workers"):
        Rows(texts(8, 16)).columns()


def test_origins_follow_slices_masks_picks_and_joins():
    def locate(number):
        return "file", number

    first, second = RowOrigin(np.arange(4), locate), RowOrigin(np.arange(10, 14), locate)
    joined = join_origins([first.at(slice(1, 3)), second.at(np.array([3, 0]))])
    assert joined is not None
    assert joined.numbers.tolist() == [1, 2, 13, 10]
    assert join_origins([first, None]) is None
    assert join_origins([first, RowOrigin(np.arange(4), lambda number: ("other", number))]) is None
    picked = Rows(texts(8, 16), origin=RowOrigin(np.arange(8), locate)).take(np.array([5, 1]))
    for rows in (picked, picked.slice(0, 1), picked.take(np.array([0])), picked.select(["text"])):
        with pytest.raises(me.DataFormatError, match="in row 5 of file"):
            rows.columns()


TIMES = {
    "before year 1": pa.array([0, -(10**12)], pa.timestamp("s")),
    "after year 9999": pa.array([0, 10**7], pa.date32()),
    "long": pa.array([0, 1 << 60], pa.duration("s")),
}


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_times_that_python_cannot_hold_name_file_row_and_column(tmp_path, times, shuffled):
    write(tmp_path / "a.arrow", pa.record_batch({"id": [0, 1], "when": times}))
    rows = me.read(tmp_path)
    rows = rows.shuffle(seed=1) if shuffled else rows
    for pipeline in (rows, rows.batch(2), rows.map(double, batched=True)):
        with pytest.raises(
            me.DataFormatError, match=r"'when' has a value in row 1 of a\.arrow that Python cannot hold"
        ):
            list(pipeline)
    assert sum(batch.num_rows for batch in rows.with_format("arrow")) == 2
