"""read, tokens and from_indexable: open files, or rows of any object, in place, as a dataset."""

import json
import os
from collections.abc import Mapping, Sequence, Sized
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast

import pyarrow as pa

from midepoch._common.checks import Size, check_choice, check_integer, log_once, options_among, parse_size
from midepoch._common.files import check_trust
from midepoch.dataset.dataset import Dataset, Row, from_source, plan_of, with_stage
from midepoch.formats import MAX_RECORD_BYTES, NO_LIMIT, file_suffixes
from midepoch.index.build import SCAN_THREADS, open_index
from midepoch.index.index import Index
from midepoch.index.saved import trusted_index_folder
from midepoch.index.schemas import HiveIndex, UnionIndex, below_hive_folders
from midepoch.index.tables import NumberIndex
from midepoch.index.tokens import MEGATRON_DTYPES, TokenIndex, TokenLayout
from midepoch.sources.files import FileRows
from midepoch.stages.functions import Map
from midepoch.storage.block_cache import CACHE, Fetch
from midepoch.storage.listing import Listing, PathSpec, find
from midepoch.storage.shared_listing import find_once
from midepoch.storage.urls import is_url

TOKEN_DTYPES = (*MEGATRON_DTYPES.values(), "uint32", "uint64")
ROW_NUMBER = "row_number"
Element = TypeVar("Element", covariant=True)


class Indexable(Protocol[Element]):
    """What has a row for each number. It has a length too, though the types of torch's datasets do not say so."""

    def __getitem__(self, index: int, /) -> Element:
        """The row with this number."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How files are opened: the options of :func:`read`, which all doors share. Wrong ones raise when this is built."""

    format: str | None = None
    columns: Sequence[str] | None = None
    filters: Any = None
    partitioning: Literal["hive"] | None = None
    schema: Literal["union"] | pa.Schema | None = None
    index_dir: str | os.PathLike[str] | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    read_ahead: Size | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: Size = CACHE
    max_record_bytes: Size | None = MAX_RECORD_BYTES
    trust_shared: bool = False
    executor: Executor | None = None
    shared_listing: bool = False
    threads: int = SCAN_THREADS
    rescan: bool = False
    """True to scan all files again, and not only those that changed since the last index."""

    def __post_init__(self) -> None:
        check_trust(self.trust_shared)
        if isinstance(self.columns, str):
            names = [name.strip() for name in self.columns.split(",")]
            raise TypeError(f"columns must be a list of names, got the string {self.columns!r}; pass {names}.")
        check_choice("partitioning", self.partitioning, ("hive", None))
        if self.schema is not None and self.schema != "union" and not isinstance(self.schema, pa.Schema):
            raise ValueError(f"schema is {self.schema!r}; it can be 'union', a pyarrow.Schema, or left out.")
        _ = self.most_record_bytes, self.fetch

    @property
    def most_record_bytes(self) -> int:
        """The limit in bytes."""
        if self.max_record_bytes is None:
            return NO_LIMIT
        return check_integer("max_record_bytes", parse_size("max_record_bytes", self.max_record_bytes), least=1)

    @property
    def fetch(self) -> Fetch:
        """How remote files are fetched."""
        return Fetch.of(self.read_ahead, self.cache_dir, self.cache_bytes, trust_shared=self.trust_shared)

    def find(self, source: PathSpec | Listing, suffixes: Sequence[str]) -> Listing:
        """List files, once for all ranks if that was asked for."""
        return (find_once if self.shared_listing else find)(source, self.storage_options, suffixes=suffixes)

    def index(self, source: PathSpec | Listing) -> Index:
        """The index of files, with the schema and the partitions that were asked for."""
        trusted_index_folder(self.index_dir, self.trust_shared)
        is_hive = self.partitioning == "hive"
        if is_hive:
            source = below_hive_folders(self.find(source, file_suffixes(self.format)))
        elif self.shared_listing:
            source = self.find(source, file_suffixes(None))
        index: Index = open_index(
            source,
            format=self.format,
            index_dir=self.index_dir,
            threads=self.threads,
            rescan=self.rescan,
            storage_options=self.storage_options,
            executor=self.executor,
            max_record_bytes=self.most_record_bytes,
        )
        if self.schema is not None:
            index = UnionIndex(index, None if isinstance(self.schema, str) else self.schema)
        return HiveIndex(index) if is_hive else index

    def rows(self, index: Index) -> FileRows:
        """The rows of an index."""
        columns = None if self.columns is None else tuple(self.columns)
        rows = FileRows(index=index, columns=columns, fetch=self.fetch)
        _ = rows.schema  # raises now, not at the first row, if the files disagree
        if self.filters is None:
            return rows
        from midepoch.index.filters import Where  # loads parts of Arrow that only filters need

        return replace(rows, where=Where.of(index, self.filters))

    def open(self, source: PathSpec | Listing) -> Dataset[Row]:
        """The rows of files, in their order."""
        return from_source(self.rows(self.index(source)), Dataset)


def read(
    source: PathSpec | Listing,
    *,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    filters: Any = None,
    partitioning: Literal["hive"] | None = None,
    schema: Literal["union"] | pa.Schema | None = None,
    index_dir: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read_ahead: Size | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: Size = CACHE,
    max_record_bytes: Size | None = MAX_RECORD_BYTES,
    trust_shared: bool = False,
    executor: Executor | None = None,
    shared_listing: bool = False,
) -> Dataset[Row]:
    """Open Arrow, Parquet, ORC, JSON, CSV, tar and MDS files in place.

        dataset = midepoch.read("data/*.parquet", columns=["id", "text"])

    ``source`` is a file, a folder (with its subfolders), a glob, "part-{000..127}.tar", or a list of those, as paths or
    URLs. The format of a file is found from its first bytes, that of CSV from its name. ``format`` ("arrow", "parquet",
    "orc", "tar", "mds", "jsonl", "json" or "csv") sets it for all files; "lines" reads JSON lines as text, in a column
    "line".
    Rows of tar files are samples as in WebDataset, with a column for each extension. A folder of MosaicML Streaming is
    read as its index.json says.

    Only ``columns`` are read. ``filters``, a ``pyarrow.compute`` expression, keeps the rows for which it is true;
    Parquet row groups that it rules out by their statistics are not read. ``partitioning="hive"`` makes columns of
    folders named key=value.

    Files may differ in types that one type holds: integers and floats of other widths, text with long offsets, as
    dictionary or as view, columns that are all null. With ``schema="union"`` a file may lack columns, which are null
    then. A ``pyarrow.Schema`` names the columns and their types; files may lack some of them too.

    Opening reads headers and footers only, and text files once. The index of their blocks is kept in ``index_dir``,
    by default ``MIDEPOCH_INDEX_DIR`` or a folder in the user's cache. Threads build it; with very many or large text
    files, the workers of an ``executor`` do, any ``concurrent.futures.Executor`` (processes, Dask, Ray).

    ``storage_options`` (key, secret, token, endpoint, region, anonymous …) are for object stores: s3://, gs:// and all
    URLs that fsspec knows. They are kept in memory only. Threads fetch blocks ``read_ahead`` bytes (default "256MiB")
    ahead of the one in use, and keep them in ``cache_dir``, if given, up to ``cache_bytes``. These four options have
    no effect on local files. With ``shared_listing=True``, called on all ranks of a process group, rank 0 lists a
    remote folder for all of them; a rank that gets no listing from it for a minute lists the folder itself.

    ``max_record_bytes`` (default "512MiB") protects the memory from files that are small and become large: a record of
    text may have that many bytes, and so may a Parquet row group or an ORC stripe that grows a hundredfold when it is
    decompressed, as the footer says. If all files are trusted, None has no limit.

    Indexes and cached blocks of other users are not used, because they could say anything about the rows. With
    ``trust_shared=True`` they are, in ``index_dir`` and ``cache_dir``, and yours are made for them too. This process
    remembers it; ``MIDEPOCH_TRUST_SHARED=1`` does the same for all folders.
    """
    options = ReadOptions(**options_among(ReadOptions, locals()))
    _warn_of_splits(source)
    return options.open(source)


def _warn_of_splits(source: PathSpec | Listing) -> None:
    """Warn if a folder that ``datasets`` has saved has several splits: all of them are read."""
    if not isinstance(source, str | os.PathLike) or is_url(os.fspath(source)):
        return
    try:
        splits = json.loads((Path(source) / "dataset_dict.json").read_bytes())["splits"]
    except (OSError, ValueError, LookupError, TypeError):  # any other folder, or a file
        return
    if isinstance(splits, list) and len(splits) > 1:
        log_once(
            f"{os.fspath(source)} has the splits {', '.join(map(str, splits))}, saved by datasets, and the rows of all "
            f"of them are read. To read one, name its folder: {Path(source) / str(splits[0])}."
        )


def tokens(
    source: PathSpec,
    *,
    length: int | None = None,
    stride: int | None = None,
    dtype: str | None = None,
    column: str = "input_ids",
) -> Dataset[Row]:
    """Open files of tokens in place: flat files (.bin, .npy), and the .bin/.idx pairs of Megatron.

        dataset = midepoch.tokens("train.bin", dtype="uint16", length=2048).shuffle(seed=42)

    Rows are windows of ``length`` tokens, which begin every ``stride`` tokens, by default every ``length``; what is
    left at the end of a file is not read. Windows of a flat file do not know where documents end. For a pair, leave
    out ``length``: then rows are documents, for :meth:`Dataset.pack`.

    ``source`` is a file, a folder, a glob, or a list of those. ``dtype`` is the type of the integers in .bin files
    without an .idx file; others say it themselves. Files are mapped, and tokens become int64 in the column ``column``
    when they are read. Everything else is as with :func:`read`.
    """
    if length is not None:
        length = check_integer("length", length, least=1)
    if stride is not None:
        if length is None:
            raise ValueError("stride is for windows: pass length too.")
        stride = check_integer("stride", stride, least=1)
    check_choice("dtype", dtype, (*TOKEN_DTYPES, None))
    if any(is_url(os.fspath(one)) for one in ([source] if isinstance(source, str | os.PathLike) else source)):
        raise ValueError("Files of tokens are mapped, so they must be on this machine. Copy them here first.")
    listing = find(source, suffixes=(".bin", ".npy"))
    others = [name for name in listing.names if not name.endswith((".bin", ".npy"))]
    if others:
        raise ValueError(f"{others[0]} is not a .bin or .npy file. Of a Megatron pair, name the .bin file.")
    layout = TokenLayout(dtype=dtype, length=length, stride=stride, column=column)
    return from_source(FileRows(index=TokenIndex(listing, layout)), Dataset)


def from_indexable(source: Indexable[Element], *, name: str | None = None) -> Dataset[Element]:
    """Any object with ``len(source)`` and ``source[i]`` as a dataset: a map-style Dataset of torch, a list, a store.

        dataset = midepoch.from_indexable(torchvision_dataset).shuffle(seed=42, level="row").batch(32)

    ``source`` is indexed from 0; a dict raises. ``source[i]`` is called when a row is read, in the process that reads
    it, so a source that goes to workers must be picklable, unless they are forked. The number of rows must not change.
    A checkpoint knows the source by ``name``, by default that of its class, and by its length.
    """
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
        raise TypeError(f"from_indexable needs an object with len() and [i], got a {type(source).__name__}.")
    if isinstance(source, Dataset | Mapping):
        raise TypeError(f"from_indexable needs an object that row numbers index, got a {type(source).__name__}.")
    numbers = FileRows(index=NumberIndex(len(cast("Sized", source)), name or type(source).__name__, ROW_NUMBER))
    dataset = from_source(numbers, Dataset)
    call = plan_of(dataset).pipeline.call("from_indexable", Indexed(source))
    return with_stage(dataset, Map(call=call, remove_columns=(ROW_NUMBER,)))


@dataclass(frozen=True)
class Indexed:
    """The function from a row number to the row of an object."""

    source: Any

    def __call__(self, row: Mapping[str, int]) -> Any:
        """The row with this number."""
        return self.source[row[ROW_NUMBER]]
