import pandas as pd
import pyarrow as pa

from midepoch.values.frames import form_for, from_library, to_library

BATCH = pa.RecordBatch.from_pydict({"id": [1, 2]})


def test_there_and_back():
    frame = to_library(BATCH, "pandas")
    assert isinstance(frame, pd.DataFrame)
    assert from_library(frame, "pandas").equals(BATCH)
    assert to_library({"id": BATCH["id"]}, "pandas").equals(frame)
    assert from_library(frame["id"] > 1, "pandas").tolist() == [False, True]
    assert from_library({"more": frame["id"], "n": 1}, "pandas") == {"more": [1, 2], "n": 1}
    assert from_library(3, "pandas") == to_library(3, "pandas") == 3


def test_what_objects_are_made_of():
    assert (form_for("pandas"), form_for("polars"), form_for("jax")) == ("arrow", "arrow", "numpy")
