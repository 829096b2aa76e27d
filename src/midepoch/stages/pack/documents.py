"""Rows as documents: flat arrays of the columns along the tokens, and the length of each document."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.checks import count
from midepoch._common.hashing import I64
from midepoch.errors import SurveyMismatchError
from midepoch.stages.counted import CountedItems
from midepoch.stages.flow import Context, Flow, RowRun, SingleItem, concat_runs
from midepoch.stages.pack.spec import PackSpec, missing_column
from midepoch.values.arrow import is_list, storage
from midepoch.values.rows import Rows

Values = npt.NDArray[Any]
Layout = TypeVar("Layout")
LENGTHS_AT_ONCE = 1024
NO_TOKENS = "pack got no tokens to pack, because documents are empty, or too long with overlong='drop',"


@dataclass(frozen=True, slots=True)
class Documents:
    """Consecutive documents."""

    columns: dict[str, Values]
    """Of each column along the tokens, the values of all documents in one array."""
    lengths: I64
    """The number of tokens of each document."""
    keys: I64
    """The key of each document."""
    others: dict[str, list[Any]] = field(default_factory=dict)
    """Of each other column that goes into packs, one value a document."""

    @property
    def begins(self) -> I64:
        """Where each document begins in the columns."""
        return np.cumsum(self.lengths) - self.lengths

    def keep(self, mask: npt.NDArray[np.bool_]) -> "Documents":
        """The documents where ``mask`` is true, without ``others``. Neighbours are copied together."""
        edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
        bounds = np.concatenate([[0], np.cumsum(self.lengths)])[edges].tolist()
        spans = list(zip(bounds[::2], bounds[1::2], strict=True)) or [(0, 0)]
        kept = {
            name: np.concatenate([column[begin:end] for begin, end in spans]) for name, column in self.columns.items()
        }
        return Documents(kept, self.lengths[mask], self.keys[mask])

    def after(self, first: int) -> "Documents":
        """The documents from ``first`` on, without ``others``."""
        begin = int(self.lengths[:first].sum())
        columns = {name: column[begin:] for name, column in self.columns.items()}
        return Documents(columns, self.lengths[first:], self.keys[first:])


def join_documents(parts: Sequence[Documents]) -> Documents:
    """Consecutive documents as one, without ``others``. All parts must have the same columns."""
    first = parts[0].columns
    for part in parts:
        if set(part.columns) != set(first):
            raise _other_columns(sorted(first), sorted(part.columns))
        for name, column in part.columns.items():
            _check_same_dtype(name, first[name].dtype, column.dtype)
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in first}
    lengths = np.concatenate([part.lengths for part in parts])
    return Documents(columns, lengths, np.concatenate([part.keys for part in parts]))


def runs_of_windows(inputs: Flow, size: int, spec: PackSpec, context: Context) -> Iterator[RowRun]:
    """The rows in runs of a multiple of ``size`` rows; only the last run may have a remainder."""
    runs = _pack_runs(inputs, lambda waiting: len(waiting) == size, spec, context)
    return Flow(row_runs=runs).as_row_runs(size)


def runs_of_stream(inputs: Flow, delivered: int, spec: PackSpec, context: Context) -> Iterator[RowRun]:
    """The rows in runs of any length, when ``delivered`` tokens of the first row are packed already.

    Single items may each cost a call of a user function, so they are read only until they fill another pack.
    """
    tokens = -delivered

    def is_enough(waiting: list[SingleItem]) -> bool:
        nonlocal tokens
        tokens += _tokens_in(waiting[-1][0], spec)
        enough = tokens >= spec.length
        tokens = tokens % spec.length if enough else tokens
        return enough

    return _pack_runs(inputs, is_enough, spec, context)


def _pack_runs(
    inputs: Flow, is_enough: Callable[[list[SingleItem]], bool], spec: PackSpec, context: Context
) -> Iterator[RowRun]:
    """The rows with the columns that go into packs, not converted. Single items wait until they are enough."""
    for run in inputs.row_runs or ():
        yield RowRun(run.rows.select(_pack_columns(run.rows.names, spec)), run.cursors, run.keys)
    waiting: list[SingleItem] = []
    for single in inputs.as_single_items() if inputs.row_runs is None else ():
        waiting.append(single)
        if is_enough(waiting):
            yield _run_of(waiting, spec, context)
            waiting = []
    if waiting:
        yield _run_of(waiting, spec, context)


def _run_of(single_items: list[SingleItem], spec: PackSpec, context: Context) -> RowRun:
    """Single items as a run of the columns that go into packs, with their values unchanged."""
    rows = [_row(item) for item, _, _ in single_items]
    cursors = np.array([cursor for _, cursor, _ in single_items], np.int64)
    keys = np.array([key for _, _, key in single_items], np.int64)
    names: list[str] = []
    for number, row in enumerate(rows):
        try:
            row_names = _pack_columns(list(row), spec)
            names = names or row_names
            if row_names != names:
                raise _other_columns(names, row_names)
        except ValueError as error:
            raise _at_row(error, number, RowRun(Rows({}), cursors, keys), spec, context) from None
    return RowRun(Rows({name: [row[name] for row in rows] for name in names}), cursors, keys)


def read_documents(run: RowRun, spec: PackSpec, context: Context) -> Documents:
    """The documents in a run, each with its end-of-document token. All columns must be as long as the tokens."""
    data = run.rows.data
    columns: dict[str, Values] = {}
    lengths: dict[str, I64] = {}
    names = _token_columns(run.rows.names, spec)
    for name in names:
        if isinstance(data, dict):
            columns[name], lengths[name] = _from_values(name, run.rows.values(name), run, spec, context)
        else:
            columns[name], lengths[name] = _from_arrow(name, data.column(name), run, spec, context)
    tokens = lengths[spec.column]
    for name in names:
        for row in np.flatnonzero(lengths[name] != tokens).tolist()[:1]:
            values = count("value", int(lengths[name][row]))
            error = ValueError(
                f"pack: {name!r} has {values} and {spec.column!r} has {count('token', int(tokens[row]))} in one row. "
                f"{name!r} is packed along the tokens: make them equally long."
            )
            raise _at_row(error, row, run, spec, context)
    columns, tokens = _with_ends(columns, tokens, spec)
    others = {name: list(run.rows.values(name)) for name in run.rows.names if spec.joins(name)}
    return Documents(columns, tokens, run.keys, others)


class Plan(NamedTuple, Generic[Layout]):
    """Packs that are planned, and the documents that they need."""

    documents: I64
    """The numbers of the documents among the inputs. They rise."""
    lengths: I64
    """Their lengths, as the survey says."""
    layout: Layout


def read_planned(
    inputs: CountedItems, opened: Any, planned: Iterator[Iterable[Plan[Layout]]], spec: PackSpec, context: Context
) -> tuple[Flow, Iterator[tuple[Layout, Documents]]]:
    """The flow of the documents of planned packs, and each layout with its documents, compared with the survey.

    Where there are no plans, the next ones are not known yet.
    """
    begun: deque[Plan[Layout]] = deque()

    def wanted() -> Iterator[I64]:
        for plans in planned:
            numbers = np.empty(0, np.int64)
            for plan in plans:
                begun.append(plan)
                yield (numbers := plan.documents)
            if not len(numbers):
                yield numbers

    flow = inputs.flow(opened, wanted())
    return flow, _read_plans(flow, begun, inputs, spec, context)


def _read_plans(
    flow: Flow, begun: deque[Plan[Layout]], inputs: CountedItems, spec: PackSpec, context: Context
) -> Iterator[tuple[Layout, Documents]]:
    """The layouts with their documents. The flow adds plans as it asks for rows: no plan comes before a row."""
    waiting: list[RowRun] = []
    for run in _pack_runs(flow, lambda items: len(items) == len(begun[0].documents), spec, context):
        waiting.append(run)
        while begun and sum(map(len, waiting)) >= (needed := len(begun[0].documents)):
            plan, joined = begun.popleft(), waiting[0] if len(waiting) == 1 else concat_runs(waiting)
            documents = read_documents(joined.slice(0, needed), spec, context)
            _compare_lengths(plan, documents.lengths, inputs, spec)
            yield plan.layout, documents
            waiting = [joined.slice(needed, len(joined))] if len(joined) > needed else []


def _compare_lengths(plan: Plan[Any], lengths: I64, inputs: CountedItems, spec: PackSpec) -> None:
    """Raise if a document does not have the length that the survey says."""
    for number in np.flatnonzero(lengths != plan.lengths).tolist()[:1]:
        end = spec.eos is not None
        row = inputs.trace(plan.documents[number : number + 1])
        raise SurveyMismatchError(
            f"pack: a document has {count('token', int(lengths[number]) - end)}, and the survey says "
            f"{int(plan.lengths[number]) - end:,}, at row {row.rows[0]:,} of {row.files[0]}. A function before pack "
            "has changed, or does not always return the same. After a change pass another version to "
            "survey(version=...)."
        )


def document_lengths(inputs: Flow, spec: PackSpec, context: Context) -> Iterator[tuple[I64, I64]]:
    """The keys of rows, and the number of tokens of each, without the token that ends it.

    Of columns that lie in files, only the offsets are read.
    """
    runs = inputs.row_runs
    if runs is None:
        runs = _pack_runs(inputs, lambda waiting: len(waiting) == LENGTHS_AT_ONCE, spec, context)
    for run in runs:
        if spec.column not in run.rows.names:
            raise missing_column(spec.column, run.rows.names)
        data = run.rows.data
        if isinstance(data, dict):
            lengths = _lengths_of(data[spec.column], run, spec, context)
        else:
            _, lengths = _from_arrow(spec.column, data.column(spec.column), run, spec, context)
        yield run.keys, lengths


def _lengths_of(values: Iterable[Any], run: RowRun, spec: PackSpec, context: Context) -> I64:
    """The lengths of the values of the column of tokens."""
    lengths = np.empty(len(run), np.int64)
    for row, value in enumerate(values):
        try:
            _check_value(spec.column, value, spec)
        except ValueError as error:
            raise _at_row(error, row, run, spec, context) from None
        lengths[row] = len(value)
    return lengths


def _pack_columns(columns: list[str], spec: PackSpec) -> list[str]:
    """The columns that go into packs: those along the tokens, then those joined as one value a document."""
    return [*_token_columns(columns, spec), *sorted(filter(spec.joins, columns))]


def _token_columns(columns: list[str], spec: PackSpec) -> list[str]:
    """The columns along the tokens, in an order that does not depend on the row's: tokens, labels, then by name."""
    for name in (spec.column, spec.labels):
        if name is not None and name not in columns:
            raise missing_column(name, columns)
    first = [name for name in dict.fromkeys((spec.column, spec.label_source)) if name in columns]
    return [*first, *sorted(name for name in columns if spec.wants(name) and name not in first)]


def _row(item: Any) -> Mapping[str, Any]:
    if isinstance(item, pa.RecordBatch) and item.num_rows == 1:
        columns = zip(item.schema.names, item.columns, strict=True)
        return {name: column[0].values if is_list(column.type) else column[0].as_py() for name, column in columns}
    if isinstance(item, Mapping):
        return item
    raise TypeError(f"pack needs rows, dicts of columns, but got a {type(item).__name__}. Let the map return a dict.")


def _tokens_in(item: Any, spec: PackSpec) -> int:
    """The tokens that a row adds to a stream. A wrong row counts as a full pack, so that it is read and raises now."""
    try:
        tokens = len(_row(item)[spec.column]) + (spec.eos is not None)
    except (KeyError, TypeError):
        return spec.length
    return 0 if spec.overlong == "drop" and tokens > spec.length else tokens


def _from_arrow(name: str, column: pa.Array, run: RowRun, spec: PackSpec, context: Context) -> tuple[Values, I64]:
    """The values of an Arrow column of lists, as a view of its memory, and the length of each list."""
    spec.check_type(name, column.type)
    column = storage(column)
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise _at_row(_null(name), row, run, spec, context)
    values = column.flatten()
    if pa.types.is_fixed_size_list(column.type):
        lengths = np.full(len(column), column.type.list_size, np.int64)
    else:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    if values.null_count:
        first_null = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        row = int(np.searchsorted(np.cumsum(lengths), first_null, "right"))
        raise _at_row(_null(name), row, run, spec, context)
    return values.to_numpy(zero_copy_only=False), lengths


def _from_values(name: str, column: Any, run: RowRun, spec: PackSpec, context: Context) -> tuple[Values, I64]:
    """The same for lists, arrays or tensors that a function returned."""
    arrays: list[Values] = []
    dtype: np.dtype[Any] | None = None
    for row, value in enumerate(column):
        try:
            array = _array(name, value, spec)
            if len(array):
                dtype = array.dtype if dtype is None else dtype
                _check_same_dtype(name, dtype, array.dtype)
        except ValueError as error:
            raise _at_row(error, row, run, spec, context) from None
        arrays.append(array)
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    full = [array for array in arrays if len(array)] or arrays[:1]
    return np.concatenate(full), lengths


def _check_same_dtype(name: str, one: np.dtype[Any], other: np.dtype[Any]) -> None:
    """Raise if two rows that may share a pack have different dtypes."""
    if one != other:
        raise ValueError(
            f"pack: the column {name!r} holds {one} in one row and {other} in another. Let the function before it "
            "return one type for every row: lists, or arrays of one dtype."
        )


def _check_value(name: str, value: Any, spec: PackSpec) -> None:
    """Raise unless a value from a function can be a document."""
    if value is None:
        raise _null(name)
    if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        raise spec.wrong_type(name, f"a {type(value).__name__}")


def _array(name: str, value: Any, spec: PackSpec) -> Values:
    _check_value(name, value, spec)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        raise spec.wrong_type(
            name, f"a {type(value).__name__} of unequal lists, or of numbers beyond 64 bits"
        ) from None
    if array.ndim != 1:
        raise spec.wrong_type(name, f"an array of {array.ndim} dimensions, where each row needs one")
    listed = isinstance(value, list | tuple)
    if len(array) == 0 and (listed or array.dtype.kind == "f"):
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
                    f"pack: {what}={token} does not fit the type of {name!r}, {column.dtype}. Cast it in a map before."
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


def _other_columns(one: list[str], other: list[str]) -> ValueError:
    return ValueError(
        f"pack: one row has the columns {one} to pack and another {other}. Let the function before it return the same "
        "columns for every row."
    )


def _null(name: str) -> ValueError:
    return ValueError(f"pack: the column {name!r} holds a null. Leave out such rows with a filter before pack.")


def _at_row(error: ValueError, row: int, run: RowRun, spec: PackSpec, context: Context) -> ValueError:
    """The error with a note that names the row."""
    where = context.name_row(spec.number, int(run.keys[row]), single=True)
    if where:
        error.add_note(f"midepoch: in pack{where}")
    return error
