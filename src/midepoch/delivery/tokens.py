"""How many tokens an epoch has delivered, and how many tokens and items of each part of a mixture.

Nothing is counted while items are delivered. A position of a lane says which rows came before it, and a survey how long
they are. Each row is looked up once in an epoch, when it is first asked for.
"""

import numpy as np

from midepoch._common.checks import cached_property
from midepoch.checkpoint.lanes import LanePosition
from midepoch.checkpoint.state import State
from midepoch.delivery.session import Session
from midepoch.pipeline.pipeline import PipelineLanes
from midepoch.pipeline.surveyed import with_row_lengths
from midepoch.stages.counted import Amounts, CountedItems, sum_amounts


class EpochAmounts:
    """The amounts of one epoch, over all ranks."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lanes = PipelineLanes(with_row_lengths(session.pipeline), session.lanes.cut)
        self._items: dict[int, CountedItems] = {}
        self._of_lanes: dict[int, tuple[LanePosition, Amounts]] = {}

    def delivered(self, state: State) -> Amounts:
        """The amounts that were delivered before a state of the epoch."""
        return sum_amounts(self._of_lane(lane, position) for lane, position in enumerate(state.positions.expand()))

    def _of_lane(self, lane: int, position: LanePosition) -> Amounts:
        known = self._of_lanes.get(lane)
        if known is not None and known[0] == position:
            return known[1]
        if lane not in self._items:
            self._items[lane] = self._lanes.counted(lane, self._lanes.pipeline.begin)
        amounts = self._items[lane].passed(position.cursor)
        if position.delivered_ahead:
            left = self._lanes.counted(lane, position.cursor)
            amounts = sum_amounts([amounts, left.amounts(np.array(position.delivered_ahead))])
        self._of_lanes[lane] = position, amounts
        return amounts

    @cached_property
    def total(self) -> int | None:
        """The tokens of the whole epoch; None if lengths are not known, or it never ends."""
        lanes = range(len(self._session.positions))
        if self._session.is_endless:
            return None
        return sum_amounts(self._of_whole(lane) for lane in lanes)[""].tokens

    def _of_whole(self, lane: int) -> Amounts:
        items = self._lanes.counted(lane, self._lanes.pipeline.begin)  # the others know what is delivered
        return items.passed(self._session.lane_items(lane).cursor(self._session.total(lane)))
