"""Rows as objects of other libraries: pandas and polars frames made of Arrow, and jax arrays made of NumPy's."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from midepoch.errors import MissingExtraError
from midepoch.values.forms import Form

Library = Literal["pandas", "polars", "jax"]
LIBRARIES: tuple[str, ...] = get_args(Library)


def form_for(library: Library) -> Form:
    """The form of the values that the library's objects are made of."""
    return "numpy" if library == "jax" else "arrow"


def library_module(library: Library) -> Any:
    """The module, imported when it is first needed. Raises with the install command if it is missing."""
    try:
        return import_module("jax.numpy" if library == "jax" else library)
    except ImportError as error:
        raise MissingExtraError(library, library, f"with_format({library!r})") from error


def to_library(item: Any, library: Library) -> Any:
    """Rows as an object of a library. What cannot be converted stays unchanged."""
    module = library_module(library)
    if library == "jax":
        if not isinstance(item, Mapping):
            return item
        return {name: module.asarray(value) if _is_numeric(value) else value for name, value in item.items()}
    if isinstance(item, Mapping) and all(isinstance(value, pa.Array) for value in item.values()):
        item = pa.RecordBatch.from_pydict(dict(item))
    if not isinstance(item, pa.RecordBatch):
        return item
    return item.to_pandas() if library == "pandas" else module.from_arrow(item)


def from_library(result: Any, library: Library) -> Any:
    """What a function returned, with objects of a library as the Arrow rows or NumPy arrays that they are made of."""
    module = library_module(library)
    if library == "jax":
        if isinstance(result, Mapping):
            return {name: from_library(value, library) for name, value in result.items()}
        return np.asarray(result) if isinstance(result, module.ndarray) else result
    if isinstance(result, Mapping):
        return {name: value.to_list() if isinstance(value, module.Series) else value for name, value in result.items()}
    if isinstance(result, module.Series):
        return np.asarray(result)
    if not isinstance(result, module.DataFrame):
        return result
    if library == "pandas":
        return pa.RecordBatch.from_pandas(result, preserve_index=False)
    batches = result.to_arrow().combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], result.to_arrow().schema)


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc"
