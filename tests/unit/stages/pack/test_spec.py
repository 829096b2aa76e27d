"""What goes into a pack, decided by names and types alone."""

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from midepoch.stages.pack.documents import PackSpec

TOKENS = pa.list_(pa.int32())


def spec(**options):
    defaults = {"length": 8, "column": "input_ids", "overlong": "cut", "eos": None, "pad": None, "labels": None}
    return PackSpec(**(defaults | {"number": 1} | options))


def test_a_columns_name_decides_whether_it_is_packed():
    names = ["input_ids", "labels", "token_type_ids", "attention_mask", "pixel_mask", "url", "position_ids"]
    assert [name for name in names if spec().wants(name)] == names[:4]
    assert [name for name in names if spec(labels="url").wants(name)] == [
        "input_ids",
        "token_type_ids",
        "attention_mask",
        "url",
    ], "the column that is named replaces the one called labels"
    assert not any(spec().joins(name) for name in names)
    joining = spec(others="join", overlong="drop")
    assert [name for name in names if joining.joins(name)] == ["pixel_mask", "url"]


def test_which_arrays_differ_in_length_from_pack_to_pack():
    columns = ("input_ids", "labels", "position_ids", "cu_seqlens", "url")
    assert [spec().is_ragged(name) for name in columns] == [True, True, True, True, False]
    assert [spec(pad=0).is_ragged(name) for name in columns] == [False, False, False, True, False]
    joining = spec(pad=0, others="join", overlong="alone")
    assert [joining.is_ragged(name) for name in columns] == [True] * 5


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"text": pa.string()}, r"no column 'input_ids'\. There are: text\. Tokenise first"),
        ({"input_ids": pa.string()}, "lists of integers in the column 'input_ids', but it holds string. Tokenise"),
        ({"input_ids": pa.list_(pa.float32())}, "it holds list<item: float>"),
        ({"input_ids": TOKENS, "attention_mask": pa.int64()}, "'attention_mask', but it holds int64.*drop or rename"),
        ({"input_ids": TOKENS, "labels": pa.list_(pa.bool_())}, "in the column 'labels'"),
    ],
)
def test_schemas_that_cannot_be_packed(schema, message):
    with pytest.raises(me.SchemaMismatchError, match=message):
        spec().check_schema(pa.schema(schema))


def test_arrays_of_floats_are_masks_or_wrong():
    spec().check_dtype("attention_mask", np.dtype(np.float32))
    with pytest.raises(me.SchemaMismatchError, match="it holds values of the type float32"):
        spec().check_dtype("input_ids", np.dtype(np.float32))
