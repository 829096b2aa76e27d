"""The union of columns: files that lack a column have nulls in it."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from midepoch.errors import SchemaMismatchError
from midepoch.formats import BlockReader
from midepoch.index.hive import WithConstants
from midepoch.index.index import Index, IndexView
from midepoch.index.promotion import promoted
from midepoch.index.schemas import file_schemas, schema_of
from midepoch.index.wrapped import WrappedIndex


class UnionIndex(WrappedIndex):
    """An index whose files have all columns that any of them has, or those of a given schema."""

    def __init__(self, inner: Index, given: pa.Schema | None = None) -> None:
        super().__init__(inner)
        self._given = given
        if given is not None:
            _check_given(inner.view, given)

    def __reduce__(self) -> tuple[Any, ...]:
        return UnionIndex, (self._inner, self._given)

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        if self._given is None:
            return schema_of(self.view, columns, union=True)
        missing = [name for name in columns or () if name not in self._given.names]
        if missing:
            raise SchemaMismatchError(
                f"The schema has no column {missing[0]!r}. It has: {', '.join(self._given.names)}."
            )
        return self._given if columns is None else pa.schema([self._given.field(name) for name in columns])

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        own = self.view.schemas[file]
        lacking = [field for field in wanted if own is None or field.name not in own.names]
        if not lacking:
            return self._inner.open(file, wanted)
        present = [field for field in wanted if field not in lacking]
        inner = self._inner.open(file, pa.schema(present, wanted.metadata)) if present else None
        return WithConstants(inner, {field.name: pa.scalar(None, field.type) for field in lacking}, wanted)


def _check_given(view: IndexView, given: pa.Schema) -> None:
    """Raise unless the values of every file fit the types of a schema."""
    for one in file_schemas(view):
        for field in given:
            own = one.schema.field(field.name).type if field.name in one.schema.names else pa.null()
            if promoted(own, field.type) != field.type:
                raise SchemaMismatchError(
                    f"The column {field.name!r} is {own} in {one.name}, which does not fit {field.type} in the schema "
                    "without a loss. Pass a schema= with a wider type."
                )
