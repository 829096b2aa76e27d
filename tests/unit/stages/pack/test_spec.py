"""What goes into a pack, decided by names and types alone."""

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from midepoch.stages.pack.documents import PackSpec, is_token_mask

TOKENS = pa.list_(pa.int32())


def spec(**options):
    defaults = {"length": 8, "column": "input_ids", "overlong": "cut", "eos": None, "pad": None, "labels": None}
    return PackSpec(**(defaults | {"number": 1} | options))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"length": 0}, ValueError, "length is 0; a pack needs room for at least 1 token"),
        ({"overlong": "keep"}, ValueError, "overlong is 'keep'; it can be 'cut', 'drop', 'alone'"),
        ({"column": "labels"}, ValueError, "column is 'labels'; name the column of tokens"),
        ({"column": 3}, ValueError, "column is 3; name the column of tokens"),
        ({"others": "keep"}, ValueError, "others is 'keep'; it can be 'drop' or 'join'"),
        ({"others": "join"}, ValueError, "no document may be cut"),
        ({"labels": 3}, TypeError, "labels is 3; name a column, or pass None"),
    ],
)
def test_wrong_parameters_raise_when_the_stage_is_built(options, error, message):
    with pytest.raises(error, match=message):
        spec(**options)


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


def test_masks_of_tokens_and_of_other_things():
    assert is_token_mask("attention_mask")
    assert is_token_mask("loss_mask")
    assert not any(
        map(is_token_mask, ("pixel_attention_mask", "feature_attention_mask", "input_features_mask", "masks"))
    )


def test_which_arrays_differ_in_length_from_pack_to_pack():
    columns = ("input_ids", "labels", "position_ids", "cu_seqlens", "url")
    assert [spec().is_ragged(name) for name in columns] == [True, True, True, True, False]
    assert [spec(pad=0).is_ragged(name) for name in columns] == [False, False, False, True, False]
    joining = spec(pad=0, others="join", overlong="alone")
    assert [joining.is_ragged(name) for name in columns] == [True] * 5


def test_a_state_remembers_every_parameter():
    assert spec(eos=2).describe() == {
        "op": "pack",
        "length": 8,
        "column": "input_ids",
        "overlong": "cut",
        "eos": 2,
        "pad": None,
        "labels": None,
    }
    assert spec(others="join", overlong="drop").describe()["others"] == "join"


@pytest.mark.parametrize(
    "schema",
    [
        {"input_ids": TOKENS},
        {"input_ids": pa.large_list(pa.uint16()), "text": pa.string()},
        {"input_ids": pa.list_(pa.int64(), 4), "attention_mask": pa.list_(pa.bool_())},
        {"input_ids": TOKENS, "loss_mask": pa.list_(pa.float32())},
    ],
)
def test_schemas_that_can_be_packed(schema):
    spec().check_schema(pa.schema(schema))


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


def test_a_named_column_of_labels_must_exist():
    with pytest.raises(me.SchemaMismatchError, match="no column 'targets'"):
        spec(labels="targets").check_schema(pa.schema({"input_ids": TOKENS}))


def test_arrays_of_floats_are_masks_or_wrong():
    spec().check_dtype("attention_mask", np.dtype(np.float32))
    with pytest.raises(me.SchemaMismatchError, match="it holds values of the type float32"):
        spec().check_dtype("input_ids", np.dtype(np.float32))
