"""Rows as documents: which columns go into packs, flat arrays of these along the tokens, and each document's length."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import Any, ClassVar, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.checks import count
from midepoch._common.hashing import I64
from midepoch.errors import SchemaMismatchError
from midepoch.stages.flow import Context, Flow, RowRun, SingleItem
from midepoch.values.columns import is_list, storage
from midepoch.values.rows import Rows

Values = npt.NDArray[Any]
Made = TypeVar("Made")
LENGTHS_AT_ONCE = 1024
Overlong = Literal["cut", "drop", "alone"]
OverlongRow = Overlong | Literal["error"]
OVERLONG: tuple[str, ...] = get_args(Overlong)
Others = Literal["drop", "join"]
TOKENS = "input_ids"
"""The column of tokens, unless users name another."""
MADE = ("position_ids", "document_ids", "cu_seqlens")
"""The columns that pack itself adds."""
IGNORED = -100
"""The label of tokens that are not learned from: the default ``ignore_index`` of torch's losses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSpec:
    """The parameters that all ways of packing share."""

    length: int
    column: str
    overlong: OverlongRow
    eos: int | None
    pad: int | None
    labels: str | None
    others: Others = "drop"
    number: int
    """The stage's number in its pipeline, from 1."""
    op: ClassVar[str] = "pack"
    """What users call the stage."""
    overlongs: ClassVar[tuple[str, ...]] = OVERLONG

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length is {self.length}; a pack needs room for at least 1 token.")
        if self.overlong not in self.overlongs:
            raise ValueError(f"overlong is {self.overlong!r}; it can be {', '.join(map(repr, self.overlongs))}.")
        if not isinstance(self.column, str) or self.column in (*MADE, "labels"):
            raise ValueError(
                f"column is {self.column!r}; name the column of tokens, which is none that {self.op} makes itself."
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
    def needed(self) -> tuple[str, ...]:
        """The columns that rows must have."""
        return (self.column,) if self.labels is None else (self.column, self.labels)

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

    def places(self, sizes: I64) -> int:
        """The number of tokens that a pack of pieces of these sizes has room for."""
        return self.length

    def describe(self) -> dict[str, Any]:
        """What a state remembers: every parameter, since each changes packs."""
        names = ("length", "column", "overlong", "eos", "pad", "labels")
        others = {"others": self.others} if self.others == "join" else {}
        return {"op": "pack"} | {name: getattr(self, name) for name in names} | others

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise unless rows of this schema can be packed."""
        for name in sorted({*self.needed} - set(schema.names)):
            raise self.missing_column(name, schema.names)
        for one in schema:
            if self.wants(one.name):
                self.check_type(one.name, one.type)

    def check_type(self, name: str, kind: pa.DataType) -> None:
        """Raise unless an Arrow column of this type can be packed under its name."""
        inner = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        inner = inner.value_type if pa.types.is_dictionary(inner) else inner
        value = inner.value_type if is_list(inner) else pa.null()
        is_number = pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_boolean(value)
        self.check_dtype(name, np.dtype(value.to_pandas_dtype() if is_number else object), str(inner))

    def check_dtype(self, name: str, dtype: np.dtype[Any], actual: str | None = None) -> None:
        """Raise unless an array of this dtype can be packed under its column's name."""
        if dtype.kind not in ("biuf" if self.takes_floats(name) else "iu"):
            raise self.wrong_type(name, actual or f"values of the type {dtype}")

    def takes_floats(self, name: str) -> bool:
        """True if the values of a column along the tokens may be floats and booleans."""
        return is_token_mask(name) and name not in (self.column, self.label_source)

    def missing_column(self, name: str, columns: Sequence[str]) -> SchemaMismatchError:
        """The error that a column does not exist."""
        return SchemaMismatchError(
            f"{self.op}: there is no column {name!r}. There are: {', '.join(columns)}. Tokenise first, with map, and "
            f"pass the name of the column of tokens: .map(tokenise).{self.op}(2048, column='input_ids')."
        )

    def wrong_type(self, name: str, actual: str) -> SchemaMismatchError:
        """The error that a column cannot be packed."""
        remedy = (
            "Tokenise first, with map, and name the column of tokens: "
            f".map(tokenise).{self.op}(2048, column='input_ids')."
            if name == self.column
            else f"Its name says that it is packed along the tokens: make it such lists, or drop or rename {name!r}."
        )
        return SchemaMismatchError(
            f"{self.op} needs lists of integers in the column {name!r}, but it holds {actual}. {remedy}"
        )


def is_token_mask(name: str) -> bool:
    """True if a column is a mask of tokens, by its name. Masks of pixels and audio are not."""
    return name.endswith("mask") and not name.startswith(("pixel_", "feature_", "input_features_"))


@dataclass(frozen=True, slots=True)
class Documents:
    """Consecutive documents."""

    columns: dict[str, Values]
    """Of each column along the tokens, the values of all documents in one array."""
    lengths: I64
    """The number of tokens of each document."""
    keys: I64
    """The key of each document."""
    cursors: I64
    """For each document, the cursor of the inputs after it; of a stream, the one before it and the one after it."""
    others: dict[str, list[Any]] = field(default_factory=dict)
    """Of each other column that goes into packs, one value a document."""

    @property
    def begins(self) -> I64:
        """Where each document begins in the columns."""
        return np.cumsum(self.lengths) - self.lengths

    def keep(self, mask: npt.NDArray[np.bool_]) -> "Documents":
        """The documents where ``mask`` is true, without ``others``. Neighbours are copied together."""
        if mask.all():
            return self
        edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
        bounds = np.concatenate([[0], np.cumsum(self.lengths)])[edges].tolist()
        spans = list(zip(bounds[::2], bounds[1::2], strict=True)) or [(0, 0)]
        columns = {
            name: np.concatenate([column[begin:end] for begin, end in spans]) for name, column in self.columns.items()
        }
        return Documents(columns, self.lengths[mask], self.keys[mask], self.cursors[mask])


def join_documents(parts: Sequence[Documents]) -> Documents:
    """Consecutive documents as one, without ``others``. All parts must have the same columns."""
    first = parts[0].columns
    for part in parts:
        if set(part.columns) != set(first):
            raise _other_columns(sorted(first), sorted(part.columns))
        for name, column in part.columns.items():
            if column.dtype != first[name].dtype:
                raise _other_dtypes(name, first[name].dtype, column.dtype)
    return Documents(
        {name: np.concatenate([part.columns[name] for part in parts]) for name in first},
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.cursors for part in parts]),
    )


@dataclass(frozen=True, slots=True)
class DocumentReader:
    """Reads rows as documents. An error names the row."""

    spec: PackSpec
    context: Context

    def runs(self, inputs: Flow, sizes: Iterable[int]) -> Iterator[RowRun]:
        """The rows with the columns that go into packs, not converted. Of single items, ``sizes`` come together.

        Each size is asked for when the first of its items is there.
        """
        for run in inputs.row_runs or ():
            yield RowRun(run.rows.select(self._columns(run.rows.names)), run.cursors, run.keys)
        single_items = inputs.as_single_items() if inputs.row_runs is None else iter(())
        for single, size in zip(single_items, sizes, strict=False):
            yield self._run_of([single, *islice(single_items, size - 1)])

    def _run_of(self, single_items: list[SingleItem]) -> RowRun:
        items, cursors, keys = zip(*single_items, strict=True)
        numbers = np.array(keys, np.int64)
        rows = [_row(item, self.spec.op) for item in items]
        columns = self._each(lambda row: self._columns(list(row)), rows, numbers)
        for number, names in enumerate(columns):
            if names != columns[0]:
                raise self._at_row(_other_columns(columns[0], names, self.spec.op), numbers, number)
        values = {name: [row[name] for row in rows] for name in columns[0]}
        return RowRun(Rows(values), np.array(cursors, np.int64), numbers)

    def read(self, run: RowRun) -> Documents:
        """The documents in a run, each with its end-of-document token. All columns must be as long as the tokens."""
        names = self._token_columns(run.rows.names)
        columns, lengths = {}, {}
        for name in names:
            columns[name], lengths[name] = self._column(name, run)
        tokens = lengths[self.spec.column]
        for name in names:
            for row in np.flatnonzero(lengths[name] != tokens).tolist()[:1]:
                values, expected = count("value", int(lengths[name][row])), count("token", int(tokens[row]))
                error = ValueError(
                    f"{self.spec.op}: {name!r} has {values} and {self.spec.column!r} has {expected} in one row. "
                    f"{name!r} is packed along the tokens: make them equally long."
                )
                raise self._at_row(error, run.keys, row)
        columns, tokens = _with_ends(columns, tokens, self.spec)
        others = {name: list(run.rows.values(name)) for name in run.rows.names if self.spec.joins(name)}
        return Documents(columns, tokens, run.keys, run.cursors, others)

    def lengths(self, inputs: Flow) -> Iterator[tuple[I64, I64]]:
        """The keys of rows, and the number of tokens of each, without the token that ends it.

        Of columns that lie in files, only the offsets are read.
        """
        runs = inputs.row_runs
        for run in runs if runs is not None else self.runs(inputs, repeat(LENGTHS_AT_ONCE)):
            if self.spec.column not in run.rows.names:
                raise self.spec.missing_column(self.spec.column, run.rows.names)
            yield run.keys, self._column(self.spec.column, run)[1]

    def _columns(self, columns: list[str]) -> list[str]:
        """The columns that go into packs: those along the tokens, then those joined as one value a document."""
        return [*self._token_columns(columns), *sorted(filter(self.spec.joins, columns))]

    def _token_columns(self, columns: list[str]) -> list[str]:
        """The columns along the tokens, in an order that does not depend on the row's: tokens, labels, then by name."""
        for name in self.spec.needed:
            if name not in columns:
                raise self.spec.missing_column(name, columns)
        wanted = list(filter(self.spec.wants, columns))
        first = [name for name in dict.fromkeys((self.spec.column, self.spec.label_source)) if name in wanted]
        return [*first, *sorted(name for name in wanted if name not in first)]

    def _column(self, name: str, run: RowRun) -> tuple[Values, I64]:
        """The values of a column of lists, one after the other, and the length of each list."""
        data = run.rows.data
        if isinstance(data, dict):
            return self._from_values(name, run.rows.values(name), run.keys)
        return self._from_arrow(name, data.column(name), run.keys)

    def _from_arrow(self, name: str, column: pa.Array, keys: I64) -> tuple[Values, I64]:
        self.spec.check_type(name, column.type)
        column = storage(column)
        if column.null_count:
            raise self._at_row(_null(name, self.spec.op), keys, _first_null(column))
        lengths, values = list_lengths(column), column.flatten()
        if values.null_count:
            row = np.searchsorted(np.cumsum(lengths), _first_null(values), "right")
            raise self._at_row(_null(name, self.spec.op), keys, int(row))
        return values.to_numpy(zero_copy_only=False), lengths

    def _from_values(self, name: str, column: Any, keys: I64) -> tuple[Values, I64]:
        """The same for lists, arrays or tensors that a function returned."""
        arrays = self._each(lambda value: _array(name, value, self.spec), column, keys)
        filled = [array for array in arrays if len(array)] or arrays[:1]
        for row, array in enumerate(arrays):
            if len(array) and array.dtype != filled[0].dtype:
                error = _other_dtypes(name, filled[0].dtype, array.dtype, self.spec.op)
                raise self._at_row(error, keys, row)
        return np.concatenate(filled), np.fromiter(map(len, arrays), np.int64, len(arrays))

    def _each(self, read: Callable[[Any], Made], rows: Iterable[Any], keys: I64) -> list[Made]:
        """What ``read`` makes of each row. An error names the row."""
        made: list[Made] = []
        try:
            for row in rows:
                made.append(read(row))
        except ValueError as error:
            raise self._at_row(error, keys, len(made)) from None
        return made

    def _at_row(self, error: ValueError, keys: I64, row: int) -> ValueError:
        """The error with a note that names the row."""
        if where := self.context.name_row(self.spec.number, int(keys[row]), single=True):
            error.add_note(f"midepoch: in {self.spec.op}{where}")
        return error


def list_lengths(column: pa.Array) -> I64:
    """The length of each list of a column. Only the offsets are read."""
    if pa.types.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size, np.int64)
    lengths: I64 = column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _first_null(column: pa.Array) -> int:
    return int(column.is_null().index(True).as_py())


def _row(item: Any, op: str) -> Mapping[str, Any]:
    if isinstance(item, pa.RecordBatch) and item.num_rows == 1:
        columns = zip(item.schema.names, item.columns, strict=True)
        return {name: column[0].values if is_list(column.type) else column[0].as_py() for name, column in columns}
    if isinstance(item, Mapping):
        return item
    raise TypeError(f"{op} needs rows, dicts of columns, but got a {type(item).__name__}. Let the map return a dict.")


def _other_dtypes(name: str, one: np.dtype[Any], other: np.dtype[Any], op: str = "pack") -> ValueError:
    """The error that two rows that may share a pack have different dtypes."""
    return ValueError(
        f"{op}: the column {name!r} holds {one} in one row and {other} in another. Let the function before it "
        "return one type for every row: lists, or arrays of one dtype."
    )


def _array(name: str, value: Any, spec: PackSpec) -> Values:
    if value is None:
        raise _null(name, spec.op)
    if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        raise spec.wrong_type(name, f"a {type(value).__name__}")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        raise spec.wrong_type(
            name, f"a {type(value).__name__} of unequal lists, or of numbers beyond 64 bits"
        ) from None
    if array.ndim != 1:
        raise spec.wrong_type(name, f"an array of {array.ndim} dimensions, where each row needs one")
    listed = isinstance(value, list | tuple)
    if len(array) == 0 and (listed or array.dtype.kind in "fO"):
        return np.empty(0, np.int64)
    spec.check_dtype(name, array.dtype)
    # An empty list has no type of its own and becomes int64. Lists of booleans do too, to have the same dtype.
    return array.astype(np.int64) if listed and array.dtype.kind == "b" else array


def _with_ends(columns: dict[str, Values], lengths: I64, spec: PackSpec) -> tuple[dict[str, Values], I64]:
    """The columns under their names in packs, with the token that ends each document, and the lengths with it."""
    named = {spec.column: columns[spec.column]}
    if spec.label_source in columns:
        named["labels"] = _signed(columns[spec.label_source])
    for name, column in named.items():
        for what, token in (("eos", spec.eos), ("pad", spec.pad if name == spec.column else None)):
            if token is not None and not (np.iinfo(column.dtype).min <= token <= np.iinfo(column.dtype).max):
                raise ValueError(
                    f"{spec.op}: {what}={token} does not fit the type of {name!r}, {column.dtype}. Cast it in a map "
                    "before."
                )
    others = {name: column for name, column in columns.items() if name not in (spec.column, spec.label_source)}
    if spec.eos is None:
        return named | others, lengths
    ends = np.cumsum(lengths)
    ended = {name: np.insert(column, ends, spec.eos) for name, column in named.items()}
    for name, column in others.items():
        last = column[np.maximum(ends - 1, 0)] if len(column) else np.zeros(len(ends), np.int64)
        ended[name] = np.insert(column, ends, np.where(lengths > 0, last, 0) if name == "token_type_ids" else 1)
    return ended, lengths + 1


def _signed(labels: Values) -> Values:
    """Labels in a dtype that can hold ``IGNORED``."""
    if labels.dtype.kind != "u":
        return labels
    return labels.astype({1: np.int16, 2: np.int32}.get(labels.dtype.itemsize, np.int64))


def _other_columns(one: list[str], other: list[str], op: str = "pack") -> ValueError:
    return ValueError(
        f"{op}: one row has the columns {one} for it and another {other}. Let the function before it return the same "
        "columns for every row."
    )


def _null(name: str, op: str) -> ValueError:
    return ValueError(f"{op}: the column {name!r} holds a null. Leave out such rows with a filter before {op}.")
