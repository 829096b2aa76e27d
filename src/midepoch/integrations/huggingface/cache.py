"""Which Arrow files a Hugging Face data set lies in, remembered so that `datasets` is asked only once.

A record is a small JSON file beside the indexes, under a name that covers every argument of the call. It holds the
Arrow files of each split, and a digest of the local files that the arguments name: if any of them has changed,
`datasets` is asked again, and decides by itself what has to be built anew.
"""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Any

from midepoch._common.files import exclusive_lock, write_atomically
from midepoch.errors import MissingExtraError, NoDataError
from midepoch.index.saved import digest_of
from midepoch.storage.local import FileStamp, stamp_of
from midepoch.storage.urls import is_url

log = logging.getLogger("midepoch")

VERSION = 1
HARMLESS = ("token", "num_proc", "verification_mode", "download_config", "download_mode")
"""Arguments that change how data is fetched, not which; some of them are secret."""


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """A split's Arrow files with their stamps, in reading order, and its rows."""

    files: tuple[tuple[str, FileStamp], ...]
    rows: int


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of ``datasets.load_dataset``, but for its split."""

    path: str
    name: str | None = None
    data_files: Any = None
    revision: Any = None
    others: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """A name for all that may change the data."""
        told: dict[str, Any] = {
            "path": os.path.abspath(self.path) if os.path.exists(self.path) else self.path,
            "name": self.name,
            "data_files": _plain("data_files", self.data_files),
            "revision": _plain("revision", self.revision),
        }
        told |= {name: _plain(name, self.others[name]) for name in sorted(self.others) if name not in HARMLESS}
        if any(not os.path.isabs(pattern) for pattern in self._local_patterns):
            told["below"] = os.getcwd()
        return digest_of(json.dumps(told))

    @property
    def _local_patterns(self) -> list[str]:
        """The files and folders that the arguments name, as far as they are not URLs or inside a repository."""
        path = [self.path] if os.path.exists(self.path) else []
        data_dir = self.others.get("data_dir")
        folder = [os.path.expanduser(data_dir)] if isinstance(data_dir, str | os.PathLike) else []
        below = next((one for one in (*folder, *path) if os.path.isdir(one)), "")
        files = [os.path.join(below, part) for one in _strings(self.data_files) for part in _unchained(one)]
        named = [*path, *(files or folder)]
        in_repository = "/" in self.path and not os.path.exists(self.path)
        return [one for one in named if not is_url(one) and not (in_repository and not os.path.isabs(one))]

    @property
    def wants_anew(self) -> bool:
        """Whether the caller has told `datasets` not to trust what it has prepared before."""
        mode = self.others.get("download_mode")
        return getattr(mode, "value", mode) not in (None, "reuse_dataset_if_exists")

    def witness(self) -> dict[str, Any]:
        """How many local files the arguments name, and a digest of their names, sizes and times."""
        files = sorted({os.path.abspath(file) for pattern in self._local_patterns for file in _matches(pattern)})
        stamps = [stamp_of(file) for file in files]
        lines = "\n".join(f"{file}\0{one.size}\0{one.mtime_ns}" for file, one in zip(files, stamps, strict=True))
        return {"files": len(files), "bytes": sum(one.size for one in stamps), "digest": digest_of(lines)}

    def load(self, num_proc: int | None, *, broken: bool = False) -> dict[str, SplitFiles]:
        """Have `datasets` prepare the data set, and find the Arrow files of its splits.

        Of a cache that is ``broken``, `datasets` itself would open what is not there: it is told to prepare it anew.
        """
        try:
            import datasets
        except ImportError as error:
            raise MissingExtraError("datasets", "huggingface", f"The first indexing of {self.path!r}") from error
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
        except Exception as error:  # of a pattern that matches nothing, some builders say just StopIteration
            nothing = [pattern for pattern in self._local_patterns if next(_matches(pattern), None) is None]
            if not nothing:
                error.add_note(
                    f"midepoch: load_dataset({self.path!r}) failed with this. The path may be a data set of the hub, a "
                    "folder of data files, one that save_to_disk wrote, or a builder such as 'parquet' with data_files."
                )
                raise
            raise NoDataError(
                f"{nothing[0]} matches no file; it was looked for at {os.path.abspath(nothing[0])}. "
                "Check data_files and data_dir."
            ) from error
        return {str(split): _files_of(self.path, str(split), one) for split, one in loaded.items()}


def split_files(call: Call, folder: Path, *, anew: bool, num_proc: int | None) -> dict[str, SplitFiles]:
    """The Arrow files of a data set's splits: as remembered where that still holds, else as `datasets` says."""
    path = folder / f"hf-{call.key}.json"
    anew = anew or call.wants_anew
    known = None if anew else _still_true(path, call)
    if known is not None:
        return known
    with exclusive_lock(path.with_suffix(".lock")):
        known = None if anew else _still_true(path, call, tell=True)
        if known is None:
            witness = call.witness()
            known = call.load(num_proc, broken=bool(_gone(_remembered(path))))
            _write(path, {"version": VERSION, "witness": witness, "splits": _plain_splits(known)})
    return known


def _still_true(path: Path, call: Call, *, tell: bool = False) -> dict[str, SplitFiles] | None:
    """What a record says, if it is there and nothing has changed since; else maybe tell why not."""
    try:
        record = json.loads(path.read_text())
        splits = _read_splits(record)
        changed = _what_changed(splits, record["witness"], call.witness())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if tell:
            log.warning("What was remembered of %r in %s is broken (%r); it is found anew.", call.path, path, error)
        return None
    if changed and tell:
        log.warning("%r is loaded and indexed anew: %s", call.path, changed)
    return None if changed else splits


def _remembered(path: Path) -> dict[str, SplitFiles]:
    """What a record says, true or not; nothing, if it cannot be read."""
    try:
        return _read_splits(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _gone(splits: Mapping[str, SplitFiles]) -> list[str]:
    """The Arrow files that are not there any more."""
    return [file for split in splits.values() for file, _ in split.files if not os.path.exists(file)]


def _what_changed(splits: Mapping[str, SplitFiles], then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Why a record does not hold any more, if so."""
    if then != now:
        return (
            f"the files it is made from have changed. There were {then['files']:,} with {then['bytes']:,} bytes; "
            f"now there are {now['files']:,} with {now['bytes']:,}."
        )
    files = [pair for split in splits.values() for pair in split.files]
    if gone := _gone(splits):
        return f"{len(gone):,} of its {len(files):,} Arrow files are gone from the cache, such as {gone[0]}."
    other = [file for file, stamp in files if stamp_of(file) != stamp]
    if other:
        return f"{len(other):,} of its {len(files):,} Arrow files in the cache were written again, such as {other[0]}."
    return None if splits else "it was remembered by another version of midepoch."


def saved_splits(path: str) -> dict[str, SplitFiles] | None:
    """The Arrow files of a folder that ``save_to_disk`` wrote, or None if it is none."""
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
            f"{folder} was saved with a list of row numbers beside its data, by an old release of datasets. "
            "Load it with datasets.load_from_disk and pass it to midepoch.from_hf."
        )
    files = [str(folder / one["filename"]) for one in state["_data_files"]]
    missing = [file for file in files if not os.path.exists(file)]
    if missing:
        raise NoDataError(f"{missing[0]} is missing from a save_to_disk folder of {len(files)} files: copy it again.")
    return SplitFiles(tuple((file, stamp_of(file)) for file in files), -1)


def _json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise NoDataError(f"{path} cannot be read ({error}). Save the data set again.") from error
    return content


def _files_of(path: str, split: str, loaded: Any) -> SplitFiles:
    """The cache files of a split as `datasets` opened it."""
    files = [os.path.abspath(one["filename"]) for one in loaded.cache_files]
    if not files and loaded.num_rows:
        raise NoDataError(
            f"{path!r}, split {split!r}, has no files in the cache: datasets holds it in memory. "
            "Leave keep_in_memory out, and unset HF_DATASETS_IN_MEMORY_MAX_SIZE."
        )
    return SplitFiles(tuple((file, stamp_of(file)) for file in files), loaded.num_rows)


def _write(path: Path, record: Mapping[str, Any]) -> None:
    """Remember a record, if that can be."""
    try:
        write_atomically(path, json.dumps(record).encode())
    except OSError as error:
        log.warning("Nothing can be remembered in %s (%s): datasets is asked at every start.", path.parent, error)


def _plain_splits(splits: Mapping[str, SplitFiles]) -> dict[str, Any]:
    return {
        name: {"rows": one.rows, "files": [[file, stamp.size, stamp.mtime_ns] for file, stamp in one.files]}
        for name, one in splits.items()
    }


def _read_splits(record: Mapping[str, Any]) -> dict[str, SplitFiles]:
    """The splits of a record; none, if another version wrote it."""
    return {
        name: SplitFiles(tuple((file, FileStamp(size, time)) for file, size, time in one["files"]), one["rows"])
        for name, one in (record["splits"].items() if record["version"] == VERSION else ())
    }


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
            f"The argument {name} is {text}, which says nothing that could be remembered of it: two calls that differ "
            "would look alike. Pass plain values, or load with datasets and use midepoch.from_hf."
        )
    return f"{type(value).__qualname__}: {text}"


def _strings(value: Any) -> Iterator[str]:
    """The strings in data_files, which is one, a list, or a dict of either."""
    if isinstance(value, str | os.PathLike):
        yield os.fspath(value)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, Sequence):
        for one in value:
            yield from _strings(one)


def _unchained(pattern: str) -> Iterator[str]:
    """The local files in a URL such as "zip://a.csv::archive.zip" or "file:///a.csv"; a plain path as it is."""
    yield from (part.removeprefix("file://") for part in pattern.split("::"))


def _matches(pattern: str) -> Iterator[str]:
    """The files that a local file, folder or glob names; below a folder not the hidden ones, which `datasets` skips."""
    for path in glob(pattern, recursive=True) if any(sign in pattern for sign in "*?[") else [pattern]:
        if os.path.isfile(path):
            yield path
        for folder, folders, names in os.walk(path):
            folders[:] = [name for name in folders if not name.startswith(".")]
            inside = [os.path.join(folder, name) for name in names if not name.startswith(".")]
            yield from filter(os.path.isfile, inside)
