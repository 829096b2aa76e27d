"""A filter as an Arrow expression: its columns, its description in a state, and the rows for which it is true."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from midepoch._common.hashing import digest
from midepoch._common.lazy import cached_property
from midepoch.errors import SchemaMismatchError
from midepoch.index.schemas import hive_advice

Mask: TypeAlias = npt.NDArray[np.bool_]

SHOWN_CHARACTERS = 400


@dataclass(frozen=True, kw_only=True, eq=False)
class Predicate:
    """An expression over named columns that is true, false or null for each row."""

    expression: pc.Expression
    columns: tuple[str, ...]
    """The columns it needs."""

    @classmethod
    def of(cls, filters: Any, schema: pa.Schema, file: str = "") -> "Predicate":
        """The predicate that ``filters`` states; raises if it cannot be computed from the columns of a schema.

        ``file`` is one of the files, whose folders may be named like a column that is missing.
        """
        expression = _expression(filters)
        text = str(expression)
        named = [field for field in schema if field.name in text]
        kind = _type(expression, named, schema.names, file)
        if not pa.types.is_boolean(kind):
            raise TypeError(
                f"filters must be true or false for each row, but {expression} is of type {kind}. "
                "Compare it with something, such as pc.field('x') > 0."
            )
        # Arrow does not say which columns an expression needs. They are those without which it cannot be computed.
        needed = [field for field in named if not _fits(expression, [one for one in named if one is not field])]
        return cls(expression=expression, columns=tuple(field.name for field in needed))

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """For each row, whether the expression is true. Null counts as false."""
        columns = [batch.column(name) for name in self.columns]
        table = pa.table(columns, list(self.columns)) if columns else pa.table({"": pa.nulls(len(batch))})
        values = _computed(self.expression, table).combine_chunks()
        kept: Mask = (values.fill_null(False) if values.null_count else values).to_numpy(zero_copy_only=False)
        return kept

    def describe(self) -> dict[str, Any]:
        """The expression as text, and a digest of what the text may leave out, such as the end of a long list."""
        text = str(self.expression)
        shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
        return {"filter": shown, "digest": self._digest}

    @cached_property
    def _digest(self) -> str:
        values = repr(_values(self.expression))
        return digest(f"{self.expression}\0{values}".encode()).hex()

    @property
    def names_nan(self) -> bool:
        """True if it compares with NaN, which statistics leave out, or if its values are unknown."""
        values = _values(self.expression)
        return isinstance(values, bytes) or _has_nan(values)

    @property
    def content(self) -> bytes:
        """The whole expression, as bytes that this version of Arrow reads."""
        return _content(self.expression)


def _expression(filters: Any) -> pc.Expression:
    """The expression of ``filters``, which may also be a list of (column, operator, value), as in pyarrow.parquet."""
    if isinstance(filters, pc.Expression):
        return filters
    if isinstance(filters, list | tuple) and filters:
        from pyarrow.parquet import filters_to_expression

        try:
            return filters_to_expression(filters)
        except (ValueError, TypeError, IndexError, pa.ArrowException) as error:
            raise ValueError(
                f"filters is {filters!r}, which is not a list of (column, operator, value): {str(error).rstrip('.')}. "
                "Pass a pyarrow.compute expression, such as pc.field('x') > 0."
            ) from error
    advice = " For a function of rows, use .filter(fn)." if callable(filters) else ""
    raise TypeError(
        f"filters must be a pyarrow.compute expression, such as pc.field('x') > 0, got {filters!r}.{advice}"
    )


def _computed(expression: pc.Expression, table: pa.Table) -> pa.ChunkedArray:
    """The value of the expression for each row, in order."""
    from pyarrow import acero  # it takes a while to load, and only filters need it

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    wanted = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["kept"]), [source])
    return wanted.to_table(use_threads=False).column(0)


def _type(expression: pc.Expression, fields: Sequence[pa.Field], names: Sequence[str], file: str) -> pa.DataType:
    """The type of the values of the expression; an error names the missing column."""
    if "FieldPath(" in str(expression):
        raise ValueError(f"filters names a column by its number: {expression}. Use its name, as in pc.field('x').")
    try:
        return _computed(expression, _empty(fields)).type
    except (pa.ArrowException, ValueError, TypeError) as error:
        missing = re.search(r"No match for (FieldRef\..*?) in ", str(error))
        if missing is not None:
            name = ".".join(re.findall(r"Name\((.*?)\)", missing[1])) or missing[1]
            raise SchemaMismatchError(
                f"filters names the column {name!r}, which does not exist. There are: {', '.join(names)}."
                f"{hive_advice(file, name)}"
            ) from error
        raise SchemaMismatchError(
            f"filters {expression} does not fit the types of these columns: {error}. "
            "Compare a column with values of its type, or cast it, as in pc.field('x').cast('int64')."
        ) from error


def _fits(expression: pc.Expression, fields: Sequence[pa.Field]) -> bool:
    try:
        _computed(expression, _empty(fields))
    except (pa.ArrowException, ValueError, TypeError):
        return False
    return True


def _empty(fields: Sequence[pa.Field]) -> pa.Table:
    """A table of no rows, with at least one column: Arrow cannot compute without columns."""
    return pa.schema(list(fields) or [("", pa.null())]).empty_table()


def _content(expression: pc.Expression) -> bytes:
    return bytes(expression.__reduce__()[1][0])


def _values(expression: pc.Expression) -> Any:
    """All values in an expression, which its text shortens; its bytes if they cannot be found there.

    Arrow serialises an expression as a record batch of its values.
    """
    try:
        with pa.ipc.open_file(pa.py_buffer(_content(expression))) as file:
            return [_plain(column) for column in file.get_batch(0).columns]
    except (pa.ArrowException, IndexError):
        return _content(expression)


def _has_nan(values: Any) -> bool:
    if isinstance(values, list | tuple):
        return any(map(_has_nan, values))
    return isinstance(values, float) and values != values


def _plain(column: pa.Array) -> Any:
    """The values; times as integers, because their Python objects depend on what is installed."""
    kind = column.type
    if pa.types.is_struct(kind):
        return [(kind.field(number).name, _plain(one)) for number, one in enumerate(column.flatten())]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [column.value_lengths().to_pylist(), _plain(column.flatten())]
    if pa.types.is_temporal(kind) and kind.bit_width in (32, 64):
        return [str(kind), column.view(pa.int64() if kind.bit_width == 64 else pa.int32()).to_pylist()]
    return column.to_pylist()
