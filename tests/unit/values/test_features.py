"""Features as `datasets` writes them into the Arrow schema, read without it."""

import json
import pickle

import datasets
import pyarrow as pa
import pytest

from midepoch.values.features import Feature, features_of


def schema_of(features):
    return datasets.Features(features).arrow_schema


def test_values_labels_and_their_parameters():
    found = features_of(
        schema_of(
            {
                "id": datasets.Value("int64"),
                "label": datasets.ClassLabel(names=["no", "yes"]),
                "audio": datasets.Audio(sampling_rate=16_000),
            }
        )
    )
    assert found["id"] == Feature("Value", {"dtype": "int64"})
    assert found["audio"].sampling_rate == 16_000
    label = found["label"]
    assert (label.kind, label.names, label.num_classes) == ("ClassLabel", ["no", "yes"], 2)
    assert [label.int2str(0), label.str2int("yes")] == ["no", 1]


def test_errors_name_what_there_is():
    label = features_of(schema_of({"label": datasets.ClassLabel(names=["no", "yes"])}))["label"]
    with pytest.raises(ValueError, match="2 is no class: there are 2, numbered from 0"):
        label.int2str(2)
    with pytest.raises(ValueError, match="-1 is no class"):
        label.int2str(-1)
    with pytest.raises(ValueError, match=r"'maybe' is no class. There are: no, yes"):
        label.str2int("maybe")
    with pytest.raises(AttributeError, match="The feature Value has no 'names'; it has: dtype"):
        _ = Feature("Value", {"dtype": "int64"}).names
    assert not hasattr(label, "__wrapped__")


def test_lists_and_structs_nest():
    found = features_of(
        schema_of(
            {
                "images": datasets.List(datasets.Image()),
                "turns": datasets.List({"who": datasets.Value("string"), "image": datasets.Image(mode="RGB")}),
                "meta": {"source": datasets.Value("string"), "_type": datasets.Value("string")},
                "large": datasets.LargeList(datasets.Value("int32")),
                "grid": datasets.Array2D((2, 3), "int8"),
            }
        )
    )
    assert found["images"].feature.kind == "Image"
    assert found["turns"].feature["image"].mode == "RGB"
    assert set(found["meta"]) == {"source", "_type"}
    assert found["large"].feature.dtype == "int32"
    assert found["grid"].shape == [2, 3]


def test_what_older_releases_wrote():
    """A list of one, and a Sequence of a struct, which is stored as a struct of lists."""
    told = {
        "info": {
            "features": {
                "a": [{"dtype": "int64", "_type": "Value"}],
                "b": {"feature": {"c": {"_type": "Image"}}, "_type": "Sequence"},
                "d": {"feature": {"_type": "Image"}, "_type": "Sequence"},
            }
        }
    }
    fields = [
        ("a", pa.list_(pa.int64())),
        ("b", pa.struct([("c", pa.list_(pa.binary()))])),
        ("d", pa.list_(pa.binary())),
    ]
    found = features_of(pa.schema(fields, {"huggingface": json.dumps(told)}))
    assert found["a"] == Feature("List", {"feature": Feature("Value", {"dtype": "int64"})})
    assert found["b"] == {"c": Feature("List", {"feature": Feature("Image", {})})}
    assert found["d"].feature.kind == "Image"


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"info": {}}', '{"info": {"features": null}}', '{"info": []}'])
def test_without_features_each_column_is_a_value_of_its_type(text):
    metadata = None if text is None else {"huggingface": text}
    found = features_of(pa.schema([("x", pa.int8()), ("y", pa.list_(pa.string()))], metadata))
    assert found == {"x": Feature("Value", {"dtype": "int8"}), "y": Feature("Value", {"dtype": "list<item: string>"})}


def test_features_follow_the_columns_that_are_read():
    schema = schema_of({"id": datasets.Value("int64"), "label": datasets.ClassLabel(names=["a"])})
    chosen = pa.schema([schema.field("label"), pa.field("new", pa.int8())], schema.metadata)
    assert [(name, one.kind) for name, one in features_of(chosen).items()] == [
        ("label", "ClassLabel"),
        ("new", "Value"),
    ]


def test_features_survive_pickling():
    found = features_of(schema_of({"label": datasets.ClassLabel(names=["no", "yes"])}))
    assert pickle.loads(pickle.dumps(found)) == found
