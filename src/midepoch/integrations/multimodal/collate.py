"""Batches of samples or packs of different lengths: concatenated to one sequence, or padded to the longest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from midepoch._common.checks import count
from midepoch.errors import MissingExtraError
from midepoch.stages.pack.documents import IGNORED, is_token_mask
from midepoch.values.collate import join_others

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "torch", "midepoch.MultiModalCollator") from error

Padding = Literal["flatten", "right", "left"]
FILLERS = {"labels": IGNORED, "document_ids": -1}
PER_TOKEN = ("labels", "position_ids", "document_ids", "token_type_ids")


@dataclass(frozen=True, kw_only=True)
class MultiModalCollator:
    """A ``collate_fn``: samples or packs in, a dict of tensors out.

        loader = midepoch.Loader(dataset, batch_size=8, collate_fn=MultiModalCollator(padding="right", pad=0))

    ``padding="flatten"`` concatenates all tokens to one row, with ``position_ids``, ``document_ids`` and ``cu_seqlens``
    for attention inside each document. "right" and "left" pad every sample to the longest: tokens with ``pad``, labels
    with -100, masks with 0; and add an ``attention_mask``. ``column`` is the column of tokens, which every sample must
    have. Integers become int64.

    Values that are not per token are joined. Arrays (pixel values, grids) are concatenated along their first axis,
    without the samples that have None; numbers become a tensor; any other values become a list.
    """

    padding: Padding = "right"
    pad: int = 0
    column: str = "input_ids"

    def __post_init__(self) -> None:
        if self.padding not in ("flatten", "right", "left"):
            raise ValueError(f"padding is {self.padding!r}; it can be 'flatten', 'right' or 'left'.")

    def __call__(self, items: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> dict[str, Any]:
        """The batch of several samples, or of a single one."""
        items = [items] if isinstance(items, Mapping) else items
        self._check(items)
        names = list(items[0])
        per_token = [
            name for name in names if self._is_per_token(name) and any(item[name] is not None for item in items)
        ]
        columns = {name: [self._tokens(name, item) for item in items] for name in per_token}
        ends = [
            np.asarray(item["cu_seqlens"]) if "cu_seqlens" in item else np.array([0, len(tokens)])
            for item, tokens in zip(items, columns[self.column], strict=True)
        ]
        batch = self._flat(columns, ends) if self.padding == "flatten" else self._padded(columns, ends)
        tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
        others = [name for name in names if name not in (*per_token, "cu_seqlens")]
        return {**tensors, **{name: _joined(name, [item[name] for item in items]) for name in others}}

    def _check(self, items: Sequence[Mapping[str, Any]]) -> None:
        for item in items:
            if not isinstance(item, Mapping) or item.get(self.column) is None:
                facts = f"it has: {', '.join(item)}" if isinstance(item, Mapping) else f"it is a {type(item).__name__}"
                raise ValueError(f"A sample has no {self.column!r}; {facts}.")
            if set(item) != set(items[0]):
                raise ValueError(
                    f"A batch needs samples with the same keys, but one has {list(items[0])} and another {list(item)}. "
                    "Let the processor return the same keys for every sample, with None for a missing value."
                )

    def _is_per_token(self, name: str) -> bool:
        return name == self.column or name in PER_TOKEN or is_token_mask(name)

    def _tokens(self, name: str, item: Mapping[str, Any]) -> Any:
        """A column's values, one per token, as an array."""
        length = len(item[self.column])
        if item[name] is None:
            raise ValueError(
                f"{name} is None in one sample of a batch and not in others. It has a value per token, so all samples "
                "need it."
            )
        values = np.asarray(item[name])
        if values.ndim != 1:
            raise ValueError(
                f"{name} is an array of {values.ndim} dimensions; it must have one, with a value per token. If the "
                "processor returns batches of one sample, take [0]."
            )
        if len(values) != length:
            raise ValueError(
                f"{name} has {count('value', len(values))} and {self.column} has {length:,}; it must have as many."
            )
        return values.astype(np.int64) if values.dtype.kind in "iu" or not length else values

    def _flat(self, columns: dict[str, list[Any]], ends: Sequence[Any]) -> dict[str, Any]:
        """All tokens in one row, without the padding of packs."""
        sizes = np.concatenate([np.diff(bounds) for bounds in ends]).astype(np.int64)
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        flat = {
            name: np.concatenate([values[: end[-1]] for values, end in zip(column, ends, strict=True)])[None]
            for name, column in columns.items()
        }
        flat["position_ids"] = (np.arange(bounds[-1]) - np.repeat(bounds[:-1], sizes))[None]
        flat["document_ids"] = np.repeat(np.arange(len(sizes)), sizes)[None]
        return flat | {"cu_seqlens": bounds.astype(np.int32), "max_seqlen": np.array(sizes.max(initial=0), np.int32)}

    def _padded(self, columns: dict[str, list[Any]], ends: Sequence[Any]) -> dict[str, Any]:
        """One row per sample, padded to the longest."""
        longest = max(map(len, columns[self.column]))
        masks = [
            (np.arange(len(row)) < end[-1]).astype(np.int64)
            for row, end in zip(columns[self.column], ends, strict=True)
        ]
        padded = {}
        for name, rows in ({"attention_mask": masks} | columns).items():
            filler = self.pad if name == self.column else FILLERS.get(name, 0)
            table = np.full((len(rows), longest), filler, np.result_type(*rows))
            for number, row in enumerate(rows):
                start = longest - len(row) if self.padding == "left" else 0
                table[number, start : start + len(row)] = row
            padded[name] = table
        return padded


def _joined(name: str, values: Sequence[Any]) -> Any:
    """Numbers as a tensor, arrays concatenated, any other values as a list; None if no sample has a value."""
    if all(isinstance(value, bool | int | float | np.generic) for value in values):
        return torch.as_tensor(np.array(values))
    return join_others(name, values, "torch")
