"""Which Arrow files a Hugging Face dataset has, recorded so that `datasets` is asked only once.

A record is a small JSON file next to the indexes. Its name covers every argument of the call. It holds the Arrow files
of each split, and a digest of the local files that the arguments name. If one of them has changed, `datasets` is asked
again, and decides what it has to prepare again.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

from midepoch._common.checks import cached_property, count
from midepoch._common.files import exclusive_lock, read_trusted, write_privately
from midepoch.errors import NoDataError, needs
from midepoch.index.saved import digest_of
from midepoch.storage.local import stamp_of
from midepoch.storage.urls import is_url

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
