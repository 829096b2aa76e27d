"""A folder per source: rows of several sources name files in different folders."""

import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midepoch.dataset import Dataset
from midepoch.formats import file_suffixes
from midepoch.integrations.multimodal.messages import Messages
from midepoch.storage.listing import find

Folder = str | os.PathLike[str] | None


@dataclass(frozen=True, kw_only=True)
class BySource:
    """A function of a row and its number: it calls the function of the source that the row is from."""

    first_rows: tuple[int, ...]
    """The number of the first row of each file."""
    functions: tuple[Messages, ...]
    """The function for the rows of each file."""

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The processor: a checkpoint knows this function by the processor's name."""
        return self.functions[0].processor

    def __call__(self, row: Mapping[str, Any], number: int, *rng: Any) -> Any:
        """The processor's result for a row; ``rng`` is a random generator, if the processor takes one."""
        return self.functions[bisect_right(self.first_rows, number) - 1](row, *rng)


def folders_of(source: Any, folders: Mapping[Any, Folder]) -> dict[str, Folder]:
    """The folder of each source that was named. Raises if these are not the keys of ``folders``."""
    sources = source if isinstance(source, list | tuple) else [source]
    if not all(isinstance(one, str | os.PathLike) for one in sources):
        raise TypeError(
            "data_folder is a dict, which needs the paths of the sources as its keys, and the source is an open "
            "dataset. Pass the paths as the source, or one data_folder that has all files."
        )
    chosen = {os.fspath(one): folder for one, folder in folders.items()}
    names = [os.fspath(one) for one in sources]
    if set(names) != set(chosen):
        missing, unknown = [name for name in names if name not in chosen], [key for key in chosen if key not in names]
        what = f"has no folder for {missing[0]!r}" if missing else f"names {unknown[0]!r}, which is not a source"
        raise ValueError(
            f"data_folder {what}. Its keys must be the sources: {', '.join(map(repr, names))}. The folder may be None "
            "for rows that name no files."
        )
    return {name: chosen[name] for name in names}


def by_source(
    rows: Dataset,
    functions: Mapping[str, Messages],
    storage_options: Mapping[str, Any] | None,
    format: str | None,
) -> BySource:
    """The function for rows of several sources, from the function for each source."""
    view = rows.file_rows("data_folder").index.view
    owners: dict[str, Messages] = {}
    for source, function in functions.items():
        listing = find(source, storage_options, suffixes=file_suffixes(format))
        owners |= dict.fromkeys(_paths(listing.root, listing.names), function)
    of_files = tuple(owners[path] for path in _paths(view.root, view.names))
    return BySource(first_rows=tuple(view.file_starts[:-1].tolist()), functions=of_files)


def _paths(root: str, names: Sequence[str]) -> list[str]:
    return [f"{root.rstrip('/')}/{name}" for name in names]
