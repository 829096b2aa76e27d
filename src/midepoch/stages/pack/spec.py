"""What goes into a pack: which columns, which tokens are added, and what is wrong with rows that do not fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from midepoch.errors import SchemaMismatchError
from midepoch.stages.pack.strategies import OVERLONG, Overlong
from midepoch.values.arrow import is_list

Others = Literal["drop", "join"]
MADE = ("position_ids", "document_ids", "cu_seqlens")
IGNORED = -100
"""The label of what is not learned from, as torch's losses have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What goes into a pack, however the documents are laid out."""

    length: int
    column: str
    overlong: Overlong
    eos: int | None
    pad: int | None
    labels: str | None
    others: Others = "drop"
    number: int
    """The number of the stage in its pipeline."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length is {self.length}; a pack needs room for at least 1 token.")
        if self.overlong not in OVERLONG:
            raise ValueError(f"overlong is {self.overlong!r}; it can be {', '.join(map(repr, OVERLONG))}.")
        if not isinstance(self.column, str) or self.column in (*MADE, "labels"):
            raise ValueError(f"column is {self.column!r}; name the column of tokens, which pack does not make itself.")
        if self.others not in ("drop", "join"):
            raise ValueError(f"others is {self.others!r}; it can be 'drop' or 'join'.")
        if self.others == "join" and self.overlong == "cut":
            raise ValueError(
                "others='join' gives each document's other columns to the pack that has the document, so none may be "
                "cut: pass overlong='drop' or 'alone'."
            )
        if not isinstance(self.labels, str | None):
            raise TypeError(f"labels is {self.labels!r}; name a column, or pass None.")

    @property
    def label_source(self) -> str:
        """The column that labels are taken from."""
        return "labels" if self.labels is None else self.labels

    def wants(self, name: str) -> bool:
        """Whether a column of the rows is packed: by its name alone, never because it happens to be as long."""
        return name in (self.column, self.label_source) or name == "token_type_ids" or is_token_mask(name)

    def joins(self, name: str) -> bool:
        """Whether a column of the rows that is not packed along goes into packs beside the tokens."""
        return self.others == "join" and not self.wants(name) and name not in (*MADE, "labels")

    def is_ragged(self, name: str) -> bool:
        """Whether a column's arrays differ in length from pack to pack."""
        along = name in (*MADE, "labels") or self.wants(name)
        if name == "cu_seqlens" or self.joins(name):
            return True
        return along and (self.pad is None or self.overlong == "alone")

    def describe(self) -> dict[str, Any]:
        """Every parameter, since each changes packs."""
        told = {"op": "pack", "length": self.length, "column": self.column, "overlong": self.overlong}
        joined = {"others": self.others} if self.others == "join" else {}
        return told | {"eos": self.eos, "pad": self.pad, "labels": self.labels} | joined

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise unless rows of a schema can be packed."""
        needed = {self.column} if self.labels is None else {self.column, self.labels}
        for name in sorted(needed - set(schema.names)):
            raise missing(name, schema.names)
        for field in schema:
            if self.wants(field.name):
                self.check_type(field.name, field.type)

    def check_type(self, name: str, kind: pa.DataType) -> None:
        """Raise unless an Arrow column of a type holds what its name says."""
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        of = kind.value_type if is_list(kind) else None
        whole = of is not None and pa.types.is_integer(of)
        if not whole and not (self._is_mask(name) and of is not None and (_is_float(of) or pa.types.is_boolean(of))):
            raise self.wrong(name, str(kind))

    def check_dtype(self, name: str, dtype: np.dtype[Any]) -> None:
        """Raise unless an array holds what its column's name says."""
        if dtype.kind not in ("biuf" if self._is_mask(name) else "iu"):
            raise self.wrong(name, f"values of the type {dtype}")

    def wrong(self, name: str, what: str) -> SchemaMismatchError:
        """The error that a column is not what can be packed."""
        way_out = (
            "Tokenise first, with map, and name the column of tokens: .map(tokenise).pack(2048, column='input_ids')."
            if name == self.column
            else f"It is packed along the tokens because of its name: let it do so, or drop or rename {name!r}."
        )
        return SchemaMismatchError(
            f"pack needs lists of whole numbers in the column {name!r}, but it holds {what}. {way_out}"
        )

    def _is_mask(self, name: str) -> bool:
        return is_token_mask(name) and name not in (self.column, self.label_source)


def is_token_mask(name: str) -> bool:
    """Whether a column is a mask of the tokens, by its name: those of pixels and sounds are not."""
    return name.endswith("mask") and not name.startswith(("pixel_", "feature_", "input_features_"))


def _is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def missing(name: str, there: Sequence[str]) -> SchemaMismatchError:
    """The error that a column is not there."""
    return SchemaMismatchError(
        f"pack: there is no column {name!r}. There are: {', '.join(there)}. Tokenise first, with map, and pass the "
        "name of the column of tokens: .map(tokenise).pack(2048, column='input_ids')."
    )
