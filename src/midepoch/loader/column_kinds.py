"""Columns that are a tensor in one batch and a list in another: a loop that was written for one fails at some step."""

from collections.abc import Iterable, Iterator
from typing import Any

from midepoch._common.checks import log_once


class ColumnKinds:
    """Which columns of the batches are lists. A column that changes is logged once."""

    def __init__(self) -> None:
        self._lists: dict[str, bool] = {}
        self._last: list[bool] = []
        self._has_changed = False

    def watched(self, in_bulk: Iterator[Iterable[Any]]) -> Iterator[Iterable[Any]]:
        """The batches as they are."""
        for batches in in_bulk:
            yield batches if self._has_changed else map(self._seen, batches)
            del batches  # so that the next ones are made in the memory of these

    def _seen(self, batch: Any) -> Any:
        if type(batch) is dict:
            kinds = [type(column) is list for column in batch.values()]
            if kinds != self._last:
                self._last = kinds
                self._compare(dict(zip(batch, kinds, strict=True)))
        return batch

    def _compare(self, lists: dict[str, bool]) -> None:
        changed = next((name for name in lists if self._lists.setdefault(name, lists[name]) != lists[name]), None)
        if changed is not None and not self._has_changed:
            self._has_changed = True
            log_once(
                f"The column {changed!r} is a tensor in some batches and a list in others, because its lists have "
                "different lengths in some batches only, or a value is null there. For one kind in every batch, pad "
                "in a collate_fn, or make rows of one length with dataset.pack or map, or get Python lists with "
                "dataset.with_format('python')."
            )
