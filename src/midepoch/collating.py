"""Batches of samples and packs of different lengths: flattened into one sequence, or padded to the longest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from midepoch.errors import MissingExtraError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "torch", "midepoch.MultiModalCollator") from error

Padding = Literal["flatten", "right", "left"]
FILLERS = {"labels": -100, "document_ids": -1}
ALONG_TOKENS = ("labels", "position_ids", "document_ids", "token_type_ids")


@dataclass(frozen=True, kw_only=True)
class MultiModalCollator:
    """A ``collate_fn``: samples or packs in, a dict of tensors out.

    ``padding="flatten"`` lays all tokens in one row, with ``position_ids``, ``document_ids`` and ``cu_seqlens`` over
    the whole of it, for attention that takes documents apart. "right" and "left" pad to the longest with ``pad``,
    labels with -100 and masks with 0, and add an ``attention_mask``. Whatever does not run along the tokens is joined:
    arrays (pixel values, grids) along their first axis, samples that have None left out; anything else is a list.
    """

    padding: Padding = "right"
    pad: int = 0
    column: str = "input_ids"

    def __post_init__(self) -> None:
        if self.padding not in ("flatten", "right", "left"):
            raise ValueError(f"padding is {self.padding!r}; it can be 'flatten', 'right' or 'left'.")

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The batch."""
        names = list(items[0])
        for item in items:
            if set(item) != set(names):
                raise ValueError(
                    f"A batch needs samples with the same keys, but one has {names} and another {list(item)}. Let the "
                    "processor return the same keys for every sample, and None where there is nothing."
                )
            if self.column not in item:
                raise ValueError(f"A sample has no {self.column!r}; it has: {', '.join(item)}.")
        along = [name for name in names if self._runs_along(name)]
        lengths = [len(item[self.column]) for item in items]
        for name in along:
            for item, length in zip(items, lengths, strict=True):
                if len(item[name]) != length:
                    raise ValueError(f"{name} has {len(item[name])} values beside {length} of {self.column}.")
        columns = {name: [_array(item[name]) for item in items] for name in along}
        batch = self._flat(columns, items) if self.padding == "flatten" else self._padded(columns, lengths)
        tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
        others = {name: _joined([item[name] for item in items]) for name in names if name not in (*along, "cu_seqlens")}
        return {**tensors, **others}

    def _runs_along(self, name: str) -> bool:
        return name == self.column or name in ALONG_TOKENS or name.endswith("mask")

    def _flat(self, columns: dict[str, list[Any]], items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Everything in one row. What a pack was padded with is left out."""
        ends = [
            _array(item["cu_seqlens"]) if "cu_seqlens" in item else np.array([0, len(tokens)])
            for item, tokens in zip(items, columns[self.column], strict=True)
        ]
        sizes = np.concatenate([np.diff(one) for one in ends])
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        flat = {
            name: np.concatenate([values[: end[-1]] for values, end in zip(column, ends, strict=True)])[None]
            for name, column in columns.items()
        }
        flat["position_ids"] = (np.arange(bounds[-1]) - np.repeat(bounds[:-1], sizes))[None]
        flat["document_ids"] = np.repeat(np.arange(len(sizes)), sizes)[None]
        return flat | {"cu_seqlens": bounds.astype(np.int32), "max_seqlen": np.array(sizes.max(initial=0), np.int32)}

    def _padded(self, columns: dict[str, list[Any]], lengths: Sequence[int]) -> dict[str, Any]:
        """A row a sample, filled up to the longest."""
        longest = max(lengths)
        columns = dict(columns)
        if "attention_mask" not in columns:
            columns["attention_mask"] = [np.ones(length, np.int64) for length in lengths]
        padded = {}
        for name, rows in columns.items():
            filler = self.pad if name == self.column else FILLERS.get(name, 0)
            table = np.full((len(rows), longest), filler, np.result_type(*rows))
            for number, row in enumerate(rows):
                start = longest - len(row) if self.padding == "left" else 0
                table[number, start : start + len(row)] = row
            padded[name] = table
        return padded


def _array(values: Any) -> Any:
    return values.numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _joined(values: Sequence[Any]) -> Any:
    """Arrays joined along their first axis, numbers as a tensor, anything else as a list; None where there are none."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    if all(isinstance(value, np.ndarray | torch.Tensor) and value.ndim for value in there):
        return torch.cat([torch.as_tensor(value) for value in there])
    if len(there) == len(values) and all(isinstance(value, bool | int | float | np.generic) for value in there):
        return torch.as_tensor(np.array(there))
    return list(values)
