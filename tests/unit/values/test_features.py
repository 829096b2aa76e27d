"""The features that `datasets` writes into the Arrow schema."""

import json

import datasets
import pyarrow as pa
import pytest

from midepoch.values.features import Feature, features_of


def schema_of(features):
    return datasets.Features(features).arrow_schema


def test_values_labels_and_their_parameters():
    features = features_of(
        schema_of(
            {
                "id": datasets.Value("int64"),
                "label": datasets.ClassLabel(names=["no", "yes"]),
                "audio": datasets.Audio(sampling_rate=16_000),
            }
        )
    )
    assert features["id"] == Feature("Value", {"dtype": "int64"})
    assert features["audio"].sampling_rate == 16_000
    label = features["label"]
    assert (label.kind, label.names, label.num_classes) == ("ClassLabel", ["no", "yes"], 2)
    assert [label.int2str(0), label.str2int("yes")] == ["no", 1]


def test_errors_name_the_classes_and_parameters_that_exist():
    label = features_of(schema_of({"label": datasets.ClassLabel(names=["no", "yes"])}))["label"]
    with pytest.raises(ValueError, match="2 is not a class: they are numbered from 0 to 1"):
        label.int2str(2)
    with pytest.raises(ValueError, match="-1 is not a class"):
        label.int2str(-1)
    with pytest.raises(ValueError, match=r"'maybe' is not a class. There are: no, yes"):
        label.str2int("maybe")
    with pytest.raises(AttributeError, match="The feature Value has no 'names'; it has: dtype"):
        _ = Feature("Value", {"dtype": "int64"}).names
    assert not hasattr(label, "__wrapped__")


def test_features_of_older_releases_of_datasets():
    """A list of one, and a Sequence of a struct, which is stored as a struct of lists."""
    written = {
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
    features = features_of(pa.schema(fields, {"huggingface": json.dumps(written)}))
    assert features["a"] == Feature("List", {"feature": Feature("Value", {"dtype": "int64"})})
    assert features["b"] == {"c": Feature("List", {"feature": Feature("Image", {})})}
    assert features["d"].feature.kind == "Image"


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"info": {}}', '{"info": {"features": null}}', '{"info": []}'])
def test_without_features_each_column_is_a_value_of_its_type(text):
    metadata = None if text is None else {"huggingface": text}
    features = features_of(pa.schema([("x", pa.int8()), ("y", pa.list_(pa.string()))], metadata))
    assert features == {
        "x": Feature("Value", {"dtype": "int8"}),
        "y": Feature("Value", {"dtype": "list<item: string>"}),
    }


@pytest.mark.parametrize("levels", [500, 5_000, 100_000])
def test_features_that_are_nested_deeper_than_any_are_ignored(levels):
    nested = "[" * levels + '{"_type": "Value", "dtype": "int64"}' + "]" * levels
    schema = pa.schema({"a": pa.int64()}, {"huggingface": f'{{"info": {{"features": {{"a": {nested}}}}}}}'})
    assert features_of(schema) == {"a": Feature("Value", {"dtype": "int64"})}
    assert "int64" in repr(features_of(schema))
