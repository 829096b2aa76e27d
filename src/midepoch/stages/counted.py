"""Items that are counted: how many a lane has, the cursor after each, and the rows of each, known without reading rows.

A source counts its rows, and each stage counts its outputs from its inputs: how many there are, ``inputs_of`` outputs
and ``outputs_of`` inputs. Traces, costs and lengths are compositions of these. The items of a lane are numbered
from the cursor where reading starts. A reader asks for the numbers that it delivers, and every stage asks the one
before it for what it needs for these: so a reader that shares a lane takes no rows of the others.

The rows that a survey says are kept are all read and checked. To read all others too would cost as much as no survey.
So a sample of them passes through the filters, and none may come out.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from midepoch._common.hashing import I64, U64, hash_keys
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import SurveyMismatchError
from midepoch.stages.flow import Flow, noting

Names = npt.NDArray[np.object_]
Numbers = TypeVar("Numbers", I64, U64)
FIRST, FIRST_AT_ONCE = 64, 8
"""How many rows are checked at least, if there are as many, and how many of these before the first item."""
SHARE = 16
"""After these, one row is checked for this many rows that are kept."""
SPAN = 1 << 14
"""In a longer span, rows are tried at places that are evenly spread, not all of them."""
WHOLE = -1
"""Stands for the first and last token of a row that is not packed."""


class TracedRows(NamedTuple):
    """Rows of items, one entry a row in each array. Rows of an item follow each other."""

    items: I64
    """Which of the items that were asked for, from 0."""
    places: I64
    """The place in the batch, from 0; of a row, or of the pack that has the row."""
    documents: I64
    """The place in the pack, from 0."""
    parts: Names
    """The part of the mixture; empty if there is none. Parts of parts are divided by a slash."""
    files: Names
    rows: I64
    starts: I64
    """The first token of the row that is in the pack."""
    stops: I64
    """One more than the last token of the row in the pack. An ``eos`` that is added counts as the last."""

    @classmethod
    def of_rows(cls, files: Sequence[str], rows: I64) -> "TracedRows":
        """Items that are rows."""
        number = len(rows)
        zeros, whole = np.zeros(number, np.int64), np.full(number, WHOLE, np.int64)
        return cls(np.arange(number), zeros, zeros, _names([""] * number), _names(files), rows, whole, whole)

    def take(self, indices: I64) -> "TracedRows":
        """The entries at these indices."""
        return TracedRows._make(column[indices] for column in self)

    def within(self, part: str) -> "TracedRows":
        """The same rows as rows of a part of a mixture."""
        names = [f"{part}/{name}" if name else part for name in self.parts.tolist()]
        return self._replace(parts=_names(names))


def join_traced(traced: Sequence[TracedRows]) -> TracedRows:
    """All entries, in the order of their items."""
    if not traced:
        return TracedRows.of_rows([], np.empty(0, np.int64))
    joined = TracedRows._make(np.concatenate(columns) for columns in zip(*traced, strict=True))
    return joined.take(np.argsort(joined.items, kind="stable"))


def _names(names: Sequence[str]) -> Names:
    array: Names = np.empty(len(names), object)
    array[:] = names
    return array


class Amount(NamedTuple):
    """A number of items, and the tokens in them."""

    items: int
    tokens: int | None
    """None if lengths are not known."""

    def plus(self, other: "Amount") -> "Amount":
        """Both together."""
        known = self.tokens is not None and other.tokens is not None
        return Amount(self.items + other.items, (self.tokens or 0) + (other.tokens or 0) if known else None)


Amounts = dict[str, Amount]
"""Amounts of all items, under the name "", and of those of each part of a mixture. Parts of parts have a slash."""


def sum_amounts(amounts: Iterable[Amounts]) -> Amounts:
    """All amounts as one. Tokens are known where all of them are."""
    joined: Amounts = {"": Amount(0, 0)}
    for one in amounts:
        for name, amount in one.items():
            joined[name] = joined.get(name, Amount(0, 0)).plus(amount)
    return joined


def amounts_of_parts(parts: Sequence[tuple[str, Amounts]]) -> Amounts:
    """The amounts of a mixture, of those of its parts by name. A part may come several times."""
    named = [{f"{part}/{name}" if name else part: one for name, one in own.items()} for part, own in parts]
    whole = sum_amounts({"": own[""]} for _, own in parts)
    return sum_amounts([whole, *named])


TokensOf = Callable[[I64], I64]
"""Says how many tokens of rows of these lengths are delivered."""
Wanted = Iterator[I64]
"""Numbers of items, which rise over all arrays.

An empty array says that the next numbers are not known yet: what was asked for before must be made without them. If it
is asked for more, the next numbers are looked for, however long that takes.
"""
CHUNK = 1 << 14
"""How many inputs are counted at a time."""


class Pieces(NamedTuple):
    """What items are made of: one entry for each input of each item. The inputs of an item follow each other."""

    items: I64
    """Which of the items that were asked for, from 0."""
    inputs: I64
    """The numbers of the inputs."""
    starts: I64 | None = None
    """The first token of the input that is in the item; None if the items are no packs."""
    stops: I64 | None = None


class CountedItems(ABC):
    """The items of one lane from a cursor on."""

    @abstractmethod
    def has(self, number: int) -> bool:
        """True if there is an item with this number. Counts no further than it must."""

    @abstractmethod
    def total(self) -> int:
        """The number of items."""

    @abstractmethod
    def cursor(self, items: int) -> Cursor:
        """The cursor after the first ``items`` items, of which there are that many."""

    @abstractmethod
    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        """The wanted items, read through what ``Source.open`` returned. Their cursors mean nothing."""

    is_endless = False
    """True if there is always a next item, so that there is no total."""
    batched = False
    """True if each item is a batch, whose key is the sum of the hashes of what it is made of."""
    members = 1
    """The number of rows or packs of an item: more than 1 for batches."""

    @abstractmethod
    def keys(self, numbers: I64) -> I64:
        """The keys of these items, which exist. Their numbers rise."""

    @abstractmethod
    def trace(self, numbers: I64) -> TracedRows:
        """The rows of these items, which exist. Their numbers rise."""

    @abstractmethod
    def find(self, file: str, row: int) -> I64:
        """The numbers of the items that have this row of a file, or a piece of it."""

    def costs(self, numbers: I64) -> I64:
        """The costs of these items, which exist, and whose numbers rise: the squares of their documents' lengths."""
        raise NotImplementedError

    @abstractmethod
    def passed(self, cursor: Cursor, tokens_of: TokensOf = np.asarray, *, counting: bool = False) -> Amounts:
        """The amounts before a cursor, of items from a lane's beginning on.

        Rows are looked up once: later cursors need only those after. The number of packs is known only with
        ``counting``, which counts their windows.
        """

    @abstractmethod
    def amounts(self, numbers: I64, tokens: I64 | None = None) -> Amounts:
        """The amounts of these items, which exist, and whose numbers rise. Of each, only so many ``tokens`` count."""

    def kept(self, numbers: I64) -> npt.NDArray[np.bool_]:
        """Whether the survey says that filters keep these rows of files."""
        raise NotImplementedError

    def lengths(self, numbers: I64) -> I64:
        """The lengths that the survey knows of these rows."""
        raise NotImplementedError

    def hashes(self, numbers: I64) -> U64:
        """What these items add to a digest."""
        return hashes_of(self.keys(numbers), batched=self.batched)


def hashes_of(keys: I64, *, batched: bool) -> U64:
    """What items with these keys add to a digest. The key of a batch is a sum of hashes already."""
    return keys.view(np.uint64) if batched else hash_keys(keys)


def added(values: Numbers, places: I64, count: int) -> Numbers:
    """An array of this length, with the sum of the values at each place."""
    sums = np.zeros(count, values.dtype)
    np.add.at(sums, places, values)
    return sums


class CountedOutputs(CountedItems):
    """The outputs of a stage. What is known of them follows from what is known of the inputs."""

    def __init__(self, inputs: CountedItems, make: Callable[[Flow], Flow] = lambda flow: flow) -> None:
        """``make`` makes a flow of outputs of a flow of inputs."""
        self._inputs, self._make = inputs, make
        self.is_endless, self.batched, self.members = inputs.is_endless, inputs.batched, inputs.members

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        return self._make(self._inputs.flow(opened, (self.inputs_of(numbers).inputs for numbers in wanted)))

    @abstractmethod
    def inputs_of(self, numbers: I64) -> Pieces:
        """What these items, which exist, are made of. Their numbers rise."""

    @abstractmethod
    def outputs_of(self, inputs: I64) -> I64:
        """The numbers, which rise, of the items that these inputs are in. Some may not exist."""

    def keys(self, numbers: I64) -> I64:
        return self._inputs.keys(self.inputs_of(numbers).inputs)

    def lengths(self, numbers: I64) -> I64:
        return self._inputs.lengths(self.inputs_of(numbers).inputs)

    def costs(self, numbers: I64) -> I64:
        items, inputs, starts, stops = self.inputs_of(numbers)
        of_pieces = self._inputs.costs(inputs) if starts is None or stops is None else (stops - starts) ** 2
        return added(of_pieces, items, len(numbers))

    def passed(self, cursor: Cursor, tokens_of: TokensOf = np.asarray, *, counting: bool = False) -> Amounts:
        return self._inputs.passed(cursor, tokens_of, counting=counting)

    def amounts(self, numbers: I64, tokens: I64 | None = None) -> Amounts:
        _, inputs, starts, stops = self.inputs_of(numbers)
        pieces = tokens if starts is None or stops is None else stops - starts
        amounts = amounts_of_pieces(self._inputs, inputs, pieces)
        return amounts | {"": amounts[""]._replace(items=len(numbers))}

    def trace(self, numbers: I64) -> TracedRows:
        pieces = self.inputs_of(numbers)
        inputs, of_pieces = np.unique(pieces.inputs, return_inverse=True)
        rows = self._inputs.trace(inputs)
        counts = np.bincount(rows.items, minlength=len(inputs))
        sizes = counts[of_pieces]  # of each piece, how many rows its input has
        of_rows = np.repeat(np.arange(len(sizes)), sizes)
        inside = np.arange(len(of_rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        traced = rows.take((np.cumsum(counts) - counts)[of_pieces][of_rows] + inside)
        places = (np.arange(len(sizes)) - np.searchsorted(pieces.items, pieces.items))[of_rows]
        traced = traced._replace(items=pieces.items[of_rows])
        if pieces.starts is None or pieces.stops is None:
            return traced._replace(places=places * self._inputs.members + traced.places)
        return traced._replace(documents=places, starts=pieces.starts[of_rows], stops=pieces.stops[of_rows])

    def find(self, file: str, row: int) -> I64:
        numbers = self.outputs_of(self._inputs.find(file, row))
        return numbers[[number >= 0 and self.has(number) for number in numbers.tolist()]]


def amounts_of_pieces(items: CountedItems, numbers: I64, tokens: I64 | None) -> Amounts:
    """The amounts of items that come in any order, and of which several pieces may have ``tokens``."""
    unique, places = np.unique(numbers, return_inverse=True)
    return items.amounts(unique, None if tokens is None else added(tokens, places, len(unique)))


class Outputs(CountedOutputs):
    """The outputs of a stage that makes one of each input."""

    def has(self, number: int) -> bool:
        return self._inputs.has(number)

    def total(self) -> int:
        return self._inputs.total()

    def cursor(self, items: int) -> Cursor:
        return self._inputs.cursor(items)

    def inputs_of(self, numbers: I64) -> Pieces:
        return Pieces(np.arange(len(numbers)), numbers)

    def outputs_of(self, inputs: I64) -> I64:
        return inputs


class Batches(CountedOutputs):
    """Batches of ``size`` items. The last one may be smaller, or is left out."""

    def __init__(self, inputs: CountedItems, make: Callable[[Flow], Flow], size: int, *, drop_last: bool) -> None:
        super().__init__(inputs, make)
        self._size, self._drop_last = size, drop_last
        self.batched, self.members = True, inputs.members * size

    def has(self, number: int) -> bool:
        return self._inputs.has(number * self._size + (self._size - 1 if self._drop_last else 0))

    def total(self) -> int:
        return self._inputs.total() // self._size if self._drop_last else -(-self._inputs.total() // self._size)

    def cursor(self, items: int) -> Cursor:
        inputs = items * self._size
        whole = inputs == 0 or self._inputs.has(inputs - 1)
        return self._inputs.cursor(inputs if whole else self._inputs.total())

    def passed(self, cursor: Cursor, tokens_of: TokensOf = np.asarray, *, counting: bool = False) -> Amounts:
        amounts = super().passed(cursor, tokens_of, counting=counting)
        return amounts | {"": amounts[""]._replace(items=-(-amounts[""].items // self._size))}

    def inputs_of(self, numbers: I64) -> Pieces:
        inputs = (numbers[:, None] * self._size + np.arange(self._size)).ravel()
        if len(inputs) and not self._inputs.has(int(inputs[-1])):
            inputs = inputs[inputs < self._inputs.total()]
        return Pieces(np.searchsorted(numbers, inputs // self._size), inputs)

    def outputs_of(self, inputs: I64) -> I64:
        return np.unique(inputs // self._size)

    def keys(self, numbers: I64) -> I64:
        pieces = self.inputs_of(numbers)
        return added(self._inputs.hashes(pieces.inputs), pieces.items, len(numbers)).view(np.int64)


Known = TypeVar("Known")


class Groups(CountedOutputs, Generic[Known]):
    """The outputs of groups of ``size`` inputs. Groups are counted one after the other, each when it is needed."""

    def __init__(self, inputs: CountedItems, size: int, own_numbers: Cursor = (0,)) -> None:
        """``own_numbers`` are the stage's own in the cursor: the outputs delivered, then a check if it has one."""
        super().__init__(inputs)
        self._size, self._own_numbers, self._delivered = size, own_numbers, own_numbers[0]
        self._ends: list[int] = []
        """For each group that is counted, the number of outputs up to its end, delivered ones included."""
        self._complete = False
        self._known: dict[int, Known] = {}
        self._groups_kept = 1

    @abstractmethod
    def _look_up(self, group: int) -> Known:
        """What is known of a group, which says what its outputs are made of."""

    def _known_of(self, group: int) -> Known:
        """The same. It is kept of a few groups: what is counted is read soon after."""
        if group not in self._known:
            while len(self._known) >= self._groups_kept:
                del self._known[next(iter(self._known))]
            self._known[group] = self._look_up(group)
        return self._known[group]

    @abstractmethod
    def _outputs(self, group: int) -> int:
        """The number of outputs of a group."""

    def has(self, number: int) -> bool:
        while not self._complete and (not self._ends or self._ends[-1] <= number + self._delivered):
            self._count_group()
        return bool(self._ends) and self._ends[-1] > number + self._delivered

    def total(self) -> int:
        self._inputs.total()  # raises if there is no end
        while not self._complete:
            self._count_group()
        return max(0, self._ends[-1] - self._delivered)

    def _count_group(self) -> None:
        group = len(self._ends)
        self._complete = not self._inputs.has((group + 1) * self._size)
        self._ends.append(self._before(group) + self._outputs(group))

    def _before(self, group: int) -> int:
        return self._ends[group - 1] if group else 0

    def _members(self, group: int) -> I64:
        """The numbers of a group's inputs."""
        begin, end = group * self._size, (group + 1) * self._size
        return np.arange(begin, end if self._inputs.has(end - 1) else max(begin, self._inputs.total()))

    def _counted_until(self, group: int) -> None:
        """Count the groups up to this one, which exists."""
        while len(self._ends) <= group:
            self._count_group()

    def _by_group(self, numbers: I64) -> Iterator[tuple[int, I64]]:
        """The groups of these items, which must exist, and the number of each item in its group."""
        if not len(numbers):
            return
        self.has(int(numbers[-1]))
        outputs = numbers + self._delivered
        groups = np.searchsorted(self._ends, outputs, "right")
        for group in np.unique(groups).tolist():
            yield group, outputs[groups == group] - self._before(group)

    @abstractmethod
    def _outputs_with(self, group: int, inside: int) -> I64:
        """The numbers of the items that an input of a group, which is counted, is in."""

    def outputs_of(self, inputs: I64) -> I64:
        outputs = [inputs[:0]]
        for number in inputs.tolist():
            group, inside = divmod(number, self._size)
            self._counted_until(group)
            outputs.append(self._outputs_with(group, inside))
        return np.unique(np.concatenate(outputs))

    def cursor(self, items: int) -> Cursor:
        """The resume rule: the group's start and its delivered outputs, or the group's end after its last output."""
        if items == 0:
            return (*self._inputs.cursor(0), *self._own_numbers)
        self.has(items - 1)
        outputs = items + self._delivered
        group = bisect_left(self._ends, outputs)
        if self._ends[group] == outputs:
            return (*self._inputs.cursor(int(self._members(group)[-1]) + 1), *[0] * len(self._own_numbers))
        own_numbers = (outputs - self._before(group), *[0] * (len(self._own_numbers) - 1))
        return (*self._inputs.cursor(group * self._size), *own_numbers)


class Kept(Groups[I64]):
    """The rows of files that surveyed filters keep. Some of those that are left out are read too: see ``Checked``."""

    def __init__(self, rows: CountedItems) -> None:
        super().__init__(rows, CHUNK)
        self._kept_read = self._others_read = 0

    def _outputs(self, group: int) -> int:
        return len(self._known_of(group))

    def _look_up(self, group: int) -> I64:
        """The rows in a group that are kept."""
        members = self._members(group)
        return members[self._inputs.kept(members)] if len(members) else members

    def inputs_of(self, numbers: I64) -> Pieces:
        inputs = [self._known_of(group)[inside] for group, inside in self._by_group(numbers)]
        return Pieces(np.arange(len(numbers)), np.concatenate([numbers[:0], *inputs]))

    def _outputs_with(self, group: int, inside: int) -> I64:
        return self._before(group) + np.flatnonzero(self._known_of(group) == group * self._size + inside)

    def cursor(self, items: int) -> Cursor:
        if items == 0:
            return self._inputs.cursor(0)
        return self._inputs.cursor(int(self.inputs_of(np.array([items - 1])).inputs[0]) + 1)

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        return self._inputs.flow(opened, self._with_others(wanted))

    def _with_others(self, wanted: Wanted) -> Iterator[I64]:
        begin = 0
        for numbers in wanted:
            kept = self.inputs_of(numbers).inputs
            yield np.sort(np.concatenate([kept, self._sample(begin, kept)])) if len(kept) else kept
            begin = int(kept[-1]) + 1 if len(kept) else begin

    def _sample(self, begin: int, kept: I64) -> I64:
        """Some rows that are left out, from ``begin`` on and before the last of these that are kept."""
        self._kept_read += len(kept)
        allowed = FIRST + self._kept_read // SHARE - self._others_read
        most = min(allowed, FIRST_AT_ONCE + len(kept) // SHARE)
        end = int(kept[-1])
        if most <= 0 or end <= begin:
            return np.empty(0, np.int64)
        candidates = np.arange(begin, end) if end - begin <= SPAN else np.linspace(begin, end - 1, 4 * most, dtype=int)
        others = candidates[~self._inputs.kept(candidates)]
        if len(others) > most:
            others = others[np.linspace(0, len(others) - 1, most, dtype=int)]
        self._others_read += len(others)
        return others


class Checked(Outputs):
    """What is left after the last filter: the rows that the survey says are kept, or a SurveyMismatchError."""

    def __init__(self, inputs: CountedItems, filters: Sequence[str], name_row: Callable[[int], str]) -> None:
        """Take the names of the filters, and what names the row of a key."""
        super().__init__(inputs)
        self._filters, self._name_row = " or ".join(dict.fromkeys(filters)), name_row

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        due: deque[int] = deque()

        def asked() -> Iterator[I64]:
            for numbers in wanted:
                due.extend(self._inputs.keys(numbers).tolist())
                yield numbers

        def check(keys: list[int]) -> None:
            for key in keys:
                if not due or due[0] != key:
                    if key not in due:
                        raise rejected_row(self._filters, self._name_row(key), survey="leaves out")
                    check_end()
                due.popleft()

        def check_end() -> None:
            if due:
                raise rejected_row(self._filters, self._name_row(due[0]))

        return noting(self._inputs.flow(opened, asked()), check, check_end)


def rejected_row(stage: str, row: str, *, survey: str = "keeps") -> SurveyMismatchError:
    """The error for a row that a stage leaves out, and that the survey says it keeps; or the other way round."""
    return SurveyMismatchError(
        f"The survey says that {stage} {survey} {row}, and now it does not. A function changed, or does not always say "
        "the same of a row. After a change pass another version to survey(version=...)."
    )
