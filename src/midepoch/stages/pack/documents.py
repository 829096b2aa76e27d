"""Rows as documents: the columns that run along the tokens, laid out flat, and how long each document is."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.types import I64
from midepoch.stages.flow import Context, Emitted, Flow, Run
from midepoch.stages.pack.spec import Recipe, missing
from midepoch.values.arrow import is_list, storage
from midepoch.values.pool import PickedRows
from midepoch.values.rows import Rows

Values = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Documents:
    """Some documents: of each column, the values of all of them one after the other, and their lengths in tokens."""

    columns: dict[str, Values]
    lengths: I64
    others: dict[str, list[Any]] = field(default_factory=dict)
    """Of each column that does not run along the tokens, a value for each document."""

    def keep(self, mask: npt.NDArray[np.bool_]) -> "Documents":
        """Those where ``mask`` is true, put together from stretches that lie together."""
        edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
        bounds = np.concatenate([[0], np.cumsum(self.lengths)])[edges].tolist()
        spans = list(zip(bounds[::2], bounds[1::2], strict=True)) or [(0, 0)]
        kept = {
            name: np.concatenate([column[begin:end] for begin, end in spans]) for name, column in self.columns.items()
        }
        return Documents(kept, self.lengths[mask])


def windows(inputs: Flow, size: int, recipe: Recipe, context: Context) -> Iterator[Run]:
    """The rows in runs of a multiple of ``size``; only the last may have a rest."""
    if inputs.runs is not None:
        return Flow(runs=_wanted(inputs.runs, recipe)).groups(size)
    steps = inputs.each()
    return (_run(some, recipe, context) for some in iter(lambda: list(islice(steps, size)), []))


def stretches(inputs: Flow, delivered: int, recipe: Recipe, context: Context) -> Iterator[Run]:
    """The rows in runs as they come; single ones only until another pack can be filled, since each may cost a map.

    Of the first row ``delivered`` tokens are packed already.
    """
    if inputs.runs is not None:
        yield from _wanted(inputs.runs, recipe)
        return
    some: list[Emitted] = []
    tokens = -delivered
    for step in inputs.each():
        some.append(step)
        tokens += _tokens_in(step[0], recipe)
        if tokens >= recipe.length:
            yield _run(some, recipe, context)
            some, tokens = [], tokens % recipe.length
    if some:
        yield _run(some, recipe, context)


def read_documents(run: Run, recipe: Recipe, context: Context) -> Documents:
    """The documents in some rows, each with its end-of-document token; all columns checked against the tokens."""
    data = run.rows.data.batch() if isinstance(run.rows.data, PickedRows) else run.rows.data
    columns: dict[str, Values] = {}
    lengths: dict[str, I64] = {}
    names = _names(run.rows.names, recipe)
    for name in names:
        if isinstance(data, dict):
            columns[name], lengths[name] = _of_values(name, run.rows.values(name), run, recipe, context)
        else:
            columns[name], lengths[name] = _of_arrow(name, data.column(name), run, recipe, context)
    tokens = lengths[recipe.column]
    for name in names:
        for row in np.flatnonzero(lengths[name] != tokens).tolist()[:1]:
            told = f"{name!r} has {lengths[name][row]:,} values and {recipe.column!r} has {tokens[row]:,} tokens"
            error = ValueError(f"pack: {told} in one row. {name!r} is packed along the tokens: make them equally long.")
            raise _noted(error, row, run, recipe, context)
    documents = _finished(columns, tokens, recipe)
    others = {name: list(run.rows.values(name)) for name in run.rows.names if recipe.joins(name)}
    return replace(documents, others=others)


def _wanted(runs: Iterator[Run], recipe: Recipe) -> Iterator[Run]:
    """The rows with the columns that go into packs and no others, not converted."""
    return (Run(run.rows.select(_kept(run.rows.names, recipe)), run.ends, run.keys) for run in runs)


def _kept(there: list[str], recipe: Recipe) -> list[str]:
    """The columns that go into packs: those that run along the tokens, and maybe the others."""
    names = _names(there, recipe)
    return [*names, *sorted(filter(recipe.joins, there))]


def _names(there: list[str], recipe: Recipe) -> list[str]:
    """The columns that are packed, in an order that does not depend on the row's: tokens, labels, the others."""
    for name in (recipe.column, recipe.labels):
        if name is not None and name not in there:
            raise missing(name, there)
    first = [name for name in dict.fromkeys((recipe.column, recipe.label_source)) if name in there]
    return [*first, *sorted(name for name in there if recipe.wants(name) and name not in first)]


def _run(steps: list[Emitted], recipe: Recipe, context: Context) -> Run:
    """Single items as a run of the columns that are packed, each value as it is."""
    items = [_fields(item) for item, _, _ in steps]
    ends, keys = np.array([step[1] for step in steps], np.int64), np.array([step[2] for step in steps], np.int64)
    run = Run(Rows({}), ends, keys)
    names: list[str] = []
    for row, item in enumerate(items):
        try:
            here = _kept(list(item), recipe)
            names = names or here
            if here != names:
                raise ValueError(
                    f"pack: one row has the columns {names} to pack and another {here}. Let the function before it "
                    "return the same columns for every row."
                )
        except ValueError as error:
            raise _noted(error, row, run, recipe, context) from None
    return Run(Rows({name: [item[name] for item in items] for name in names}), ends, keys)


def _fields(item: Any) -> Mapping[str, Any]:
    if isinstance(item, pa.RecordBatch) and item.num_rows == 1:
        columns = zip(item.schema.names, item.columns, strict=True)
        return {name: one[0].values if is_list(one.type) else one[0].as_py() for name, one in columns}
    if isinstance(item, Mapping):
        return item
    raise TypeError(f"pack needs rows, dicts of columns, but got a {type(item).__name__}. Let the map return a dict.")


def _tokens_in(item: Any, recipe: Recipe) -> int:
    """How many tokens a row adds to a stream; a whole pack's if it is wrong, so that it is read, and told, at once."""
    try:
        tokens = len(_fields(item)[recipe.column]) + (recipe.eos is not None)
    except (KeyError, TypeError):
        return recipe.length
    return 0 if recipe.overlong == "drop" and tokens > recipe.length else tokens


def _of_arrow(name: str, column: pa.Array, run: Run, recipe: Recipe, context: Context) -> tuple[Values, I64]:
    """The values of an Arrow column of lists, a view of its memory, and the length of each list."""
    recipe.check_type(name, column.type)
    column = storage(column)
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise _noted(_null(name), row, run, recipe, context)
    values = column.flatten()
    if pa.types.is_fixed_size_list(column.type):
        lengths = np.full(len(column), column.type.list_size, np.int64)
    else:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    if values.null_count:
        place = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        row = int(np.searchsorted(np.cumsum(lengths), place, "right"))
        raise _noted(_null(name), row, run, recipe, context)
    return values.to_numpy(zero_copy_only=False), lengths


def _of_values(name: str, column: Any, run: Run, recipe: Recipe, context: Context) -> tuple[Values, I64]:
    """The same of lists, arrays or tensors that a function returned."""
    arrays: list[Values] = []
    dtype: np.dtype[Any] | None = None
    for row, value in enumerate(column):
        try:
            array = _array(name, value, recipe)
            if len(array):
                dtype = array.dtype if dtype is None else dtype
                check_same(name, dtype, array.dtype)
        except ValueError as error:
            raise _noted(error, row, run, recipe, context) from None
        arrays.append(array)
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    full = [array for array in arrays if len(array)] or arrays[:1]
    return np.concatenate(full), lengths


def check_same(name: str, one: np.dtype[Any], other: np.dtype[Any]) -> None:
    """Raise if rows that may share a pack have other types."""
    if one != other:
        raise ValueError(
            f"pack: the column {name!r} holds {one} in one row and {other} in another. Let the function before it "
            "return one type for every row: lists, or arrays of one dtype."
        )


def _array(name: str, value: Any, recipe: Recipe) -> Values:
    if value is None:
        raise _null(name)
    if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        raise recipe.wrong(name, f"a {type(value).__name__}")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        raise recipe.wrong(name, f"a {type(value).__name__} of unequal lists, or of numbers beyond 64 bits") from None
    if array.ndim != 1:
        raise recipe.wrong(name, f"an array of {array.ndim} dimensions, where each row needs one")
    listed = isinstance(value, list | tuple)
    if len(array) == 0 and (listed or array.dtype.kind == "f"):
        return np.empty(0, np.int64)
    recipe.check_dtype(name, array.dtype)
    # An empty list does not say what it is a list of: truth values in lists are ints, so that both are of one type.
    return array.astype(np.int64) if listed and array.dtype.kind == "b" else array


def _finished(columns: dict[str, Values], lengths: I64, recipe: Recipe) -> Documents:
    """The columns under the names that packs have, with the token that ends each document."""
    named = {recipe.column: columns[recipe.column]}
    if recipe.label_source in columns:
        named["labels"] = _signed(columns[recipe.label_source])
    for name, column in named.items():
        for what, token in (("eos", recipe.eos), ("pad", recipe.pad if name == recipe.column else None)):
            if token is not None and not (np.iinfo(column.dtype).min <= token <= np.iinfo(column.dtype).max):
                raise ValueError(
                    f"pack: {what}={token} does not fit the type of {name!r}, {column.dtype}. Cast it in a map before."
                )
    others = {name: column for name, column in columns.items() if name not in (recipe.column, recipe.label_source)}
    if recipe.eos is None:
        return Documents(named | others, lengths)
    ends = np.cumsum(lengths)
    ended = {name: np.insert(column, ends, recipe.eos) for name, column in named.items()}
    for name, column in others.items():
        last = column[np.maximum(ends - 1, 0)] if len(column) else np.zeros(len(ends), np.int64)
        ended[name] = np.insert(column, ends, np.where(lengths > 0, last, 0) if name == "token_type_ids" else 1)
    return Documents(ended, lengths + 1)


def _signed(labels: Values) -> Values:
    """Labels in a type that can hold the one that is ignored."""
    if labels.dtype.kind != "u":
        return labels
    return labels.astype({1: np.int16, 2: np.int32}.get(labels.dtype.itemsize, np.int64))


def _null(name: str) -> ValueError:
    return ValueError(f"pack: the column {name!r} holds a null. Leave such rows out before, with filter.")


def _noted(error: ValueError, row: int, run: Run, recipe: Recipe, context: Context) -> ValueError:
    """The error with the row at which it was found."""
    place = context.name_row(recipe.number, int(run.keys[row]), single=True)
    if place:
        error.add_note(f"midepoch: in pack{place}")
    return error
