"""An index over another one: what it does not change is passed on."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from midepoch.index.index import Index, IndexView
from midepoch.storage.store import Store


class WrappedIndex:
    """The files, blocks and columns of another index. Classes that change columns have ``schema`` and ``open``."""

    def __init__(self, inner: Index) -> None:
        self._inner = inner

    @property
    def view(self) -> IndexView:
        return self._inner.view

    @property
    def store(self) -> Store | None:
        return self._inner.store

    @property
    def layout(self) -> Mapping[str, Any]:
        return self._inner.layout

    def constants(self, file: int) -> Mapping[str, pa.Scalar]:
        return self._inner.constants(file)

    def stored_name(self, file: int, name: str) -> str | None:
        return self._inner.stored_name(file, name)

    def check(self, file: int) -> None:
        self._inner.check(file)
