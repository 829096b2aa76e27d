"""Lanes that give one item in each round until they run out. The items of all are one sequence, without empty turns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Protocol

import numpy as np

from midepoch._common.checks import count
from midepoch._common.hashing import I64

NO_END = 1 << 62
"""The number of an item that no reader reaches."""


class LaneCounts(Protocol):
    """How many items lanes have left. The items of a lane are numbered by their ordinals."""

    def has(self, lane: int, ordinal: int) -> bool:
        """True if a lane has an item with this ordinal. Counts no further than it must."""

    def total(self, lane: int) -> int:
        """The number of a lane's items."""


@dataclass(slots=True)
class Segment:
    """Rounds in which the same lanes have items."""

    first: int
    """The number, in the sequence, of the segment's first item."""
    first_round: int
    lanes: tuple[int, ...]
    """The lanes that have items, in the order of their turns."""
    rounds: int
    """How many rounds are known to be in the segment."""
    ended: bool = False

    @property
    def end(self) -> int:
        """One more than the number of the last item that is known to be in the segment."""
        return self.first + self.rounds * len(self.lanes)


class Rounds:
    """The items of some lanes as one sequence. A lane that has run out is passed over."""

    def __init__(
        self,
        order: Sequence[int],
        counts: LaneCounts,
        *,
        begins: Mapping[int, int] | None = None,
        at_once: int = 1,
        formula: bool = False,
    ) -> None:
        """``order`` has the lanes in the order of their turns.

        A lane's first item is in round 0, or in the round that ``begins`` says. It is looked ahead by ``at_once``
        rounds at most, unless totals cost nothing, by a ``formula``: then a segment is known to its end at once. With
        ``begins`` they must.
        """
        self.order, self._counts, self._begins = order, counts, begins or {}
        self._at_once, self._formula = at_once, formula
        self._segments: list[Segment] = []
        self._own_lane = 0

    def begin(self, lane: int) -> int:
        """The round of a lane's first item."""
        return self._begins.get(lane, 0)

    def count_first(self, lane: int) -> None:
        """Count the lanes from this one on: meanwhile the readers of the others count theirs, and share it."""
        self._own_lane = lane

    def _missing(self, lanes: Sequence[int], round_: int) -> set[int]:
        """The lanes that have no item in a round, because they have run out."""
        own_first = sorted(lanes, key=lambda lane: (lane - self._own_lane) % len(self.order))
        return {lane for lane in own_first if not self._counts.has(lane, max(0, round_ - self.begin(lane)))}

    def _add_segment(self, first: int, first_round: int) -> None:
        left = self._missing(self.order, first_round)
        waiting = [lane for lane in self.order if lane not in left]
        if waiting and all(self.begin(lane) > first_round for lane in waiting):
            first_round = min(map(self.begin, waiting))
        alive = tuple(lane for lane in waiting if self.begin(lane) <= first_round)
        segment = Segment(first, first_round, alive, int(bool(alive)), ended=not alive)
        if alive and self._formula:
            ends = [self.begin(lane) + self._counts.total(lane) for lane in alive]
            joins = [begin for lane in waiting if (begin := self.begin(lane)) > first_round]
            segment.rounds, segment.ended = min(ends + joins) - first_round, False
        self._segments.append(segment)

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

    def segment_at(self, index: int) -> Segment | None:
        """The segment with this index, if there is one that has items."""
        if not self._segments:
            self._add_segment(0, 0)
        while index >= len(self._segments):
            last = self._segments[-1]
            if last.ended:
                return None
            self.segment(last.end)
        return self._segments[index] if self._segments[index].lanes else None

    def _extend(self, segment: Segment, needed: int) -> None:
        """Find out whether a segment has this number of rounds. If it has not, a new one follows."""
        if self._formula:
            segment.ended = True
            self._add_segment(segment.end, segment.first_round + segment.rounds)
            return
        rounds = needed + min(segment.rounds, self._at_once)
        short = self._missing(segment.lanes, segment.first_round + rounds - 1)
        if not short:
            segment.rounds = rounds
            return
        end = min(self._counts.total(lane) for lane in short)
        known, segment.rounds, segment.ended = segment.rounds, end - segment.first_round, True
        self._add_segment(segment.end, end)
        if segment.rounds < known or len(self._segments[-1].lanes) >= len(segment.lanes):
            raise RuntimeError(
                f"A lane has {count('item', end)}, and more or fewer were counted before. Please report this."
            )

    def has(self, number: int) -> bool:
        """True if the sequence has an item with this number."""
        return self.segment(number) is not None

    def total(self) -> int:
        """The number of items in the sequence."""
        return sum(self._counts.total(lane) for lane in self.order)

    def located(self, number: int) -> tuple[int, int] | None:
        """The lane of an item of the sequence, and its ordinal there; None if there is no such item."""
        segment = self.segment(number)
        if segment is None:
            return None
        rounds, slot = divmod(number - segment.first, len(segment.lanes))
        lane = segment.lanes[slot]
        return lane, segment.first_round + rounds - self.begin(lane)

    def number(self, lane: int, ordinal: int) -> int:
        """The number, in the sequence, of an item of a lane, which exists."""
        round_, index = self.begin(lane) + ordinal, 0
        while (segment := self.segment_at(index)) is not None:
            number = segment.first + (round_ - segment.first_round) * len(segment.lanes)
            if self.segment(number) is segment:
                return number + segment.lanes.index(lane)
            index += 1
        raise ValueError(f"Lane {lane} has no item {ordinal}.")

    def located_all(self, numbers: I64) -> tuple[I64, I64]:
        """The same for many items, which exist. Their numbers rise."""
        lanes, ordinals = np.empty_like(numbers), np.empty_like(numbers)
        begin = 0
        while begin < len(numbers):
            segment = self.segment(int(numbers[begin]))
            assert segment is not None, "the turns of a counted session have items"
            end = int(np.searchsorted(numbers, segment.end))
            rounds, slots = np.divmod(numbers[begin:end] - segment.first, len(segment.lanes))
            begins = np.array([*map(self.begin, segment.lanes)])
            lanes[begin:end] = np.array(segment.lanes)[slots]
            ordinals[begin:end] = segment.first_round + rounds - begins[slots]
            begin = end
        return lanes, ordinals

    def delivered(self, number: int) -> dict[int, int]:
        """How many of the first ``number`` items are of each lane."""
        if number == 0:
            return dict.fromkeys(self.order, 0)
        segment = self.segment(number - 1)
        assert segment is not None
        rounds, extra = divmod(number - segment.first, len(segment.lanes))
        reached = segment.first_round + rounds
        delivered = {
            lane: min(self._counts.total(lane), max(0, segment.first_round - self.begin(lane)))
            for lane in set(self.order).difference(segment.lanes)
        }
        for slot, lane in enumerate(segment.lanes):
            delivered[lane] = reached + (slot < extra) - self.begin(lane)
        return delivered

    def wanted(self, lane: int, numbers: range, most_at_once: int) -> Iterator[I64]:
        """The ordinals in a lane of the items that have these numbers in the sequence."""
        begin = self.begin(lane)
        # Where counting takes time, the first item after a resume comes as soon as possible.
        size = most_at_once if self._formula else 1
        index = 0
        while (segment := self.segment_at(index)) is not None:
            if lane not in segment.lanes:
                if begin >= segment.first_round + segment.rounds:
                    index += 1  # its first round comes later
                    continue
                return
            rounds = _common_rounds(segment, segment.lanes.index(lane), numbers)
            while rounds:
                last = rounds.start + (size - 1) * rounds.step
                self.segment(segment.first + (last - segment.first_round + 1) * len(segment.lanes) - 1)
                known = segment.first_round + segment.rounds - rounds.start
                here = rounds[: max(0, -(-known // rounds.step))][:size]
                if not here:
                    break  # the segment has ended
                yield np.arange(here.start, here.stop, here.step) - begin
                rounds = rounds[len(here) :]
                size = min(2 * size, most_at_once)
            index += 1


def _common_rounds(segment: Segment, slot: int, numbers: range) -> range:
    """The rounds, from the segment's start on, in which the item at a slot has one of these numbers."""
    lanes = len(segment.lanes)
    shared = gcd(lanes, numbers.step)
    missing = numbers.start - segment.first - slot
    if missing % shared:
        return range(0)
    period = numbers.step // shared
    rounds = missing // shared * pow(lanes // shared, -1, period) % period if period > 1 else 0
    least = max(0, -(-missing // lanes))
    rounds += -(-max(0, least - rounds) // period) * period
    return range(segment.first_round + rounds, NO_END, period)
