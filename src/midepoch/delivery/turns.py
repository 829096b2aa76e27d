"""Turns: what a reader makes, worker processes send, and a pass hands over. They are cut, and put together again."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np

from midepoch._common.hashing import I64, U64
from midepoch.values.rows import RowItems, RowRounds


class Turns(NamedTuple):
    """Consecutive turns of a reader, which go round some lanes. A turn at a lane that has run out is empty."""

    items: Any
    """A sequence, which need not be made yet."""
    cursors: Sequence[Sequence[int]] | I64 = ()
    """The cursor of its lane after each item; none if items are counted."""
    hashes: U64 | None = None
    """What each item adds to a digest, if one is kept."""
    empty: int = 0
    """How many of the turns are empty."""
    places: I64 | None = None
    """Which of the turns have the items, from 0; None if all of them do, or there are none."""

    @property
    def number(self) -> int:
        """The number of turns."""
        return len(self.items) + self.empty

    @property
    def places_of_items(self) -> I64:
        """Which of the turns have the items, from 0."""
        return np.arange(len(self.items)) if self.places is None else self.places

    def turns_until(self, items: int) -> int:
        """The number of turns up to the one that has the last of the first ``items`` items."""
        return items if self.places is None or items == 0 else int(self.places[items - 1]) + 1

    def cut(self, start: int, stop: int) -> "Turns":
        """Some of the turns."""
        if stop - start == self.number:
            return self
        begin, end, places = start, stop, None
        if self.empty:
            begin, end = np.searchsorted(self.places_of_items, (start, stop)).tolist()
            places = self.places_of_items[begin:end] - start
        return Turns(
            self.items.slice(begin, end) if isinstance(self.items, RowItems) else self.items[begin:end],
            self.cursors[begin:end],
            None if self.hashes is None else self.hashes[begin:end],
            stop - start - (end - begin),
            places,
        )


NO_TURNS = Turns(())


def one_by_one(all_turns: Iterable[Turns]) -> Iterator[Turns]:
    """The same turns, each for itself."""
    for turns in all_turns:
        listed = turns._replace(items=list(turns.items))
        yield from (listed.cut(turn, turn + 1) for turn in range(turns.number))


def in_succession(parts: Sequence[Turns]) -> Turns:
    """The turns of a part after those of the part before it."""
    starts = accumulate((part.number for part in parts), initial=0)
    return _combined(parts, [part.places_of_items + start for part, start in zip(parts, starts, strict=False)])


def round_robin(parts: Sequence[Turns]) -> Turns:
    """One turn of each part, then the next of each. All parts have as many. Those of a single part are not copied."""
    if len(parts) == 1:
        return parts[0]
    if any(part.empty for part in parts):
        return _combined(parts, [part.places_of_items * len(parts) + place for place, part in enumerate(parts)])
    items, hashes = [part.items for part in parts], [part.hashes for part in parts]
    return Turns(
        RowRounds(tuple(items)) if all(isinstance(one, RowItems) for one in items) else _alternating(items),
        _alternating([part.cursors for part in parts]),
        None if hashes[0] is None else np.stack(hashes, axis=1).ravel(),  # type: ignore[arg-type]
    )


def _alternating(parts: Sequence[Any]) -> list[Any]:
    return list(chain.from_iterable(zip(*parts, strict=True)))


def _combined(parts: Sequence[Turns], places: Sequence[I64]) -> Turns:
    """The turns of all parts as one; ``places`` are those of the items of each part, among the turns of all."""
    of_items = np.concatenate(places)
    order = np.argsort(of_items)
    items = [*chain.from_iterable(part.items for part in parts)]
    cursors = [*chain.from_iterable(part.cursors for part in parts)]
    hashes = [part.hashes for part in parts if part.hashes is not None]
    return Turns(
        [items[item] for item in order.tolist()],
        [cursors[item] for item in order.tolist()] if cursors else (),
        np.concatenate(hashes)[order] if hashes else None,
        sum(part.empty for part in parts),
        of_items[order],
    )
