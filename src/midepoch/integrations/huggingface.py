"""Hugging Face datasets, read from the Arrow files of their cache: opened in milliseconds, resumed anywhere.

Which files these are is recorded, so that `datasets` is asked only once. A record is a small JSON file next to the
indexes. Its name covers every argument of the call. It holds the Arrow files of each split, and a digest of the local
files that the arguments name. If one of them has changed, `datasets` is asked again, and decides what it has to prepare
again.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from glob import glob
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from midepoch._common.checks import cached_property, check_integer, count
from midepoch._common.files import exclusive_lock, read_trusted, write_privately
from midepoch._common.hashing import digest
from midepoch.dataset import Dataset, file_rows, from_source, plan_of, position_of
from midepoch.dataset.read import ReadOptions
from midepoch.delivery.passes import Pass
from midepoch.errors import DataChangedError, NoDataError, needs
from midepoch.extending import FrontDoor, HubDescription
from midepoch.index.build import SCAN_THREADS
from midepoch.index.saved import digest_of, trusted_index_folder
from midepoch.index.tables import HeldTable, TableIndex
from midepoch.order.orders import Shuffle
from midepoch.order.selection import Selection, Slices, clipped, percent_of
from midepoch.sources.files import FileRows
from midepoch.sources.lane import FileRowsLanes
from midepoch.storage.listing import PathSpec
from midepoch.storage.local import stamp_of
from midepoch.storage.urls import is_url
from midepoch.values.columns import FORMS

EXAMPLES = "'train', 'train[:10%]', 'train[100:-100]' or 'train+test[50%:]'"
TERM = re.compile(
    r"(?P<split>\w+(?:\.\w+)*)"
    r"(?:\[(?:(?P<start>-?\d+(?:_\d+)*)(?P<start_pct>%)?)?:(?:(?P<stop>-?\d+(?:_\d+)*)(?P<stop_pct>%)?)?\])?"
    r"(?P<rounding>\(closest\))?"
)
LENGTHS = (
    "lengths are exact, never estimated. Leave it out and use len(dataset); after a filter, a batched map or a pack "
    "call dataset.survey() once, which counts what they yield"
)


def fast_load_iterable_dataset(
    path: str | os.PathLike[str],
    name: str | None = None,
    split: Any = None,
    data_files: Any = None,
    revision: Any = None,
    force_reindex: bool = False,
    num_proc: int | None = None,
    index_dir: str | os.PathLike[str] | None = None,
    trust_shared: bool = False,
    executor: Executor | None = None,
    **load_dataset_kwargs: Any,
) -> "SimpleArrowIterableDataset":
    """Open a dataset of ``datasets.load_dataset``, or a ``save_to_disk`` folder, from its Arrow files.

        dataset = midepoch.fast_load_iterable_dataset("org/name", split="train[:90%]").shuffle(seed=42)

    The first call lets `datasets` prepare its cache, and indexes it. Later calls take milliseconds and do not import
    `datasets`. ``path`` is a dataset on the hub, a folder of data files, a ``save_to_disk`` folder, or a builder such
    as "parquet" with ``data_files``. ``name`` is the dataset's configuration, and ``revision`` its version on the hub.
    With a ``save_to_disk`` folder these three raise.

    ``split`` can be an expression such as "train[10%:20%]+test"; by default it is the only split. ``force_reindex``
    asks `datasets` again and scans all files again. ``num_proc`` is for the preparation by `datasets` and for the scan.
    ``index_dir`` is the folder of the index; with ``trust_shared=True`` the records and indexes of other users in it
    are used too; ``executor`` scans the files: all three as in :func:`midepoch.read`. All other arguments,
    ``load_dataset_kwargs``, are those of ``load_dataset``; those that can change the data are part of the
    index's key. ``streaming`` and ``keep_in_memory`` are not possible, and ``length_estimate`` is not needed.
    """
    for refused, why in (
        ("streaming", "a stream has no files to resume in; leave it out, rows are read on demand anyway"),
        ("keep_in_memory", "rows are read from the files in the cache; leave it out"),
        ("length_estimate", LENGTHS),
        ("reset_length_on_iter", LENGTHS),
    ):
        if load_dataset_kwargs.get(refused):
            raise ValueError(f"{refused}={load_dataset_kwargs[refused]!r} is not possible: {why}.")
        load_dataset_kwargs.pop(refused, None)
    folder = trusted_index_folder(index_dir, trust_shared)
    path = os.fspath(path)
    saved = saved_splits(path)
    if saved is None:
        load = LoadArguments(path=path, name=name, data_files=data_files, revision=revision, others=load_dataset_kwargs)
        splits = split_files(load, folder, reload=force_reindex, num_proc=num_proc)
    else:
        splits = saved
        given = {"name": name, "data_files": data_files, "revision": revision, **load_dataset_kwargs}
        if unused := [argument for argument, value in given.items() if value is not None]:
            raise ValueError(f"{path} is a save_to_disk folder, which has no use for {unused[0]}. Leave it out.")
    terms = select_terms(_expression(split), list(splits), repr(path))
    threads = SCAN_THREADS if num_proc is None else check_integer("num_proc", num_proc, least=1)
    options = ReadOptions(index_dir=index_dir, threads=threads, rescan=force_reindex, executor=executor)
    rows = _rows_of_terms(path, splits, terms, options)
    first_file = splits[terms[0].split].files[0]
    info = partial(saved_info, os.path.dirname(first_file))
    hub = HubDescription(info, _expression(split) or terms[0].split)
    return from_source(rows, SimpleArrowIterableDataset, hub)


load_dataset = fast_load_iterable_dataset


def from_hf(dataset: Any) -> Dataset:
    """A ``datasets.Dataset`` as a midepoch dataset. Nothing is copied or written.

        dataset = midepoch.from_hf(datasets.load_dataset("org/name", split="train"))

    ``dataset`` is one split; a dict of splits or a stream raises. Rows are read in place, from memory or from the
    dataset's files, after any ``select``, ``shuffle`` or ``filter`` of `datasets`. Format and columns are kept.
    """
    table, kind = getattr(dataset, "data", None), type(dataset).__name__
    if isinstance(dataset, dict):
        raise ValueError(f"from_hf needs one split, got a {kind} of {', '.join(dataset)}. Pass dataset['train'].")
    if table is None or not hasattr(dataset, "cache_files") or isinstance(table, dict):
        raise TypeError(f"from_hf needs a datasets.Dataset, got {kind}. For files, use midepoch.read.")
    form = dataset.format
    if form["type"] not in (None, *FORMS):
        raise ValueError(
            f"The dataset has the format {form['type']!r}, which midepoch does not have. Call dataset.reset_format() "
            "first. Pass a function that was given to set_transform to .map(fn) instead."
        )
    if form["format_kwargs"]:
        raise ValueError(
            f"The dataset's format has the arguments {form['format_kwargs']}, which midepoch does not support. "
            f"Call dataset.with_format({form['type']!r}) without them first."
        )
    rows = FileRows(index=_index_of(table))
    if dataset._indices is not None:  # `datasets` has no public name for its row numbers
        rows = replace(rows, steps=(Selection(table=dataset._indices),))
    opened = from_source(rows, Dataset, HubDescription(partial(copy, dataset.info), dataset.split))
    columns = [name for name in rows.names if name in (form["columns"] or rows.names)]
    if columns != rows.names and not form["output_all_columns"]:
        opened = opened.select_columns(columns)
    return opened if form["type"] in (None, "python") else opened.with_format(form["type"])


class FileOrder(NamedTuple):
    """The files of a dataset in the order of an epoch."""

    files: list[int]
    slots: dict[int, int]
    """The place of each file in that order."""
    digest: str


class SimpleArrowIterableDataset(FrontDoor):
    """The Arrow files of a Hugging Face dataset.

        dataset = midepoch.fast_load_iterable_dataset("parquet", data_files="data/*.parquet", split="train")

    Its states also name the file and the example that come next.
    """

    _known_order: tuple[FileRows, int, FileOrder] | None = None

    def __init__(
        self,
        arrow_files: PathSpec,
        *,
        index_dir: str | os.PathLike[str] | None = None,
        trust_shared: bool = False,
        executor: Executor | None = None,
        length_estimate: None = None,
    ) -> None:
        """Open Arrow files. :func:`midepoch.fast_load_iterable_dataset` finds those of a dataset.

        ``arrow_files`` is a file, a folder, a glob, or a list of those. ``index_dir``, ``trust_shared`` and
        ``executor`` are those of :func:`midepoch.read`. A ``length_estimate`` is not needed: lengths are exact.
        """
        if length_estimate is not None:
            raise ValueError(f"length_estimate={length_estimate!r} is not possible: {LENGTHS}.")
        options = ReadOptions(index_dir=index_dir, trust_shared=trust_shared, executor=executor)
        super().__init__(plan_of(options.open(arrow_files)))

    @property
    def arrow_files(self) -> list[str]:
        """The Arrow files, in the order of the dataset."""
        view = file_rows(self, "arrow_files").index.view
        return [view.path(file) for file in range(len(view.names))]

    @property
    def shuffled_files(self) -> list[str]:
        """The Arrow files in the order of the current epoch; in the order of the dataset, if rows are shuffled too."""
        epoch, _ = self._next_row(position_of(self).latest(plan_of(self)))
        view = file_rows(self, "shuffled_files").index.view
        return [view.path(file) for file in self._file_order(epoch).files]

    def own_keys(self, run: Pass) -> dict[str, Any]:
        """The file and the example that come next.

        ``current_file_index`` is an index into ``shuffled_files``, ``current_example_index`` a row of that file. The
        state has a count and a digest of the two lists of files; the lists themselves are :attr:`arrow_files` and
        :attr:`shuffled_files`.
        """
        epoch, row = self._next_row(run)
        rows, plan = file_rows(self, "state_dict"), plan_of(self)
        index = rows.index.view
        files, slots, digest = self._file_order(epoch)
        file = int(np.searchsorted(index.file_starts, row, "right")) - 1
        seeds = [step.seed for step in rows.steps if isinstance(step, Shuffle)]
        return {
            "current_file_index": slots.get(file, 0),
            "current_example_index": row - int(index.file_starts[file]),
            "shuffle_seed": seeds[-1] if seeds else None,
            "shard_config": (plan.ranks, plan.rank),
            "arrow_files": {"count": len(index.names), "digest": index.fingerprint["digest"]},
            "shuffled_files": {"count": len(files), "digest": digest},
        }

    def _next_row(self, run: Pass) -> tuple[int, int]:
        """The epoch and the row that come next; after the end of an epoch, the first row of the next one."""
        progress = run.progress()
        upcoming = progress.upcoming()
        if upcoming is None:
            progress = plan_of(self).begin(progress.following())
            upcoming = progress.upcoming()
        if upcoming is None:  # there are no rows at all
            return progress.session.start.epoch, 0
        lane, (position, *_) = upcoming
        lanes = progress.session.lanes.source
        assert isinstance(lanes, FileRowsLanes)
        row = lanes.order(lane).rows(np.array([position]))[0]
        return progress.session.start.epoch, int(row)

    def _file_order(self, epoch: int) -> FileOrder:
        """The files in the order of an epoch, kept because a state is taken once a batch."""
        rows = file_rows(self, "shuffled_files")
        if self._known_order is None or self._known_order[0] is not rows or self._known_order[1] != epoch:
            self._known_order = rows, epoch, _file_order(rows, epoch)
        return self._known_order[2]


def _file_order(rows: FileRows, epoch: int) -> FileOrder:
    index = rows.index.view
    shuffles = [step.level for step in rows.steps if isinstance(step, Shuffle)]
    files = list(range(len(index.names)))
    if shuffles and set(shuffles) == {"file"}:
        order = rows.order(epoch)
        starts = order.piece_starts("file")
        firsts = order.rows(starts[:-1][np.diff(starts) > 0])
        files = list(dict.fromkeys((np.searchsorted(index.file_starts, firsts, "right") - 1).tolist()))
    names = digest("\n".join(index.names[file] for file in files).encode()).hex()
    return FileOrder(files, {file: slot for slot, file in enumerate(files)}, names)


def _expression(split: Any) -> str | None:
    """A split as an expression. `datasets` also has objects for splits."""
    if split is None or isinstance(split, str):
        return split
    if hasattr(split, "to_spec"):
        return str(split.to_spec())
    if isinstance(split, Sequence):
        raise ValueError(f"split is {split!r}; open one split at a time, or join them: 'train+test'.")
    return str(split)


def _rows_of_terms(path: str, splits: "dict[str, SplitFiles]", terms: "list[Term]", options: ReadOptions) -> FileRows:
    """The rows of split terms. All files of a split are indexed, so that all expressions share one index."""
    names = list(dict.fromkeys(term.split for term in terms))
    files = [file for name in names for file in splits[name].files]
    if not files:
        raise NoDataError(f"{path!r} has no rows in the split {' + '.join(names)}. Choose another.")
    rows = options.rows(options.index(files))
    view = rows.index.view
    bounds = list(accumulate((len(splits[name].files) for name in names), initial=0))
    first_rows = [int(view.file_starts[bound]) for bound in bounds]
    starts = dict(zip(names, first_rows, strict=False))
    counts = {name: first_rows[number + 1] - first_rows[number] for number, name in enumerate(names)}
    for name in names:
        known = splits[name].rows
        if known is not None and known != counts[name]:
            raise DataChangedError(
                f"The split {name!r} of {path!r} had {count('row', known)} when datasets loaded it, and "
                f"its files now have {counts[name]:,}. Pass force_reindex=True to load it again."
            )
    wanted = _joined(row_ranges(terms, starts, counts))
    return rows if wanted == [(0, view.rows)] else replace(rows, steps=(Slices(intervals=tuple(wanted)),))


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges of rows, without empty ones; a range that begins at the end of the one before is joined to it."""
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            start, _ = joined.pop()
        if start < stop:
            joined.append((start, stop))
    return joined


def _index_of(table: Any) -> TableIndex:
    """The tables that a dataset's table is made of, as files."""
    rows = getattr(table, "blocks", [[table]])
    tables: list[HeldTable] = [row[0] for row in rows] if all(len(row) == 1 for row in rows) else [table]
    if any(not one.schema.equals(table.schema) for one in tables):
        tables = [table]
    return TableIndex(tables, table.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A split, or the rows of it between two bounds, which count rows or percent."""

    split: str
    start: int | None = None
    stop: int | None = None
    percent: bool = False

    def bounds(self, count: int) -> tuple[int, int]:
        """The bounds as row numbers, in a split of ``count`` rows. Negative bounds count from the end."""
        start, stop = (
            percent_of(bound, count) if self.percent and bound is not None else bound
            for bound in (self.start, self.stop)
        )
        return clipped(start or 0, count), count if stop is None else clipped(stop, count)


def parse(expression: str) -> list[Term]:
    """The terms of a split expression, such as the two of "train[:10%]+test"."""
    return [_term(text.strip(), expression) for text in expression.split("+")]


def _term(text: str, expression: str) -> Term:
    match = TERM.fullmatch(text)
    percent = match is not None and bool(match["start_pct"] or match["stop_pct"])
    if match is None or (match["rounding"] and not percent):
        raise ValueError(f"split is {expression!r}; write it as {EXAMPLES}.")
    start, stop = (None if match[name] is None else int(match[name]) for name in ("start", "stop"))
    if percent and any(bound is not None and abs(bound) > 100 for bound in (start, stop)):
        raise ValueError(f"split is {expression!r}; percents must be between -100 and 100.")
    return Term(split=match["split"], start=start, stop=stop, percent=percent)


def select_terms(expression: str | None, splits: Sequence[str], dataset: str) -> list[Term]:
    """The terms of an expression, whose splits must exist; without an expression, the only split of the dataset."""
    if expression is None:
        if len(splits) != 1:
            raise ValueError(f"{dataset} has the splits {', '.join(splits)}: choose with split=, such as {EXAMPLES}.")
        return [Term(split=splits[0])]
    terms = parse(expression)
    if [term.split for term in terms] == ["all"] and "all" not in splits:
        return [Term(split=name) for name in splits]
    for term in terms:
        if term.split not in splits:
            raise ValueError(f"{dataset} has no split {term.split!r}. It has: {', '.join(splits)}.")
    return terms


def row_ranges(terms: Sequence[Term], starts: Mapping[str, int], counts: Mapping[str, int]) -> list[tuple[int, int]]:
    """The rows of the terms, given the first row and the number of rows of each split.

    As in `datasets`, it raises if all slices are empty, and a slice whose bounds are the wrong way round has no rows.
    """
    bounds = [(term.split, *term.bounds(counts[term.split])) for term in terms]
    if any(counts[term.split] for term in terms) and all(start == stop for _, start, stop in bounds):
        slices = [f"rows {start:,} to {stop:,} of the {counts[split]:,} of {split!r}" for split, start, stop in bounds]
        raise ValueError(
            f"split selects no rows, only {' and '.join(slices)}. The first bound must be before the second "
            "one, and inside the split."
        )
    return [(starts[split] + start, starts[split] + max(start, stop)) for split, start, stop in bounds]


log = logging.getLogger("midepoch")

VERSION = 1
HARMLESS = ("token", "num_proc", "verification_mode", "download_config", "download_mode")
"""Arguments that change how data is fetched, but not the data. Some are secret."""


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The Arrow files of a split, in reading order, and its number of rows, if that is known."""

    files: list[str]
    rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class LoadArguments:
    """The arguments of a call of ``datasets.load_dataset``, without the split."""

    path: str
    name: str | None = None
    data_files: Any = None
    revision: Any = None
    others: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """They may hold a token."""

    @cached_property
    def key(self) -> str:
        """A digest of all arguments that can change the data."""
        facts: dict[str, Any] = {
            "path": os.path.abspath(self.path) if os.path.exists(self.path) else self.path,
            "name": self.name,
            "data_files": _plain("data_files", self.data_files),
            "revision": _plain("revision", self.revision),
        }
        facts |= {name: _plain(name, self.others[name]) for name in sorted(self.others) if name not in HARMLESS}
        if any(not os.path.isabs(pattern) for pattern in self._local_patterns):
            facts["below"] = os.getcwd()
        return digest_of(json.dumps(facts))

    @property
    def _local_patterns(self) -> list[str]:
        """The local files and folders that the arguments name: no URLs, and no files of a repository on the hub."""
        path = [self.path] if os.path.exists(self.path) else []
        data_dir = self.others.get("data_dir")
        folder = [os.path.expanduser(data_dir)] if isinstance(data_dir, str | os.PathLike) else []
        parent = next((candidate for candidate in (*folder, *path) if os.path.isdir(candidate)), "")
        files = [os.path.join(parent, part) for name in _strings(self.data_files) for part in _unchained(name)]
        names = [*path, *(files or folder)]
        in_repository = "/" in self.path and not os.path.exists(self.path)
        return [name for name in names if not is_url(name) and not (in_repository and not os.path.isabs(name))]

    @property
    def forces_download(self) -> bool:
        """Whether ``download_mode`` asks `datasets` not to reuse its cache."""
        mode = self.others.get("download_mode")
        return getattr(mode, "value", mode) not in (None, "reuse_dataset_if_exists")

    def witness(self) -> str:
        """A digest of the names, sizes and times of the local files that the arguments name."""
        files = {os.path.abspath(file) for pattern in self._local_patterns for file in _matches(pattern)}
        return digest_of(json.dumps(_stamps(sorted(files))))

    def load(self, num_proc: int | None, *, broken: bool = False) -> dict[str, SplitFiles]:
        """Let `datasets` prepare the dataset, and return the Arrow files of its splits.

        `datasets` would fail on a cache with missing files. If it is ``broken``, `datasets` is asked to rebuild it.
        """
        with needs("datasets", "huggingface", f"The first indexing of {self.path!r}"):
            import datasets
        others = {"download_mode": "reuse_cache_if_exists", **self.others} if broken else self.others
        try:
            loaded = datasets.load_dataset(
                self.path,
                self.name,
                data_files=self.data_files,
                revision=self.revision,
                num_proc=num_proc,
                keep_in_memory=False,
                **others,
            )
        except Exception as error:  # for a pattern without a match some builders raise a bare StopIteration
            unmatched = [pattern for pattern in self._local_patterns if next(_matches(pattern), None) is None]
            if not unmatched:
                error.add_note(
                    f"midepoch: load_dataset({self.path!r}) raised this. The path can be a dataset on the hub, a "
                    "folder of data files, a save_to_disk folder, or a builder such as 'parquet' with data_files."
                )
                raise
            raise NoDataError(
                f"{unmatched[0]} matches no file; the full path is {os.path.abspath(unmatched[0])}. "
                "Check data_files and data_dir."
            ) from error
        return {str(split): _files_of(self.path, str(split), dataset) for split, dataset in loaded.items()}


def split_files(load: LoadArguments, folder: Path, *, reload: bool, num_proc: int | None) -> dict[str, SplitFiles]:
    """The Arrow files of a dataset's splits: from the record if it is up to date, else from `datasets`."""
    path = folder / f"hf-{load.key}.json"
    reload = reload or load.forces_download
    if not reload and (splits := _recorded(path, load)[0]) is not None:
        return splits
    with exclusive_lock(path.with_suffix(".lock")):
        splits, why, is_broken = _recorded(path, load)
        if splits is not None and not reload:
            return splits
        if why and not reload:
            log.warning("%r is loaded and indexed again: %s", load.path, why)
        witness = load.witness()
        splits = load.load(num_proc, broken=is_broken)
        _write(path, witness, splits)
    return splits


def _recorded(path: Path, load: LoadArguments) -> tuple[dict[str, SplitFiles] | None, str, bool]:
    """The splits of a record if it is up to date, or why it is not, and whether files are missing from the cache."""
    try:
        record = json.loads(read_trusted(path))
        if record["version"] != VERSION:
            return None, "another version of midepoch wrote its record.", False
        splits = {name: SplitFiles(**one) for name, one in record["splits"].items()}
        stamps, witness = dict(record["stamps"]), record["witness"]
    except FileNotFoundError:
        return None, "", False
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"its record in {path} is broken ({error!r}).", False
    missing = [file for file in stamps if not os.path.exists(file)]
    changed = missing or [file for file, stamp in _stamps(stamps).items() if stamp != stamps[file]]
    if changed:
        what = "are missing from the cache" if missing else "in the cache were written again"
        why = f"Arrow files {what}: {len(changed):,} of {len(stamps):,}, such as {changed[0]}."
        return None, why, bool(missing)
    return (splits, "", False) if witness == load.witness() else (None, "its source files have changed.", False)


def _write(path: Path, witness: str, splits: Mapping[str, SplitFiles]) -> None:
    """Write a record, if the folder can be written to."""
    stamps = _stamps(file for one in splits.values() for file in one.files)
    plain = {name: asdict(one) for name, one in splits.items()}
    record = {"version": VERSION, "witness": witness, "splits": plain, "stamps": stamps}
    try:
        write_privately(path, json.dumps(record).encode())
    except OSError as error:
        log.warning("No record can be written to %s (%s): datasets is asked at every start.", path.parent, error)


def _stamps(files: Iterable[str]) -> dict[str, list[int]]:
    """The size of each file, and the time when it was changed."""
    stamps = {file: stamp_of(file) for file in files}
    return {file: [stamp.size, stamp.mtime_ns] for file, stamp in stamps.items()}


def saved_splits(path: str) -> dict[str, SplitFiles] | None:
    """The Arrow files of a ``save_to_disk`` folder; None if the path is no such folder."""
    folder = Path(path)
    if (folder / "dataset_dict.json").is_file():
        names = _json(folder / "dataset_dict.json")["splits"]
        return {name: _saved(folder / name) for name in names}
    if (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file():
        return {str(_json(folder / "state.json").get("_split") or "train"): _saved(folder)}
    return None


def _saved(folder: Path) -> SplitFiles:
    state = _json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise ValueError(
            f"{folder} was saved by an old release of datasets, with a list of row numbers besides its data. "
            "Load it with datasets.load_from_disk and pass it to midepoch.from_hf."
        )
    files = [str(folder / file["filename"]) for file in state["_data_files"]]
    missing = [file for file in files if not os.path.exists(file)]
    if missing:
        raise NoDataError(
            f"{missing[0]} is missing from a save_to_disk folder of {count('file', len(files))}: copy it again."
        )
    return SplitFiles(files)


def saved_info(folder: str) -> Any:
    """The ``DatasetInfo`` that `datasets` wrote beside the Arrow files in a folder."""
    with needs("datasets", "huggingface", "The info of a dataset"):
        import datasets
    return datasets.DatasetInfo.from_directory(folder)


def _json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise NoDataError(f"{path} cannot be read ({error}). Save the dataset again.") from error
    return content


def _files_of(path: str, split: str, loaded: Any) -> SplitFiles:
    """The cache files of a split that `datasets` has opened."""
    files = [os.path.abspath(file["filename"]) for file in loaded.cache_files]
    if not files and loaded.num_rows:
        raise NoDataError(
            f"{path!r}, split {split!r}, has no files in the cache: datasets holds it in memory. "
            "Leave keep_in_memory out, and unset HF_DATASETS_IN_MEMORY_MAX_SIZE."
        )
    return SplitFiles(files, loaded.num_rows)


def _plain(name: str, value: Any) -> Any:
    """An argument as JSON that is the same in every process."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(name, one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, one) for one in value]
    text = repr(value)
    if re.search(r" at 0x[0-9a-f]+", text):
        raise TypeError(
            f"The argument {name} is {text}, which does not say what it holds: two different calls would share one "
            "record. Pass plain values, or load with datasets and use midepoch.from_hf."
        )
    return f"{type(value).__qualname__}: {text}"


def _strings(value: Any) -> Iterator[str]:
    """The strings in ``data_files``: one, a list, or a dict of either."""
    if isinstance(value, str | os.PathLike):
        yield os.fspath(value)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, Sequence):
        for one in value:
            yield from _strings(one)


def _unchained(pattern: str) -> Iterator[str]:
    """The local files in a chained URL such as "zip://a.csv::archive.zip", or in "file:///a.csv" or a plain path."""
    yield from (part.removeprefix("file://") for part in pattern.split("::"))


def _matches(pattern: str) -> Iterator[str]:
    """The files of a local file, folder or glob. In folders hidden ones are left out, as `datasets` does."""
    for path in glob(pattern, recursive=True) if any(sign in pattern for sign in "*?[") else [pattern]:
        if os.path.isfile(path):
            yield path
        for folder, folders, names in os.walk(path):
            folders[:] = [name for name in folders if not name.startswith(".")]
            inside = [os.path.join(folder, name) for name in names if not name.startswith(".")]
            yield from filter(os.path.isfile, inside)
