"""Putting items, batches and columns together."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from midepoch.values.convert import convert, convert_named, convert_value, holds_numbers
from midepoch.values.forms import Form, torch_module


def collate(items: Sequence[Any], form: Form, ragged: Callable[[str], bool] | None = None) -> Any:
    """One batch of single items: a dict of columns for dicts, a record batch for record batches, else a list.

    Arrays of equal shape are stacked, except in columns for which ``ragged(name)`` is true: those are always lists.
    """
    first = items[0]
    if isinstance(first, pa.RecordBatch):
        return concat_batches(items)
    if not isinstance(first, Mapping):
        return convert(list(items), form)
    for item in items:
        if set(item) != set(first):
            raise ValueError(
                f"A batch needs items with the same columns, but one has {list(first)} and another {list(item)}. "
                "Let the function return the same keys for every item."
            )
    columns = {name: [item[name] for item in items] for name in first}
    stays_list = ragged if ragged is not None and form in ("numpy", "torch") else lambda name: False
    return {
        name: [convert_value(value, form) for value in column]
        if stays_list(name)
        else convert_named(name, column, form)
        for name, column in columns.items()
    }


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One record batch out of several. Types that were inferred from single items, and so differ, are promoted."""
    schema = batches[0].schema
    if all(batch.schema.equals(schema) for batch in batches):
        return pa.concat_batches(batches)
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks().to_batches()[0]


def join_columns(parts: Sequence[Any], form: Form) -> Any:
    """One column out of several parts of it: an array or a tensor if the parts fit, else a list."""
    if all(isinstance(part, np.ndarray) and part.shape[1:] == parts[0].shape[1:] for part in parts):
        return np.concatenate(parts)
    if form == "torch" and all(not isinstance(part, list | np.ndarray) for part in parts):
        shapes = {tuple(part.shape[1:]) for part in parts}
        if len(shapes) == 1:
            return torch_module().cat(list(parts))
    return [value for part in parts for value in part]


def join_others(name: str, values: Sequence[Any], form: Form) -> Any:
    """A column besides the tokens, of several samples: arrays and tensors end to end, anything else as a list.

    Samples with None are left out of the array. If all have None, the result is None.
    """
    present = [value for value in values if value is not None]
    if not present:
        return None
    if not all(hasattr(value, "dtype") and getattr(value, "ndim", 0) and holds_numbers(value) for value in present):
        return list(values)
    shapes = {tuple(value.shape[1:]) for value in present}
    if len(shapes) > 1:
        listed = " and ".join(str(("n", *shape)) for shape in sorted(shapes))
        raise ValueError(
            f"{name!r} has arrays of the shapes {listed} in samples that are joined; only the first dimension may "
            "differ. Let the function before return arrays of one shape, or lists of arrays, which are not joined."
        )
    if all(isinstance(value, np.ndarray) for value in present):
        joined = np.concatenate(present)
        return torch_module().from_numpy(joined) if form == "torch" else joined
    torch = torch_module()
    return torch.cat([torch.as_tensor(value) for value in present])


def standalone(item: Any) -> Any:
    """An item to send to another process: a record batch is copied out of the block it is a slice of.

    Pickling a slice of a record batch sends the memory of the whole block.
    """
    if not isinstance(item, pa.RecordBatch):
        return item
    try:
        return pa.concat_batches([item, item.slice(0, 0)])
    except pa.ArrowException:  # some dictionaries cannot be joined, not even to themselves
        return item
