"""Caching a pipeline: its rows are made once, in parallel, and kept in a folder of Arrow files.

Each unit of rows is one file, which appears as a whole. A manifest says of which data, stages and version they are, and
which columns they have. So a pass that was killed continues, and a folder of other rows is refused.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from midepoch._common.checks import Version, cached_property, count
from midepoch._common.files import (
    UntrustedFileError,
    check_trusted,
    exclusive_lock,
    explained,
    open_privately,
    read_trusted,
    remove,
    temporary_name,
    trust_folder,
    write_privately,
)
from midepoch._common.jobs import check_executor, check_started, run_all
from midepoch.checkpoint.fingerprint import files_difference, pipeline_difference
from midepoch.counting.survey import Unit, cut_units, run_units
from midepoch.errors import CacheMismatchError, NoDataError, SchemaMismatchError
from midepoch.index.build import open_index
from midepoch.order.orders import OrderStep, Shuffle, Slice, build_order
from midepoch.order.selection import Deletes, Selection, Slices, Surveyed, TrainTestSplit, Without
from midepoch.pipeline.pipeline import Pipeline, PipelineLanes
from midepoch.sources.files import FileRows
from midepoch.sources.source import EpochCut
from midepoch.stages.columns import Convert
from midepoch.stages.flow import Flow
from midepoch.values.convert import to_arrow, widened

Used = TypeVar("Used")
Where = Callable[[int], str]
"""Names the row of a key in messages."""
MISFITS = (pa.ArrowException, ValueError, TypeError, OverflowError)
SAME_TYPE = "Let the function return one type for every row, such as NumPy arrays of one dtype."
BATCH_ROWS = 1000
READABLE = 0o644
"""The permissions of files that others may read: rows of a cache are data like any other."""
MANIFEST, FORMAT = "cache.json", 1
ABANDONED_SECONDS = 3600.0
"""A temporary file of this age belongs to a killed process."""
FIXED_STEPS = (Slice, Slices, Selection, Deletes, TrainTestSplit, Surveyed, Without)
"""Steps of an order that choose the same rows in every epoch."""


def cache_pipeline(
    pipeline: Pipeline,
    folder: Path,
    *,
    executor: Executor | None = None,
    version: Version = None,
    trust_shared: bool = False,
) -> Pipeline:
    """The rows that a pipeline makes, read from Arrow files in a folder. Files that are missing are made first.

    Steps of the order that choose the same rows in every epoch decide which rows are cached. Shuffles, and what comes
    after them, act on the cached rows. Files of other users are used only with ``trust_shared``.
    """
    check_executor(executor)
    if trust_shared:
        trust_folder(folder.absolute())
    cached, later_steps = divide(pipeline)
    rows = Cache(pipeline=cached, folder=folder.absolute(), version=version).open(executor)
    form, _ = pipeline.item_spec
    stages = (Convert(form=form),) if pipeline.chooses_form or form != "python" else ()
    return Pipeline(source=replace(rows, steps=later_steps), stages=stages)


def divide(pipeline: Pipeline) -> tuple[Pipeline, tuple[OrderStep, ...]]:
    """The pipeline whose rows are cached, and the steps that act on the cached rows. Raises if that is not possible."""
    source = pipeline.source
    if not isinstance(source, FileRows):
        raise ValueError("cache: a mixture cannot be cached. Cache each of the datasets before mixing them.")
    for stage in pipeline.stages:
        if stage.uses_rng:
            raise ValueError(
                f"cache: {stage.name} with with_rng=True makes other rows in every epoch. Put it after cache()."
            )
        if stage.length_column is not None or (stage.group_size > 1 and not stage.many_outputs):
            raise ValueError(f"cache: {stage.name} makes items of several rows. Put {stage.name} after cache().")
    steps = source.steps
    fixed = next((number for number, step in enumerate(steps) if not isinstance(step, FIXED_STEPS)), len(steps))
    # These name rows by their numbers in the files, which cached rows do not have.
    left_out = [step for step in steps[fixed:] if isinstance(step, Without)]
    later = tuple(step for step in steps[fixed:] if not isinstance(step, Without))
    if not source.uniform or pipeline.first_resizing is not None:
        for step in later:
            if type(step) is not Shuffle:
                raise ValueError(
                    f"cache: {step.describe()['op']} after shuffle chooses rows before they are filtered, and a cache "
                    "has the rows after that. Use it before shuffle, or after cache()."
                )
    return Pipeline(source=replace(source, steps=(*steps[:fixed], *left_out)), stages=pipeline.stages), later


@dataclass(frozen=True, kw_only=True)
class Cache:
    """The folder of the rows that a pipeline makes. Nothing about them changes from epoch to epoch."""

    pipeline: Pipeline
    folder: Path
    version: Version

    @property
    def source(self) -> FileRows:
        source = self.pipeline.source
        assert isinstance(source, FileRows)
        return source

    def open(self, executor: Executor | None) -> FileRows:
        """The cached rows. Of several processes, one makes the files that are missing, and the others wait."""
        units, is_complete = self._load_manifest()
        if not is_complete or self._missing(units):
            check_started("cache()")
            self.folder.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(self.folder / ".lock"):
                units = self._make(executor)
        saved_at = self.source.index.view.saved_at
        paths = self._paths_to_trust(units)
        return FileRows(index=open_index(paths, index_dir=None if saved_at is None else Path(saved_at).parent))

    def _make(self, executor: Executor | None) -> list[Unit]:
        """Make the files that are missing, and give all of them one schema."""
        self._remove_abandoned()
        units, _ = self._load_manifest()
        if not units:
            units = self._cut()
            self._write_manifest(units)
        threads, missing = int(self.source.is_in_memory), self._missing(units)
        run_units("cache", self.write_unit, units, missing, executor, threads=threads)
        if unseen := self._missing(units):
            raise NoDataError(
                f"{count('file', len(unseen))} of {len(units):,} that other processes wrote to {self.folder} cannot be "
                "seen here. Pass a folder that all machines of the executor share."
            )
        schemas = [pa.ipc.open_file(path).schema for path in self._paths_to_trust(units)]
        schema = self._common_schema(units, schemas)
        differing = [unit for unit, own in zip(units, schemas, strict=True) if not own.equals(schema)]
        for _ in run_all(partial(self.rewrite_unit, schema), differing, executor):
            pass
        self._write_manifest(units, schema)
        return units

    def _common_schema(self, units: list[Unit], schemas: list[pa.Schema]) -> pa.Schema:
        """The schema that holds the rows of all files. Files without rows may have no columns."""
        common: pa.Schema | None = None
        for unit, schema in zip(units, schemas, strict=True):
            if not schema.names:
                continue
            try:
                common = schema if common is None else widened(common, schema)
            except (pa.ArrowTypeError, ValueError) as error:
                raise SchemaMismatchError(
                    f"cache: the rows in {self._path(unit)} do not have the columns of those before it: {error}. Let "
                    f"the function return the same columns and types for every row, delete {self.folder}, and cache "
                    "again."
                ) from error
        if common is None:
            raise NoDataError("cache: no row passes the stages, so there is nothing to cache. Check the filters.")
        return common

    def _cut(self) -> list[Unit]:
        """Units of positions in the order of the rows that are cached, cut between blocks."""
        starts = build_order(self.source.base, self.source.steps, 0).piece_starts("block")
        return cut_units(starts, np.diff(starts) * self.source.index.view.row_bytes)

    def _path(self, unit: Unit) -> Path:
        return self.folder / f"part-{unit.number:06}.arrow"

    def _missing(self, units: list[Unit]) -> list[Unit]:
        names = {path.name for path in self.folder.iterdir()}
        return [unit for unit in units if self._path(unit).name not in names]

    def _remove_abandoned(self) -> None:
        for path in self.folder.glob(".part-*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                    remove(path)

    def write_unit(self, unit: Unit) -> None:
        """Make one file."""
        known = self.pipeline.schema
        where = partial(self.pipeline.context(0).name_row, len(self.pipeline.stages), single=True)
        with ItemFile(self._path(unit), known and plain_schema(known)) as file, closing(self.source.open(1)) as opened:
            for items in item_columns(self._flow(opened, unit), where):
                items.write_to(file, where)
            file.publish()

    def rewrite_unit(self, schema: pa.Schema, unit: Unit) -> None:
        """Write one file again with a wider schema."""
        with ItemFile(self._path(unit), schema) as file:
            for batch in read_batches(self._path(unit)):
                file.write(batch)
            file.replace()

    def _flow(self, opened: Any, unit: Unit) -> Flow:
        """What the stages make of a unit's rows."""
        steps = (*self.source.steps, Slice(start=unit.begin, stop=unit.end))
        pipeline = replace(self.pipeline, source=replace(self.source, steps=steps))
        return PipelineLanes(pipeline, EpochCut(epoch=0, lanes=1)).flow(opened, 0, pipeline.begin)

    @cached_property
    def _description(self) -> dict[str, Any]:
        """What the rows depend on."""
        view = self.source.index.view
        description = {
            "format": FORMAT,
            "data": view.fingerprint,
            "identity": view.identity,
            "pipeline": self.pipeline.describe(),
            "version": self.version,
        }
        plain: dict[str, Any] = json.loads(json.dumps(description))
        return plain

    def _write_manifest(self, units: list[Unit], schema: pa.Schema | None = None) -> None:
        """Say what the rows depend on, and which columns they have, once all files are made."""
        manifest = {
            **self._description,
            "bounds": [0, *(unit.end for unit in units)],
            "columns": None if schema is None else {field.name: str(field.type) for field in schema},
        }
        with explained("The cache", self.folder):
            write_privately(self.folder / MANIFEST, json.dumps(manifest, indent=1).encode(), READABLE)

    def _load_manifest(self) -> tuple[list[Unit], bool]:
        """The units, none if the folder is empty, and whether all files were made and have one schema.

        Raises if the folder holds anything else than these rows.
        """
        try:
            manifest = json.loads(self._checked(read_trusted, self.folder / MANIFEST))
            difference = self._difference(manifest)
            units = [Unit(number, *bounds) for number, bounds in enumerate(pairwise(manifest["bounds"]))]
            is_complete = manifest["columns"] is not None
        except (FileNotFoundError, NotADirectoryError):
            self._check_empty()
            return [], False
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CacheMismatchError(
                f"{self.folder / MANIFEST} is damaged ({type(error).__name__}: {error}). Delete {self.folder}, and "
                "cache again."
            ) from error
        if difference is not None:
            raise CacheMismatchError(
                f"{self.folder} is a cache of other rows: {difference}. Pass another folder, or delete this one to "
                "cache again."
            )
        return units, is_complete

    def _paths_to_trust(self, units: list[Unit]) -> list[Path]:
        """All files; raises if another user may have written one of them."""
        paths = list(map(self._path, units))
        for path in paths:
            self._checked(check_trusted, path)
        return paths

    def _checked(self, use: Callable[[Path], Used], path: Path) -> Used:
        """Use a file; raise if another user may have written it: it could have any rows."""
        try:
            return use(path)
        except UntrustedFileError as error:
            raise CacheMismatchError(
                f"{path} is not used: {error}. Or pass another folder, to cache the rows yourself."
            ) from error

    def _check_empty(self) -> None:
        """Raise if something else than a cache is in the way."""
        names = sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []
        others = [name for name in names if not name.startswith(".")]
        if others or (self.folder.exists() and not self.folder.is_dir()):
            example = f", such as {others[0]}" if others else ""
            raise CacheMismatchError(
                f"{self.folder} holds something else than a cache{example}. Pass a new or an empty folder."
            )

    def _difference(self, manifest: Mapping[str, Any]) -> str | None:
        """What differs between a manifest and the present rows, in words."""
        view, now = self.source.index.view, self._description
        if manifest["format"] != now["format"]:
            return "it was written by another version of midepoch"
        changed = files_difference(
            manifest["data"], view.facts, view.fingerprint, since="the cache was made when it had"
        )
        if changed is not None:
            return changed.rstrip(".")
        stages = pipeline_difference(manifest["pipeline"], now["pipeline"])
        if stages is not None:
            return stages
        if manifest["data"] != now["data"]:
            return (
                f"the files were read as {manifest['data'].get('format')!r} and are read as {now['data']['format']!r}"
            )
        if manifest["version"] != now["version"]:
            return f"version was {manifest['version']!r} then and is {now['version']!r} now"
        if manifest["identity"] != now["identity"]:
            newest = max(range(len(view.names)), key=lambda file: view.stamps[file].mtime_ns)
            return (
                "files with the same names, sizes and rows were written again after they were cached; the newest is "
                f"{view.names[newest]} (if only their times have changed, restore these, or read the cached files with "
                "midepoch.read)"
            )
        return None


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema without dictionaries, of which an Arrow file can have only one for a column."""
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field for field in schema
    ]
    return pa.schema(fields, schema.metadata)


class ItemColumns(NamedTuple):
    """Consecutive items as columns."""

    columns: Mapping[str, Any]
    keys: Sequence[int]
    """The keys of the items' rows."""

    def write_to(self, file: "ItemFile", where: Where) -> None:
        """Write the items as one record batch, or in halves if they do not fit. Names the item that is the reason."""
        try:
            file.write(pa.record_batch({name: to_arrow(column) for name, column in self.columns.items()}))
        except MISFITS as error:
            half = len(self.keys) // 2
            if not half:
                raise self._misfit(file.schema, where(self.keys[0]), error) from error
            for part in (slice(0, half), slice(half, None)):
                columns = {name: column[part] for name, column in self.columns.items()}
                ItemColumns(columns, self.keys[part]).write_to(file, where)

    def _misfit(self, schema: pa.Schema, where: str, error: Exception) -> SchemaMismatchError:
        """Why a single item cannot be stored after those before it, which have a schema."""
        if schema.names and set(self.columns) != set(schema.names):
            return _other_columns(self.columns, where, schema.names)
        for name, column in self.columns.items():
            kind = schema.field(name).type if schema.names else pa.null()
            try:
                widened(pa.schema([(name, kind)]), pa.schema([(name, to_arrow(column).type)]))
            except MISFITS as own_error:
                expected = "" if pa.types.is_null(kind) else f", and was {kind} before"
                shown = text if len(text := repr(column[0])) <= 100 else f"{text[:97]}..."
                return SchemaMismatchError(
                    f"cache: the column {name!r} holds {shown}{where}{expected} ({own_error}). {SAME_TYPE}"
                )
        return SchemaMismatchError(f"cache: the item{where} cannot be stored: {error}.")


def item_columns(flow: Flow, where: Where) -> Iterator[ItemColumns]:
    """The items of a flow as columns, ``BATCH_ROWS`` at a time."""
    if flow.row_runs is not None:
        for run in flow.groups(BATCH_ROWS):
            yield ItemColumns({name: run.rows.data[name] for name in run.rows.names}, run.keys.tolist())
        return
    single_items = flow.as_single_items()
    while singles := list(islice(single_items, BATCH_ROWS)):
        items, _, keys = zip(*singles, strict=True)
        yield ItemColumns(_columns(items, keys, where), keys)


def _columns(items: Sequence[Any], keys: Sequence[int], where: Where) -> dict[str, list[Any]]:
    """Items as columns. All must be dicts, or record batches of one row, with the same columns."""
    if isinstance(items[0], pa.RecordBatch):
        items = [{name: item[name][0].as_py() for name in item.schema.names} for item in items]
    for item, key in zip(items, keys, strict=True):
        if not isinstance(item, Mapping):
            raise TypeError(
                f"cache needs items that are dicts of columns, but got a {type(item).__name__}{where(key)}. Let the "
                "map before it return a dict."
            )
        if item.keys() != items[0].keys():
            raise _other_columns(item, where(key), list(items[0]))
    return {name: [item[name] for item in items] for name in items[0]}


def _other_columns(columns: Mapping[str, Any], where: str, before: list[str]) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"cache: an item has the columns {list(columns)}{where}, and those before it have {before}. Let the function "
        "return the same columns for every row."
    )


class ItemFile:
    """A file under a temporary name until it is published. One that is not published is removed at the end."""

    def __init__(self, path: Path, schema: pa.Schema | None = None) -> None:
        """Without a schema, that of the file becomes wider with the batches."""
        self._path, self._widens = path, schema is None
        self._explained = partial(explained, "The cache", path.parent)
        self._open(schema or pa.schema([]))

    def __enter__(self) -> "ItemFile":
        return self

    def __exit__(self, *_: Any) -> None:
        with suppress(OSError):  # a full disk is an error once more
            self._sink.close()
        remove(self._temporary)

    def _open(self, schema: pa.Schema) -> None:
        self.schema, self._temporary = schema, temporary_name(self._path)
        with self._explained():
            self._sink = open_sink(self._temporary)
            self._writer = pa.ipc.new_file(self._sink, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch. If it needs a wider schema, the batches before it are written again in that."""
        if self._widens:
            schema = widened(self.schema, batch.schema) if self.schema.names else batch.schema
            if not schema.equals(self.schema):
                self._widen(schema)
        with self._explained():
            self._writer.write_batch(as_schema(batch, self.schema))

    def _widen(self, schema: pa.Schema) -> None:
        self._close()
        narrow = self._temporary
        try:
            self._open(schema)
            for batch in read_batches(narrow):
                self.write(batch)
        finally:
            remove(narrow)

    def publish(self) -> None:
        """Give the file its name. One that is there stays: it has the same rows, and may be in use.

        A cluster that lost sight of a worker starts its work again, and both may finish.
        """
        self._close()
        with self._explained():
            try:
                os.link(self._temporary, self._path)
            except FileExistsError:
                pass
            except OSError:  # not every file system has hard links
                if not self._path.exists():
                    self._temporary.replace(self._path)

    def replace(self) -> None:
        """Give the file its name, in place of the one that is there, unless that has the same schema already."""
        self._close()
        with self._explained():
            if not pa.ipc.open_file(self._path).schema.equals(self.schema):
                self._temporary.replace(self._path)

    def _close(self) -> None:
        with self._explained():
            self._writer.close()
            self._sink.close()


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with the columns of a schema, in its order and types. Values that would change raise."""
    return batch if batch.schema.equals(schema) else batch.select(schema.names).cast(schema)


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of a file, mapped."""
    with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def open_sink(path: Path) -> pa.NativeFile:
    """A new file to write to, which no other user can change, unless those of the folder are trusted."""
    open_privately(path, READABLE).close()
    return pa.OSFile(str(path), "wb")
