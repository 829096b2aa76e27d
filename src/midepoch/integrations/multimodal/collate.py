"""Batches of samples and packs of different lengths: flattened into one sequence, or padded to the longest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from midepoch.errors import MissingExtraError
from midepoch.stages.pack.spec import IGNORED, is_token_mask
from midepoch.values.collate import join_others

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "torch", "midepoch.MultiModalCollator") from error

Padding = Literal["flatten", "right", "left"]
FILLERS = {"labels": IGNORED, "document_ids": -1}
ALONG_TOKENS = ("labels", "position_ids", "document_ids", "token_type_ids")


@dataclass(frozen=True, kw_only=True)
class MultiModalCollator:
    """A ``collate_fn``: samples or packs in, a dict of tensors out.

    ``padding="flatten"`` lays all tokens in one row, with ``position_ids``, ``document_ids`` and ``cu_seqlens`` over
    the whole of it, for attention that takes documents apart. "right" and "left" pad to the longest with ``pad``,
    labels with -100 and masks with 0, and add an ``attention_mask``. Whole numbers become int64. Whatever does not run
    along the tokens is joined: arrays (pixel values, grids) along their first axis, samples that have None left out;
    numbers as a tensor; anything else is a list.
    """

    padding: Padding = "right"
    pad: int = 0
    column: str = "input_ids"

    def __post_init__(self) -> None:
        if self.padding not in ("flatten", "right", "left"):
            raise ValueError(f"padding is {self.padding!r}; it can be 'flatten', 'right' or 'left'.")

    def __call__(self, items: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> dict[str, Any]:
        """The batch of some samples, or of one."""
        items = [items] if isinstance(items, Mapping) else items
        self._check(items)
        names = list(items[0])
        along = [name for name in names if self._runs_along(name) and any(item[name] is not None for item in items)]
        columns = {name: [self._tokens(name, item) for item in items] for name in along}
        ends = [
            np.asarray(item["cu_seqlens"]) if "cu_seqlens" in item else np.array([0, len(tokens)])
            for item, tokens in zip(items, columns[self.column], strict=True)
        ]
        batch = self._flat(columns, ends) if self.padding == "flatten" else self._padded(columns, ends)
        tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
        others = [name for name in names if name not in (*along, "cu_seqlens")]
        return {**tensors, **{name: _joined(name, [item[name] for item in items]) for name in others}}

    def _check(self, items: Sequence[Mapping[str, Any]]) -> None:
        for item in items:
            if not isinstance(item, Mapping) or item.get(self.column) is None:
                told = f"it has: {', '.join(item)}" if isinstance(item, Mapping) else f"it is a {type(item).__name__}"
                raise ValueError(f"A sample has no {self.column!r}; {told}.")
            if set(item) != set(items[0]):
                raise ValueError(
                    f"A batch needs samples with the same keys, but one has {list(items[0])} and another {list(item)}. "
                    "Let the processor return the same keys for every sample, and None where there is nothing."
                )

    def _runs_along(self, name: str) -> bool:
        return name == self.column or name in ALONG_TOKENS or is_token_mask(name)

    def _tokens(self, name: str, item: Mapping[str, Any]) -> Any:
        """A column's values along the tokens, as an array."""
        length = len(item[self.column])
        if item[name] is None:
            raise ValueError(f"{name} is None in one sample and not in others of a batch, and runs along the tokens.")
        values = np.asarray(item[name])
        if values.ndim != 1:
            raise ValueError(
                f"{name} is an array of {values.ndim} dimensions; a sample needs one, along the tokens. Take [0] of "
                "what a processor of batches returns."
            )
        if len(values) != length:
            raise ValueError(f"{name} has {len(values)} values beside {length} of {self.column}.")
        return values.astype(np.int64) if values.dtype.kind in "iu" or not length else values

    def _flat(self, columns: dict[str, list[Any]], ends: Sequence[Any]) -> dict[str, Any]:
        """Everything in one row. What a pack was padded with is left out."""
        sizes = np.concatenate([np.diff(one) for one in ends]).astype(np.int64)
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        flat = {
            name: np.concatenate([values[: end[-1]] for values, end in zip(column, ends, strict=True)])[None]
            for name, column in columns.items()
        }
        flat["position_ids"] = (np.arange(bounds[-1]) - np.repeat(bounds[:-1], sizes))[None]
        flat["document_ids"] = np.repeat(np.arange(len(sizes)), sizes)[None]
        return flat | {"cu_seqlens": bounds.astype(np.int32), "max_seqlen": np.array(sizes.max(initial=0), np.int32)}

    def _padded(self, columns: dict[str, list[Any]], ends: Sequence[Any]) -> dict[str, Any]:
        """A row a sample, filled up to the longest."""
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
    """Numbers as a tensor, arrays joined, anything else as a list; None where there is nothing."""
    if all(isinstance(value, bool | int | float | np.generic) for value in values):
        return torch.as_tensor(np.array(values))
    return join_others(name, values, "torch")
