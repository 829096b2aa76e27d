"""The turns of a worker that nobody has sent."""

from midepoch.workers.pool import Inbox


class ChunkInbox(Inbox):
    """Chunks come one by one: when ``arrived`` says so, or when they are waited for."""

    def __init__(self, chunks, arrived=lambda: True):
        super().__init__(self, 1, None, timeout=0)
        self._coming, self._arrived = iter(chunks), arrived

    def read(self, seconds):
        return (next(self._coming, None),) if seconds or self._arrived() else None

    def _note(self, content):
        (chunk,) = content
        if chunk is None:
            self._has_ended = True
        else:
            self._chunks.append(chunk)
