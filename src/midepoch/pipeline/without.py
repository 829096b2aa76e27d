"""Rows that the user takes out of a dataset, or of parts of a mixture."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from midepoch.pipeline.mixture import Mixture
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.edits import without_rows
from midepoch.sources.files import FileRows

Row = tuple[str | None, str, int]
"""The part that has a row, if it is named, with the parts inside it after a slash; the file; the row in that."""


def without(pipeline: Pipeline, named: Any) -> Pipeline:
    """The pipeline without rows, named by file and row, and in a mixture by part where several have such a file."""
    source = pipeline.source
    if isinstance(source, Mixture):
        return _of_mixture(pipeline, source, list(_rows(named)))
    assert isinstance(source, FileRows), "a source is of files or a mixture"
    return replace(pipeline, source=without_rows(source, named))


def _of_mixture(pipeline: Pipeline, mixture: Mixture, rows: Sequence[Row]) -> Pipeline:
    of_parts: list[list[Row]] = [[] for _ in mixture.parts]
    for row in rows:
        number, inner = _part_of(mixture, row)
        of_parts[number].append(inner)
    parts = [_of_part(part, of_part) for part, of_part in zip(mixture.parts, of_parts, strict=True)]
    return replace(pipeline, source=replace(mixture, parts=tuple(parts)))


def _of_part(part: Pipeline, rows: list[Row]) -> Pipeline:
    if not rows:
        return part
    if isinstance(part.source, Mixture):
        return _of_mixture(part, part.source, rows)
    return without(part, [(file, row) for _, file, row in rows])


def _part_of(mixture: Mixture, row: Row) -> tuple[int, Row]:
    """The number of the part that has a row, and the row as one of that part."""
    part, file, number = row
    if part is not None:
        for index, name in enumerate(mixture.names):
            if part == name or part.startswith(f"{name}/"):
                return index, (part[len(name) + 1 :] or None, file, number)
        raise ValueError(
            f"without names the part {part!r}, which the mixture does not have: {', '.join(mixture.names)}."
        )
    have = [index for index, one in enumerate(mixture.parts) if file in _file_names(one)]
    if not have:
        raise ValueError(f"without names the file {file!r}, which no part of the mixture has.")
    if len(have) > 1:
        names = ", ".join(mixture.names[index] for index in have)
        raise ValueError(
            f"without names the file {file!r}, which several parts of the mixture have: {names}. Name the part too: "
            f"({mixture.names[have[0]]!r}, {file!r}, {number}), and a row for each part that should lose it."
        )
    return have[0], row


def _file_names(pipeline: Pipeline) -> set[str]:
    source = pipeline.source
    if isinstance(source, Mixture):
        return set[str]().union(*map(_file_names, source.parts))
    return set(source.index.view.names) if isinstance(source, FileRows) else set()


def _rows(named: Any) -> Iterator[Row]:
    if isinstance(named, pa.Table):
        columns = [named[name].to_pylist() for name in ("part", "file", "row")]
        return zip(*columns, strict=True)
    rows = list(named) if isinstance(named, Iterable) and not isinstance(named, str | dict) else None
    if rows is None or any(isinstance(row, str) or len(row) not in (2, 3) for row in rows):
        raise TypeError(
            "rows of a mixture must be pairs of a file and a row, or a part, a file and a row, such as "
            "[('web', 'part-0007.parquet', 1234)], or the table that Loader.trace or Loader.find returned."
        )
    return ((None, *row) if len(row) == 2 else tuple(row) for row in rows)
