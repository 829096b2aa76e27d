"""Bugs of delivery that can be planted into the ranks of a soak, to see that it finds them."""

from collections.abc import Callable
from typing import Any

from midepoch.delivery.passes import Progress
from midepoch.loader import Loader
from midepoch.workers.pool import Inbox


def _first_worker_starts_one_turn_late() -> None:
    right = Inbox.__init__

    def wrong(self: Inbox, pool: Any, number: int, *others: Any, **options: Any) -> None:
        right(self, pool, number, *others, **options)
        self._next += pool.step if number == 0 else 0

    Inbox.__init__ = wrong  # type: ignore[method-assign]


def _restarted_worker_starts_one_turn_late() -> None:
    right = Inbox._replace

    def wrong(self: Inbox, death: Any) -> None:
        self._next += self._pool.step
        right(self, death)

    Inbox._replace = wrong  # type: ignore[method-assign]


def _states_count_an_item_too_many() -> None:
    right = Progress.turns_taken.fget
    assert right is not None
    Progress.turns_taken = property(lambda self: right(self) + (self._current is not None))  # type: ignore


def _states_are_those_of_the_checkpoint_before() -> None:
    right, before = Loader._own_state, dict[int, Any]()

    def wrong(self: Loader[Any]) -> Any:
        now = right(self)
        then, before[id(self)] = before.get(id(self), now), now
        return then if then["epoch"] == now["epoch"] else now

    Loader._own_state = wrong  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "a worker starts one turn late": _first_worker_starts_one_turn_late,
    "a restarted worker starts one turn late": _restarted_worker_starts_one_turn_late,
    "states count one item too many": _states_count_an_item_too_many,
    "states are those of the checkpoint before": _states_are_those_of_the_checkpoint_before,
}
