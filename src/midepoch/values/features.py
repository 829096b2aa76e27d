"""What `datasets` says of columns: its features, read from the Arrow schema that it writes. Without `datasets`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Feature:
    """What one column holds: its kind, as `datasets` calls it ("Value", "ClassLabel", "Image" …), and its parameters.

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
        """How many names a ClassLabel has."""
        return len(self.names)

    def int2str(self, number: int) -> str:
        """The name of a ClassLabel's number."""
        if not 0 <= number < len(self.names):
            raise ValueError(f"{number} is no class: there are {len(self.names)}, numbered from 0.")
        return str(self.names[number])

    def str2int(self, name: str) -> int:
        """The number of a ClassLabel's name."""
        if name not in self.names:
            raise ValueError(f"{name!r} is no class. There are: {', '.join(map(str, self.names))}.")
        return int(self.names.index(name))


Features = dict[str, Any]
"""A Feature for each column; a dict of them for a struct."""


def features_of(schema: pa.Schema) -> Features:
    """The features of a schema's columns; where `datasets` has left none, each is a Value of its Arrow type."""
    known = _written(schema)
    return {field.name: known.get(field.name) or Feature("Value", {"dtype": str(field.type)}) for field in schema}


def _written(schema: pa.Schema) -> Features:
    text = (schema.metadata or {}).get(b"huggingface")
    try:
        told = json.loads(text)["info"]["features"] if text else {}
    except (ValueError, KeyError, TypeError):
        return {}
    return {name: _feature(value) for name, value in told.items()} if isinstance(told, Mapping) else {}


def _feature(told: Any) -> Any:
    """A feature as `datasets` writes it: a dict with its kind, a dict of features for a struct, or a list of one."""
    if isinstance(told, list):
        return Feature("List", {"feature": _feature(told[0])})
    if not isinstance(told, Mapping):
        return told
    if not isinstance(told.get("_type"), str):
        return {name: _feature(value) for name, value in told.items()}
    parameters = {
        name: _feature(value) if name == "feature" else value for name, value in told.items() if name != "_type"
    }
    inner = parameters.get("feature")
    if told["_type"] == "Sequence" and isinstance(inner, Mapping):  # before release 4, written as a struct of lists
        return {name: Feature("List", {"feature": one}) for name, one in inner.items()}
    return Feature(told["_type"], parameters)
