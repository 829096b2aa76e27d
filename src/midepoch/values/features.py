"""The features that Hugging Face `datasets` writes into the Arrow schema, read without importing `datasets`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

FEATURE = b"midepoch.feature"
"""The key of a column's feature in the metadata of its field."""
MOST_LEVELS = 100
"""More than features are nested. What is nested deeper was not written by `datasets`."""


@dataclass(frozen=True)
class Feature:
    """What one column holds: its kind, as `datasets` names it ("Value", "ClassLabel", "Image" …), and its parameters.

    Parameters are attributes: ``features["label"].names``, ``features["audio"].sampling_rate``.
    """

    kind: str
    parameters: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        parameters = self.__dict__.get("parameters", {})
        if name in parameters:
            return parameters[name]
        kind = self.__dict__.get("kind")
        raise AttributeError(f"The feature {kind} has no {name!r}; it has: {', '.join(parameters) or 'nothing'}.")

    @property
    def num_classes(self) -> int:
        """The number of classes of a ClassLabel."""
        return len(self.names)

    def int2str(self, number: int) -> str:
        """The name of a class of a ClassLabel."""
        if not 0 <= number < len(self.names):
            raise ValueError(f"{number} is not a class: they are numbered from 0 to {len(self.names) - 1}.")
        return str(self.names[number])

    def str2int(self, name: str) -> int:
        """The number of a class of a ClassLabel."""
        if name not in self.names:
            raise ValueError(f"{name!r} is not a class. There are: {', '.join(map(str, self.names))}.")
        return int(self.names.index(name))


Features = dict[str, Any]
"""A Feature for each column. A struct is a dict of them."""


def features_of(schema: pa.Schema) -> Features:
    """The features of a schema's columns. A column that `datasets` did not describe is a Value of its Arrow type."""
    return {field.name: _feature_of(field) for field in with_field_features(schema)}


def with_field_features(schema: pa.Schema) -> pa.Schema:
    """The same columns, each with its own feature, which it keeps if it is selected or renamed."""
    written = _written_features(schema)
    fields = [
        field.with_metadata({FEATURE: json.dumps(written[field.name])}) if field.name in written else field
        for field in schema
    ]
    return pa.schema(fields)


def _feature_of(field: pa.Field) -> Any:
    text = (field.metadata or {}).get(FEATURE)
    return _feature(json.loads(text)) if text else Feature("Value", {"dtype": str(field.type)})


def _written_features(schema: pa.Schema) -> dict[str, Any]:
    """What `datasets` wrote of each column, as JSON."""
    text = (schema.metadata or {}).get(b"huggingface")
    try:
        written = json.loads(text)["info"]["features"] if text else {}
        written = {name: value for name, value in written.items() if value} if isinstance(written, Mapping) else {}
        for value in written.values():
            _feature(value)  # raises if it is no feature
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}
    return written


def _feature(written: Any, level: int = 1) -> Any:
    """A feature from its JSON: a dict with its kind, a dict of features for a struct, or a list of one feature."""
    if level > MOST_LEVELS:
        raise ValueError("nested too deep")
    if isinstance(written, list):
        return Feature("List", {"feature": _feature(written[0], level + 1)})
    if not isinstance(written, Mapping):
        return written
    if not isinstance(written.get("_type"), str):
        return {name: _feature(value, level + 1) for name, value in written.items()}
    parameters = {
        name: _feature(value, level + 1) if name == "feature" else value
        for name, value in written.items()
        if name != "_type"
    }
    inner = parameters.get("feature")
    if written["_type"] == "Sequence" and isinstance(inner, Mapping):  # before release 4, stored as a struct of lists
        return {name: Feature("List", {"feature": feature}) for name, feature in inner.items()}
    return Feature(written["_type"], parameters)
