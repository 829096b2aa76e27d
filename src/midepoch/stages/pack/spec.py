"""What goes into a pack: which columns, which added tokens, and which rows are refused."""

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
"""The columns that pack itself adds."""
IGNORED = -100
"""The label of tokens that are not learned from: the default ``ignore_index`` of torch's losses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSpec:
    """The parameters that all ways of packing share."""

    length: int
    column: str
    overlong: Overlong
    eos: int | None
    pad: int | None
    labels: str | None
    others: Others = "drop"
    number: int
    """The stage's number in its pipeline, from 1."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length is {self.length}; a pack needs room for at least 1 token.")
        if self.overlong not in OVERLONG:
            raise ValueError(f"overlong is {self.overlong!r}; it can be {', '.join(map(repr, OVERLONG))}.")
        if not isinstance(self.column, str) or self.column in (*MADE, "labels"):
            raise ValueError(
                f"column is {self.column!r}; name the column of tokens, which is none that pack makes itself."
            )
        if self.others not in ("drop", "join"):
            raise ValueError(f"others is {self.others!r}; it can be 'drop' or 'join'.")
        if self.others == "join" and self.overlong == "cut":
            raise ValueError(
                "others='join' adds a document's other columns to the one pack that holds it, so no document may be "
                "cut: pass overlong='drop' or 'alone'."
            )
        if not isinstance(self.labels, str | None):
            raise TypeError(f"labels is {self.labels!r}; name a column, or pass None.")

    @property
    def label_source(self) -> str:
        """The column from which labels are taken."""
        return "labels" if self.labels is None else self.labels

    def wants(self, name: str) -> bool:
        """True if a column is packed along the tokens. Its name decides, never its length."""
        return name in (self.column, self.label_source) or name == "token_type_ids" or is_token_mask(name)

    def joins(self, name: str) -> bool:
        """True if a column goes into packs as one value a document."""
        return self.others == "join" and not self.wants(name) and name not in (*MADE, "labels")

    def is_ragged(self, name: str) -> bool:
        """True if a column's arrays differ in length from pack to pack."""
        if name == "cu_seqlens" or self.joins(name):
            return True
        along_tokens = name in (*MADE, "labels") or self.wants(name)
        return along_tokens and (self.pad is None or self.overlong == "alone")

    def describe(self) -> dict[str, Any]:
        """What a state remembers: every parameter, since each changes packs."""
        names = ("length", "column", "overlong", "eos", "pad", "labels")
        others = {"others": self.others} if self.others == "join" else {}
        return {"op": "pack"} | {name: getattr(self, name) for name in names} | others

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise unless rows of this schema can be packed."""
        needed = {self.column} if self.labels is None else {self.column, self.labels}
        for name in sorted(needed - set(schema.names)):
            raise missing_column(name, schema.names)
        for field in schema:
            if self.wants(field.name):
                self.check_type(field.name, field.type)

    def check_type(self, name: str, kind: pa.DataType) -> None:
        """Raise unless an Arrow column of this type can be packed under its name."""
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        value = kind.value_type if is_list(kind) else pa.null()
        if pa.types.is_integer(value):
            return
        if not (self._is_mask(name) and (pa.types.is_floating(value) or pa.types.is_boolean(value))):
            raise self.wrong_type(name, str(kind))

    def check_dtype(self, name: str, dtype: np.dtype[Any]) -> None:
        """Raise unless an array of this dtype can be packed under its column's name."""
        if dtype.kind not in ("biuf" if self._is_mask(name) else "iu"):
            raise self.wrong_type(name, f"values of the type {dtype}")

    def wrong_type(self, name: str, actual: str) -> SchemaMismatchError:
        """The error that a column cannot be packed."""
        remedy = (
            "Tokenise first, with map, and name the column of tokens: .map(tokenise).pack(2048, column='input_ids')."
            if name == self.column
            else f"Its name says that it is packed along the tokens: make it such lists, or drop or rename {name!r}."
        )
        return SchemaMismatchError(
            f"pack needs lists of integers in the column {name!r}, but it holds {actual}. {remedy}"
        )

    def _is_mask(self, name: str) -> bool:
        return is_token_mask(name) and name not in (self.column, self.label_source)


def is_token_mask(name: str) -> bool:
    """True if a column is a mask of tokens, by its name. Masks of pixels and audio are not."""
    return name.endswith("mask") and not name.startswith(("pixel_", "feature_", "input_features_"))


def missing_column(name: str, columns: Sequence[str]) -> SchemaMismatchError:
    """The error that a column does not exist."""
    return SchemaMismatchError(
        f"pack: there is no column {name!r}. There are: {', '.join(columns)}. Tokenise first, with map, and pass the "
        "name of the column of tokens: .map(tokenise).pack(2048, column='input_ids')."
    )
