"""What read says about the folders that it is given."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from midepoch._common.checks import log_once


@pytest.fixture
def saved(tmp_path):
    """A folder as ``DatasetDict.save_to_disk`` lays it out."""
    for split, rows in {"train": 30, "test": 10}.items():
        (tmp_path / "saved" / split).mkdir(parents=True)
        pq.write_table(pa.table({"id": range(rows)}), tmp_path / "saved" / split / "data-00000-of-00001.parquet")
    (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    return tmp_path / "saved"


def test_a_folder_with_several_saved_splits_warns_that_all_are_read(saved, caplog):
    log_once.cache_clear()
    assert len(me.read(saved)) == 40
    (record,) = caplog.records
    assert "has the splits train, test, saved by datasets" in record.message
    assert str(saved / "train") in record.message


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"splits": 3}', '{"splits": ["train"]}'])
def test_other_folders_do_not(saved, caplog, content):
    log_once.cache_clear()
    path = saved / "dataset_dict.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert len(me.read(str(saved / "train"))) == 30
    assert len(me.read(str(saved / "train" / "*.parquet"))) == 30
    assert len(me.read([saved / "train", saved / "test"])) == 40
    me.read(saved)
    assert not caplog.records
