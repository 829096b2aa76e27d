"""The index of files, on this machine or in an object store."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from midepoch.formats import FORMATS, BlockReader
from midepoch.index.index import Index, IndexView
from midepoch.index.remote import StoredBlocks
from midepoch.index.saved import forget
from midepoch.index.schemas import schema_of
from midepoch.storage.local import KeptMaps, check_unchanged
from midepoch.storage.objects import Location, StoredFile
from midepoch.storage.store import Store


class FileIndex:
    """The blocks of files, all of which are on this machine or in one ``store``."""

    layout: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, view: IndexView, store: Store | None = None) -> None:
        self.view, self.store = view, store
        self._maps = KeptMaps()

    def __reduce__(self) -> tuple[Any, ...]:
        return FileIndex, (self.view, self.store)

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        return schema_of(self.view, columns)

    def constants(self, file: int) -> Mapping[str, pa.Scalar]:
        return {}

    def stored_name(self, file: int, name: str) -> str | None:
        return name

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        open_blocks, location = FORMATS[self.view.formats[file]].open_blocks, location_of(self, file)
        opened = partial(open_blocks, location, self.view.schemas[file], wanted)
        if isinstance(location, StoredFile):
            return StoredBlocks(location, opened, partial(forget, self.view.saved_at))
        reader = opened()
        if is_mapped(self, file):
            self._maps.keep(location, self.view.stamps[file].size)
        return reader

    def check(self, file: int) -> None:
        if self.store is None:
            check_unchanged(self.view.path(file), self.view.stamps[file])


def location_of(index: Index, file: int) -> Location:
    """Where formats read a file: its path, or the version of an object that was indexed."""
    view = index.view
    if index.store is None:
        return view.path(file)
    return StoredFile(index.store, view.path(file), size=view.stamps[file].size, version=view.versions[file])


def is_mapped(index: Index, file: int) -> bool:
    """True if the blocks of a file are views of its bytes."""
    return index.store is None and FORMATS[index.view.formats[file]].is_mapped
