"""Lanes that give one item in each round until they run out. The items of all are one sequence, without empty turns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from midepoch._common.checks import count

Counts = tuple[Callable[[int, int], bool], Callable[[int], int]]
"""Whether a lane has an item with an ordinal, and how many items it has."""
NO_END = 1 << 62
"""The number of an item that no reader reaches."""


@dataclass(slots=True)
class Segment:
    """Rounds in which the same lanes have items."""

    first: int
    """The number, in the sequence, of the segment's first item."""
    first_round: int
    lanes: tuple[int, ...]
    """The lanes that have items, in the order of their turns."""
    most: int
    """The number of rounds after which another lane begins."""
    rounds: int
    """How many rounds are known to be in the segment."""
    ended: bool

    @property
    def end(self) -> int:
        """One more than the number of the last item that is known to be in the segment."""
        return self.first + self.rounds * len(self.lanes)


class Run(NamedTuple):
    """Turns of a reader that go round lanes."""

    lanes: list[int]
    ordinals: list[int]
    """The ordinal of the first item of each of these lanes."""
    stride: int
    """The next item of a lane has the ordinal of the last plus this."""
    turns: int

    def ordinals_of_lanes(self) -> Iterator[tuple[int, range]]:
        """Each of the lanes, and the ordinals of its items."""
        for slot, (lane, first) in enumerate(zip(self.lanes, self.ordinals, strict=True)):
            items = len(range(slot, self.turns, len(self.lanes)))
            yield lane, range(first, first + self.stride * items, self.stride)


class Rounds:
    """The items of some lanes as one sequence. A lane that has run out is passed over."""

    def __init__(
        self, order: Sequence[int], counts: Counts, at_once: int = 1, begins: Mapping[int, int] | None = None
    ) -> None:
        """``order`` has the lanes in the order of their turns.

        ``counts`` says whether a lane has an item, and counts no further than it must, and how many items a lane has. A
        lane's first item is in round 0, or in the round that ``begins`` says. It is looked ahead by ``at_once`` rounds
        at most.
        """
        self.order, (self._has, self._total), self._begins, self._at_once = order, counts, begins or {}, at_once
        self._segments: list[Segment] = []
        self._own_lane = 0

    def begin(self, lane: int) -> int:
        """The round of a lane's first item."""
        return self._begins.get(lane, 0)

    def _missing(self, lanes: Sequence[int], round_: int) -> set[int]:
        """The lanes that have no item in a round, because they have run out.

        The reader's own lane is counted first: meanwhile the readers of the others count theirs, and share it.
        """
        own_first = sorted(lanes, key=lambda lane: (lane - self._own_lane) % len(self.order))
        return {lane for lane in own_first if not self._has(lane, max(0, round_ - self.begin(lane)))}

    def _add_segment(self, first: int, first_round: int) -> None:
        left = self._missing(self.order, first_round)
        begins = {lane: self.begin(lane) for lane in self.order if lane not in left}
        first_round = max(first_round, min(begins.values(), default=0))
        alive = tuple(lane for lane in begins if begins[lane] <= first_round)
        most = min((begin for begin in begins.values() if begin > first_round), default=NO_END) - first_round
        self._segments.append(Segment(first, first_round, alive, most, rounds=int(bool(alive)), ended=not alive))

    def segment(self, number: int) -> Segment | None:
        """The segment of an item of the sequence; None if there is no such item."""
        if not self._segments:
            self._add_segment(0, 0)
        while True:
            for segment in reversed(self._segments):
                if segment.first <= number < segment.end:
                    return segment
            last = self._segments[-1]
            if last.ended:
                return None
            self._extend(last, (number - last.first) // len(last.lanes) + 1)

    def _extend(self, segment: Segment, needed: int) -> None:
        """Find out whether a segment has this number of rounds. If it has not, a new one follows."""
        known, rounds = segment.rounds, min(segment.most, needed + min(segment.rounds, self._at_once))
        short = self._missing(segment.lanes, segment.first_round + rounds - 1)
        ends = [self.begin(lane) + self._total(lane) - segment.first_round for lane in short]
        segment.rounds = min(ends, default=rounds)
        segment.ended = bool(short) or rounds == segment.most
        if segment.ended:
            self._add_segment(segment.end, segment.first_round + segment.rounds)
        if segment.rounds < known or (short and not {*segment.lanes}.difference(self._segments[-1].lanes)):
            raise RuntimeError(
                f"A lane has {count('item', segment.rounds)}, and more or fewer were counted before. Please report "
                "this."
            )

    def has(self, number: int) -> bool:
        """True if the sequence has an item with this number."""
        return self.segment(number) is not None

    def total(self) -> int:
        """The number of items in the sequence."""
        return sum(map(self._total, self.order))

    def located(self, number: int) -> tuple[int, int] | None:
        """The lane of an item of the sequence, and its ordinal there; None if there is no such item."""
        segment = self.segment(number)
        if segment is None:
            return None
        rounds, slot = divmod(number - segment.first, len(segment.lanes))
        lane = segment.lanes[slot]
        return lane, segment.first_round + rounds - self.begin(lane)

    def before(self, round_: int, slot: int) -> int:
        """The number of items before a slot of a round. Lanes that have run out have slots too."""
        rounds = ((lane, round_ + (number < slot) - self.begin(lane)) for number, lane in enumerate(self.order))
        return sum(items if self._has(lane, items - 1) else self._total(lane) for lane, items in rounds if items > 0)

    def number(self, lane: int, ordinal: int) -> int:
        """The number, in the sequence, of an item of a lane, which exists."""
        return self.before(self.begin(lane) + ordinal, self.order.index(lane))

    def delivered(self, number: int) -> dict[int, int]:
        """How many of the first ``number`` items are of each lane."""
        if number == 0:
            return dict.fromkeys(self.order, 0)
        segment = self.segment(number - 1)
        assert segment is not None
        rounds, extra = divmod(number - segment.first, len(segment.lanes))
        delivered = {
            lane: min(self._total(lane), max(0, segment.first_round - self.begin(lane)))
            for lane in set(self.order).difference(segment.lanes)
        }
        for slot, lane in enumerate(segment.lanes):
            delivered[lane] = segment.first_round + rounds + (slot < extra) - self.begin(lane)
        return delivered

    def runs(self, numbers: range, most_rounds: int) -> Iterator[Run]:
        """The items with these numbers, as turns that go round lanes: at first few, so that the first comes soon."""
        self._own_lane = self.order[numbers.start % len(self.order)]
        size = 1
        while numbers and (segment := self.segment(numbers.start)) is not None:
            lanes, step = segment.lanes, numbers.step
            period = len(lanes) // gcd(len(lanes), step)
            due = numbers[: size * period]
            self.segment(due[-1])  # counts what is needed at once
            turns = len(range(due.start, min(due.stop, segment.end), step))
            places = [divmod(number - segment.first, len(lanes)) for number in due[: min(turns, period)]]
            ordinals = [segment.first_round + rounds - self.begin(lanes[slot]) for rounds, slot in places]
            yield Run([lanes[slot] for _, slot in places], ordinals, step * period // len(lanes), turns)
            numbers, size = numbers[turns:], min(2 * size, most_rounds)
