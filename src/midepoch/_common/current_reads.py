"""What this process reads now, written where its parent can see it when this process has been killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class CurrentReads:
    """The reads of all threads that are under way. They are written nowhere until there is a place for them."""

    def __init__(self) -> None:
        self._place: memoryview | None = None
        self._names: list[str] = []
        self._lock = Lock()

    def write_to(self, place: memoryview) -> None:
        """Write what is read to some shared bytes, from now on."""
        self._place = place

    @contextmanager
    def noted(self, name: str) -> Iterator[None]:
        """Note that something is read, as long as the context lasts."""
        with self._lock:
            self._names.append(name)
            self._write()
        try:
            yield
        finally:
            with self._lock:
                self._names.remove(name)
                self._write()

    def _write(self) -> None:
        if self._place is not None:
            content = "; ".join(filter(None, self._names)).encode()[: len(self._place) - 1] + b"\0"
            self._place[: len(content)] = content


def written(place: memoryview) -> str:
    """What is written at a place."""
    return bytes(place).partition(b"\0")[0].decode(errors="replace")


CURRENT_READS = CurrentReads()
