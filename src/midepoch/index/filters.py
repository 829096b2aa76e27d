"""Filters: an Arrow expression, the rows for which it is true, and the blocks that can hold such rows.

Arrow decides which blocks those are, from the names of folders and from footers. It gets a fact that holds for all rows
of a block, and says whether the filter can be true then. What it cannot rule out is read.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import and_
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from midepoch._common.checks import cached_property
from midepoch._common.files import exclusive_lock, framed, read_trusted, unframed, write_privately
from midepoch._common.hashing import digest
from midepoch.errors import SchemaMismatchError
from midepoch.formats import FORMATS, Range
from midepoch.index.build import SCAN_THREADS, location_of
from midepoch.index.index import Index
from midepoch.index.schemas import hive_advice

Mask: TypeAlias = npt.NDArray[np.bool_]

SHOWN_CHARACTERS = 400
MAGIC = b"MKP2"
MAX_FLOATS = 3
"""With n columns of floats there are 2**n cases to decide."""
FILES_AT_ONCE = 4096


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Where:
    """The rows for which a predicate is true, and the blocks that can hold such rows."""

    predicate: Predicate
    blocks: Mask
    """For each block of the index, whether it is read."""

    @classmethod
    def of(cls, index: Index, filters: Any) -> "Where":
        """The rows of an index that ``filters`` keeps."""
        schema = _filterable(index)
        predicate = Predicate.of(filters, schema, index.view.names[0])
        needed = pa.schema([schema.field(name) for name in predicate.columns])
        return cls(predicate=predicate, blocks=blocks_that_may_match(index, predicate, needed))

    def describe(self) -> dict[str, Any]:
        """What a state remembers: the predicate, and the number of blocks, on which the order depends."""
        return {"op": "where", **self.predicate.describe(), "blocks": int(self.blocks.sum())}


def _filterable(index: Index) -> pa.Schema:
    """The columns that a filter can use: those that can be read from every file."""
    try:
        return index.schema(None)
    except SchemaMismatchError:
        constants = index.constants(0)
        own = (name for schema in index.view.distinct_schemas for name in schema.names if name not in constants)
        fields = (_field(index, name) for name in dict.fromkeys((*own, *constants)))
        return pa.schema([field for field in fields if field is not None])


def _field(index: Index, name: str) -> pa.Field | None:
    try:
        return index.schema((name,)).field(0)
    except SchemaMismatchError:
        return None


def blocks_that_may_match(index: Index, predicate: Predicate, schema: pa.Schema) -> Mask:
    """For each block, whether it may hold a row that is kept. Saved beside the index, if that is on disk."""
    if index.view.saved_at is None:
        return _decide(index, predicate, schema)
    path = _saved_at(Path(index.view.saved_at), index, predicate, schema)
    blocks = int(index.view.first_blocks[-1])
    kept = _load(path, blocks)
    if kept is None:
        with exclusive_lock(path.with_name(f"{path.name.partition('-')[0]}.lock")):
            kept = _load(path, blocks)
            if kept is None:
                kept = _decide(index, predicate, schema)
                _save(path, kept)
    return kept


def _decide(index: Index, predicate: Predicate, schema: pa.Schema) -> Mask:
    """The blocks of files that their folders do not rule out, less those that their footers rule out."""
    view = index.view
    folders = [name.rpartition("/")[0] for name in view.names]
    example_files = {folder: file for file, folder in enumerate(folders)}
    facts = [_of_values(index.constants(file)) for file in example_files.values()]
    matching_folders = dict(zip(example_files, _may_match(predicate.expression, schema, facts), strict=True))
    kept_files = np.array([matching_folders[folder] for folder in folders], bool)
    kept: Mask = np.repeat(kept_files, np.diff(view.first_blocks))
    if predicate.names_nan:  # Arrow would rule out blocks in which nothing is below NaN
        return kept
    columns = [field for field in schema if field.name not in index.constants(0)]
    readable = {name for name in {*view.formats} & {*FORMATS} if FORMATS[name].ranges is not None}
    files = [file for file in np.flatnonzero(kept_files).tolist() if columns and view.formats[file] in readable]
    with ThreadPoolExecutor(SCAN_THREADS) as pool:
        for start in range(0, len(files), FILES_AT_ONCE):
            batch = files[start : start + FILES_AT_ONCE]
            ranges = pool.map(lambda file: _ranges(index, file, columns), batch)
            blocks = [
                (int(view.first_blocks[file]) + number, _of_values(index.constants(file)), block)
                for file, file_ranges in zip(batch, ranges, strict=True)
                for number, block in enumerate(file_ranges)
            ]
            kept[[number for number, _, _ in blocks]] = _any_case(predicate.expression, schema, columns, blocks)
    return kept


def _ranges(index: Index, file: int, columns: Sequence[pa.Field]) -> Sequence[Mapping[str, Range]]:
    """The statistics of the columns in each block of a file."""
    read = FORMATS[index.view.formats[file]].ranges
    stored = {name: field for field in columns if (name := index.stored_name(file, field.name)) is not None}
    renamed = [field.with_name(name) for name, field in stored.items()]
    ranges = [] if read is None else read(location_of(index, file), renamed)
    index.check(file)
    return [{stored[name].name: one for name, one in block.items()} for block in ranges]


def _any_case(
    expression: pc.Expression,
    schema: pa.Schema,
    columns: Sequence[pa.Field],
    blocks: Sequence[tuple[int, pc.Expression, Mapping[str, Range]]],
) -> Mask:
    """For each block, whether the expression can be true in it.

    Statistics leave out NaN, for which a comparison is false and its opposite true. So with columns of floats there are
    several cases: in each of them, such a column has either only NaN or none.
    """
    floats = [field for field in columns if pa.types.is_floating(field.type)]
    unknown = {field.name for field in floats[MAX_FLOATS:]}
    matches = np.zeros(len(blocks), bool)
    for case in product((False, True), repeat=len(floats[:MAX_FLOATS])):
        nans = [field for field, is_nan in zip(floats, case, strict=False) if is_nan]
        are_nan = [pc.field(field.name) == pa.scalar(float("nan"), field.type) for field in nans]
        left_out = unknown | {field.name for field in nans}
        facts = [
            _all([of_folder, *are_nan, *(_of_range(name, one) for name, one in block.items() if name not in left_out)])
            for _, of_folder, block in blocks
        ]
        matches |= _may_match(expression, schema, facts)
    return matches


def _may_match(expression: pc.Expression, schema: pa.Schema, facts: Sequence[pc.Expression]) -> Mask:
    """For each fact, whether the expression can be true where it holds. No file is opened.

    A fact for which the expression cannot be computed, such as a division by a year that is 0, rules nothing out.
    """
    import pyarrow.dataset as ds  # it takes a while to load
    from pyarrow.fs import LocalFileSystem

    form, system = ds.IpcFileFormat(), LocalFileSystem()
    fragments = [
        form.make_fragment(str(number), system, partition_expression=fact) for number, fact in enumerate(facts)
    ]
    matches = np.zeros(len(facts), bool)
    try:
        for fragment in ds.FileSystemDataset(fragments, schema, form, system).get_fragments(filter=expression):
            matches[int(fragment.path)] = True
    except pa.ArrowException:
        half = len(facts) // 2
        if not half:
            return ~matches
        return np.concatenate([_may_match(expression, schema, some) for some in (facts[:half], facts[half:])])
    return matches


def _of_values(values: Mapping[str, pa.Scalar]) -> pc.Expression:
    """The fact that each of these columns has one value."""
    return _all(
        [pc.field(name) == value if value.is_valid else pc.field(name).is_null() for name, value in values.items()]
    )


def _of_range(name: str, values: Range) -> pc.Expression:
    """The fact that a column has only values that its statistics allow."""
    field = pc.field(name)
    if values.nulls == values.rows:
        return field.is_null()
    bounds = [] if values.low is None else [field >= values.low, field <= values.high]
    if values.nulls == 0:
        return _all(bounds or [field.is_valid()])
    return _all([bound | field.is_null() for bound in bounds])


def _all(facts: Sequence[pc.Expression]) -> pc.Expression:
    return reduce(and_, facts) if facts else pc.scalar(True)


def _saved_at(index_path: Path, index: Index, predicate: Predicate, schema: pa.Schema) -> Path:
    """A file for each index, expression and version of Arrow, because another version may decide differently.

    A table may call other columns by the same names later. Its schema has their ids.
    """
    parts = f"{index.view.checksum} {index.layout} {pa.__version__}\n".encode()
    key = digest(parts, predicate.content, schema.serialize().to_pybytes()).hex()
    return index_path.with_name(f"{index_path.stem}-{key}.kept")


def _load(path: Path, blocks: int) -> Mask | None:
    """The saved mask, unless it is missing or damaged."""
    try:
        bits, _ = unframed(read_trusted(path), MAGIC, path.name)
    except (OSError, ValueError):
        return None
    if len(bits) != -(-blocks // 8):
        return None
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=blocks).astype(bool)


def _save(path: Path, kept: Mask) -> None:
    """Save the mask. If it cannot be written, it is decided again next time.

    Its checksum covers its name, so that the mask of one filter is not taken for that of another.
    """
    with contextlib.suppress(OSError):
        write_privately(path, framed(np.packbits(kept).tobytes(), MAGIC, path.name))
