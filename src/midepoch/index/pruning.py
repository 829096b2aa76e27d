"""Which blocks of a data set can hold a row that a predicate keeps, from what folders and footers say of them.

Arrow itself decides: of each block it is told what holds for all rows, and says whether the expression can be true
then. What it cannot rule out is read.
"""

import contextlib
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import and_
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from midepoch._common.files import exclusive_lock, framed, unframed, write_atomically
from midepoch._common.hashing import digest
from midepoch.errors import SchemaMismatchError
from midepoch.formats import RANGES, Range
from midepoch.index.build import SCAN_THREADS
from midepoch.index.index import Index
from midepoch.index.predicate import Mask, Predicate

MAGIC = b"MKP1"
COUNT = struct.Struct("<Q")
MOST_FLOATS = 3
TOGETHER = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class Where:
    """The rows for which a predicate is true, all of which lie in some of the blocks."""

    predicate: Predicate
    blocks: Mask
    """For each block of the index, whether it is read."""

    @classmethod
    def of(cls, index: Index, filters: Any) -> "Where":
        """What was asked for, of the rows of an index."""
        schema = _filterable(index)
        predicate = Predicate.of(filters, schema)
        needed = pa.schema([schema.field(name) for name in predicate.columns])
        return cls(predicate=predicate, blocks=blocks_that_may_match(index, predicate, needed))

    def describe(self) -> dict[str, Any]:
        """The predicate, and in how many blocks it may be true: the order depends on that."""
        return {"op": "where", **self.predicate.describe(), "blocks": int(self.blocks.sum())}


def _filterable(index: Index) -> pa.Schema:
    """The columns that a filter can use: all that can be read from every file."""
    try:
        return index.schema(None)
    except SchemaMismatchError:
        alone = (_column(index, name) for name in index.column_names)
        return pa.schema([field for field in alone if field is not None])


def _column(index: Index, name: str) -> pa.Field | None:
    try:
        return index.schema((name,)).field(0)
    except SchemaMismatchError:
        return None


def blocks_that_may_match(index: Index, predicate: Predicate, schema: pa.Schema) -> Mask:
    """For each block, whether it may hold a row that is kept. Remembered beside the index, if that is on disk."""
    if index.source is None:
        return _decide(index, predicate, schema)
    path = _remembered_at(Path(index.source), index, predicate)
    blocks = int(index.first_blocks[-1])
    kept = _load(path, blocks)
    if kept is None:
        with exclusive_lock(path.with_name(f"{path.name.partition('-')[0]}.lock")):
            kept = _load(path, blocks)
            if kept is None:
                kept = _decide(index, predicate, schema)
                _save(path, kept)
    return kept


def _decide(index: Index, predicate: Predicate, schema: pa.Schema) -> Mask:
    """The blocks of files that their folders do not rule out, less those that their footers do."""
    firsts = index.first_blocks
    folders = [name.rpartition("/")[0] for name in index.names]
    examples = {folder: file for file, folder in enumerate(folders)}
    facts = [_of_values(index.constants(file)) for file in examples.values()]
    open_folders = dict(zip(examples, _may_match(predicate.expression, schema, facts), strict=True))
    kept_files = np.array([open_folders[folder] for folder in folders], bool)
    kept: Mask = np.repeat(kept_files, np.diff(firsts))
    left = [file for file in np.flatnonzero(kept_files).tolist() if index.formats[file] in RANGES]
    told = () if predicate.names_nan else schema  # Arrow would rule out blocks in which nothing is below NaN
    columns = [field for field in told if field.name not in index.constants(0)]
    with ThreadPoolExecutor(SCAN_THREADS) as pool:
        for start in range(0, len(left) if columns else 0, TOGETHER):
            some = left[start : start + TOGETHER]
            ranges = pool.map(lambda file: _ranges(index, file, columns), some)
            asked = [
                (int(firsts[file]) + number, _of_values(index.constants(file)), block)
                for file, blocks in zip(some, ranges, strict=True)
                for number, block in enumerate(blocks)
            ]
            kept[[place for place, _, _ in asked]] = _any_case(predicate.expression, schema, columns, asked)
    return kept


def _ranges(index: Index, file: int, columns: Sequence[pa.Field]) -> Sequence[Mapping[str, Range]]:
    """What a file says of the columns in each of its blocks."""
    found = RANGES[index.formats[file]](index.location(file), columns)
    index.check(file)
    return found


def _any_case(
    expression: pc.Expression,
    schema: pa.Schema,
    columns: Sequence[pa.Field],
    blocks: Sequence[tuple[int, pc.Expression, Mapping[str, Range]]],
) -> Mask:
    """Whether the expression can be true in each block.

    Statistics leave NaN out, for which a comparison is false and its opposite true. So with floats there are several
    cases: in each of them, a column has either NaN only, or none.
    """
    floats = [field for field in columns if pa.types.is_floating(field.type)]
    unknown = {field.name for field in floats[MOST_FLOATS:]}
    found = np.zeros(len(blocks), bool)
    for case in product((False, True), repeat=len(floats[:MOST_FLOATS])):
        nans = [field for field, is_nan in zip(floats, case, strict=False) if is_nan]
        told = [pc.field(field.name) == pa.scalar(float("nan"), field.type) for field in nans]
        apart = unknown | {field.name for field in nans}
        facts = [
            _all([of_folder, *told, *(_of_range(name, one) for name, one in block.items() if name not in apart)])
            for _, of_folder, block in blocks
        ]
        found |= _may_match(expression, schema, facts)
    return found


def _may_match(expression: pc.Expression, schema: pa.Schema, facts: Sequence[pc.Expression]) -> Mask:
    """For each fact, whether the expression can be true where that holds. Nothing is opened for it.

    A value for which the expression cannot be computed, such as a year to divide by that is 0, rules nothing out.
    """
    import pyarrow.dataset as ds  # which takes a while to load
    from pyarrow.fs import LocalFileSystem

    form, system = ds.IpcFileFormat(), LocalFileSystem()
    fragments = [
        form.make_fragment(str(number), system, partition_expression=fact) for number, fact in enumerate(facts)
    ]
    found = np.zeros(len(facts), bool)
    try:
        for fragment in ds.FileSystemDataset(fragments, schema, form, system).get_fragments(filter=expression):
            found[int(fragment.path)] = True
    except pa.ArrowException:
        half = len(facts) // 2
        parts = (facts[:half], facts[half:]) if half else ()
        return np.concatenate([_may_match(expression, schema, part) for part in parts]) if half else ~found
    return found


def _of_values(values: Mapping[str, pa.Scalar]) -> pc.Expression:
    """That columns have one value."""
    return _all(
        [pc.field(name) == value if value.is_valid else pc.field(name).is_null() for name, value in values.items()]
    )


def _of_range(name: str, found: Range) -> pc.Expression:
    """That a column has no values but those that its statistics allow."""
    field = pc.field(name)
    if found.nulls == found.rows:
        return field.is_null()
    bounds = [] if found.low is None else [field >= found.low, field <= found.high]
    if found.nulls == 0:
        return _all(bounds or [field.is_valid()])
    return _all([bound | field.is_null() for bound in bounds])


def _all(facts: Sequence[pc.Expression]) -> pc.Expression:
    return reduce(and_, facts) if facts else pc.scalar(True)


def _remembered_at(source: Path, index: Index, predicate: Predicate) -> Path:
    """A file of its own for each index, expression and version of Arrow, which may decide otherwise."""
    key = digest(f"{index.checksum} {index.layout} {pa.__version__}\n".encode(), predicate.content).hex()
    return source.with_name(f"{source.stem}-{key}.kept")


def _load(path: Path, blocks: int) -> Mask | None:
    """What was remembered, if it is whole."""
    try:
        body, _ = unframed(path.read_bytes(), MAGIC)
        (count,) = COUNT.unpack_from(body)
    except (OSError, ValueError, struct.error):
        return None
    bits = body[COUNT.size :]
    if count != blocks or len(bits) != -(-blocks // 8):
        return None
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=blocks).astype(bool)


def _save(path: Path, kept: Mask) -> None:
    """Remember it; where that cannot be, it is decided again next time."""
    bits = np.packbits(kept).tobytes()
    with contextlib.suppress(OSError):
        write_atomically(path, framed(COUNT.pack(len(kept)) + bits, MAGIC))
