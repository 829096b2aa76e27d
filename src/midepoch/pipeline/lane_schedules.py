"""The schedules of the lanes of a mixture: which one a lane draws by, given how often each part has ended."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from midepoch.pipeline.changing_schedule import ChangingSchedule
from midepoch.pipeline.draws import Stop
from midepoch.pipeline.in_turn import InTurn
from midepoch.pipeline.period import Period
from midepoch.pipeline.schedule import Schedule
from midepoch.pipeline.weight_schedule import WeightSteps


@dataclass(frozen=True, kw_only=True)
class LaneSchedules:
    """The schedules of one epoch."""

    weights: Sequence[int]
    """The integer weights of the parts."""
    seed: int
    stop: Stop
    steps: WeightSteps | None
    """Weights that change with the number of items."""
    in_turn: bool
    """True if the parts are read one after the other."""
    epoch: int
    lanes: int
    _changing: dict[int, ChangingSchedule] = field(default_factory=dict, init=False, compare=False)
    """Of each lane, if weights change: their tables grow with the draws that were looked up."""

    def of_lane(self, lane: int, times_ended: Sequence[int]) -> Schedule | ChangingSchedule | InTurn | None:
        """The order of draws among the parts that have not ended; None if all have."""
        if self.in_turn:
            return InTurn.of(times_ended)
        if self.steps is not None:
            if lane not in self._changing:
                steps = self.steps.of_lane(lane, self.lanes)
                self._changing[lane] = ChangingSchedule(steps, self.seed, self.epoch, lane)
            return self._changing[lane]
        weights = self._weights_left(times_ended)
        return Schedule(weights, self.seed, self.epoch, lane) if any(weights) else None

    def period(self, lane: int, times_ended: Sequence[int]) -> Period | ChangingSchedule | InTurn | None:
        """The same for counted draws."""
        schedule = self.of_lane(lane, times_ended)
        return Period(schedule, self._weights_left(times_ended)) if isinstance(schedule, Schedule) else schedule

    def _weights_left(self, times_ended: Sequence[int]) -> list[int]:
        """The weights of the parts; 0 for those that have ended and do not start over."""
        return [
            0 if self.stop == "all" and ended else weight
            for weight, ended in zip(self.weights, times_ended, strict=True)
        ]
