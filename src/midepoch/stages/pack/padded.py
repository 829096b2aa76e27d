"""Padded batches of rows of about the same length, with at most so many tokens: windows of rows, laid out by lengths.

The rows of a window are sorted by length. Each batch takes as many of the longest that are left as fit. The batches of
a window are shuffled by a permutation that follows from the lengths, so neighbours differ in length and all readers
agree. The rows of a batch are in the order of their positions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from midepoch._common.hashing import I64, digest, hash_keys, mix64
from midepoch.stages.counted import TracedRows, added
from midepoch.stages.flow import keys_inside
from midepoch.stages.pack.documents import OVERLONG, PackSpec, Values, is_token_mask
from midepoch.stages.pack.packs import Packs, PlannedPacks
from midepoch.stages.pack.windows import PackWindows, PlannedWindows, assigned, pieces
from midepoch.values.columns import Form
from midepoch.values.convert import convert_named, convert_value, convert_values, holds_numbers

MADE = ("attention_mask", "lengths")
"""The columns that are added. A mask that rows have already is padded, and not made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedSpec(PackSpec):
    """The parameters of padded batches. ``length`` is that of the longest row, in whole multiples, that has a place."""

    max_tokens: int
    max_rows: int | None
    multiple_of: int
    pads: tuple[tuple[str, float], ...]
    """The columns that are padded, each with its value."""
    op: ClassVar[str] = "batch_by_tokens"
    overlongs: ClassVar[tuple[str, ...]] = ("error", *OVERLONG)

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(
                f"max_tokens is {self.max_tokens} and multiple_of {self.multiple_of}; a batch needs room for one row "
                "that is padded to a multiple."
            )
        PackSpec.__post_init__(self)
        for name, fill in self.pads:
            if not isinstance(name, str) or name == "lengths" or isinstance(fill, bool) or not isinstance(fill, Real):
                raise TypeError(
                    f"pad has {fill!r} for {name!r}. Pass the number that pads {self.column!r}, or a dict such as "
                    "{'input_ids': 0, 'labels': -100}."
                )

    @property
    def needed(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.pads)

    def wants(self, name: str) -> bool:
        return name in self.needed or name == "token_type_ids" or is_token_mask(name)

    def joins(self, name: str) -> bool:
        return not self.wants(name) and name != "lengths"

    def is_ragged(self, name: str) -> bool:
        return True

    def takes_floats(self, name: str) -> bool:
        return name != self.column

    def describe(self) -> dict[str, Any]:
        names = ("max_tokens", "column", "overlong", "max_rows", "multiple_of")
        return {"op": self.op} | {name: getattr(self, name) for name in names} | {"pad": dict(self.pads)}

    def padded(self, lengths: I64) -> I64:
        """Lengths, rounded up to multiples."""
        return -(-lengths // self.multiple_of) * self.multiple_of

    def places(self, sizes: I64) -> int:
        return len(sizes) * int(self.padded(sizes.max(keepdims=True))[0])

    def fill_of(self, name: str, values: Values) -> Any:
        """The value that pads a column with values of this dtype. Raises if the dtype cannot hold it."""
        fill = dict(self.pads).get(name, 0)
        if values.dtype.kind != "f" and np.array(fill).astype(values.dtype) != fill:
            raise ValueError(
                f"{self.op}: pad={fill} does not fit the type of {name!r}, {values.dtype}. Cast it in a map before."
            )
        return fill


class PlannedBatches(PlannedWindows):
    """The padded batches of windows of rows, counted."""

    _spec: PaddedSpec

    def keys(self, numbers: I64) -> I64:
        items, inputs, starts, _ = self.inputs_of(numbers)
        unique, places = np.unique(inputs, return_inverse=True)
        return keys_of(self._inputs.keys(unique)[places], _known(starts), items, len(numbers))

    def costs(self, numbers: I64) -> I64:
        items, _, starts, stops = self.inputs_of(numbers)
        longest = np.zeros(len(numbers), np.int64)
        np.maximum.at(longest, items, _known(stops) - _known(starts))
        return np.bincount(items, minlength=len(numbers)) * self._spec.padded(longest) ** 2

    def trace(self, numbers: I64) -> TracedRows:
        traced = super().trace(numbers)  # places are those in a pack
        return traced._replace(places=traced.documents, documents=traced.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatches(PackWindows):
    """Lay out rows of windows in padded batches."""

    spec: PaddedSpec
    makes_batches: ClassVar[bool] = True
    planned: ClassVar[type[PlannedPacks[Any]]] = PlannedBatches

    def lay_out(self, lengths: I64, place: Callable[[int], str]) -> Packs:
        spec = self.spec
        for row in np.flatnonzero(lengths > spec.length).tolist()[: spec.overlong == "error"]:
            raise ValueError(
                f"{spec.op}: a row has {int(lengths[row]):,} tokens, which do not fit into max_tokens="
                f"{spec.max_tokens:,}{place(row)}. Pass a larger max_tokens, or overlong='drop', 'cut' or 'alone'."
            )
        documents, starts, sizes = pieces(lengths, spec.length, spec.overlong)
        falling = np.argsort(-sizes, kind="stable")
        rows = np.diff(self._bounds(spec.padded(sizes[falling]).tolist()))
        seed = np.uint64(int.from_bytes(digest(lengths.astype("<i8").tobytes()), "little"))
        shuffled = mix64(np.arange(len(rows), dtype=np.uint64) + seed).argsort(kind="stable")
        batches = np.empty(len(sizes), np.int64)
        batches[falling] = np.repeat(shuffled, rows)
        return assigned(documents, starts, sizes, batches)

    def _bounds(self, falling: list[int]) -> list[int]:
        """Where each batch begins, of rows of these padded lengths, and where the last one ends."""
        bounds, most = [0], self.spec.max_rows or len(falling)
        while bounds[-1] < len(falling):
            rows = max(1, min(most, self.spec.max_tokens // falling[bounds[-1]]))
            bounds.append(min(len(falling), bounds[-1] + rows))
        return bounds

    def make_pack(self, pieces: Mapping[str, Sequence[Values]], sizes: I64, form: Form) -> dict[str, Any]:
        longest = self.spec.places(sizes) // len(sizes)
        made = (np.arange(longest) < sizes[:, None]).astype(np.int64), sizes.copy()
        batch: dict[str, Any] = dict(zip(MADE, made, strict=True))
        for name, rows in pieces.items():
            batch[name] = np.full((len(rows), longest), self.spec.fill_of(name, rows[0]), rows[0].dtype)
            for place, row in zip(batch[name], rows, strict=True):
                place[: len(row)] = row
        converted: dict[str, Any] = convert_values(batch, form)
        return converted

    def join(self, name: str, values: Sequence[Any], form: Form) -> Any:
        if all(
            holds_numbers(value) and not getattr(value, "ndim", isinstance(value, list | tuple)) for value in values
        ):
            return convert_named(name, values, form)
        return [convert_value(value, form) for value in values]

    def keys(self, of_documents: I64, layout: Packs, keys: I64) -> I64:
        return keys_of(of_documents[layout.documents], layout.starts, layout.owners, len(layout))

    def describe(self) -> dict[str, Any] | None:
        return self.spec.describe() | {"window": self.window}


def _known(tokens: I64 | None) -> I64:
    assert tokens is not None
    return tokens


def keys_of(keys: I64, starts: I64, batches: I64, count: int) -> I64:
    """The keys of batches of pieces of rows with these keys. Later pieces of a row differ."""
    of_pieces, later = keys.copy(), starts > 0
    of_pieces[later] = keys_inside(keys[later], starts[later])
    return added(hash_keys(of_pieces), batches, count).view(np.int64)
