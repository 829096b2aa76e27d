"""The turns of a worker that nobody has sent."""

from types import SimpleNamespace

from midepoch.delivery.metrics import Tally
from midepoch.workers.interface import Message
from midepoch.workers.pool import Inbox


class PartInbox(Inbox):
    """Turns come part by part: when ``arrived`` says so, or when they are waited for."""

    def __init__(self, parts, arrived=lambda: True):
        pool, progress = (
            SimpleNamespace(worker=lambda _: self, step=1),
            SimpleNamespace(of_workers=Tally(), turns_taken=0),
        )
        super().__init__(pool, 0, progress, timeout=0)
        self._coming, self._has_arrived = iter([*map(Message, parts), Message(is_last=True)]), arrived

    def receive(self, seconds):
        return next(self._coming) if seconds or self._has_arrived() else None
