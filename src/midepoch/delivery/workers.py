"""What a dataset shares with its copies in the workers of a foreign DataLoader."""

from midepoch.errors import CheckpointMismatchError


class SharedWithWorkers:
    """What a data set shares with its copies in the workers of a foreign DataLoader: four numbers."""

    def __init__(self) -> None:
        from multiprocessing.sharedctypes import RawArray

        self._numbers = RawArray("q", 4)  # how often set_epoch was called, its epoch, loads, whether workers have read
        self._seen = (0, 0)

    @property
    def have_read(self) -> bool:
        """Whether a worker has begun to read since the main process last chose where to stand."""
        return bool(self._numbers[3])

    def set_epoch(self, epoch: int) -> None:
        """Tell the workers, also those that are running already."""
        self._numbers[1] = epoch
        self._numbers[0] += 1
        self._numbers[3] = 0
        self._seen = (self._numbers[0], self._numbers[2])

    def loaded(self) -> None:
        """Remember that a state was loaded, which only workers started later get."""
        self._numbers[2] += 1
        self._numbers[3] = 0
        self._seen = (self._numbers[0], self._numbers[2])

    def enter(self) -> int | None:
        """In a worker: the epoch that was chosen since it last asked, if any."""
        chosen, loads = self._numbers[0], self._numbers[2]
        self._numbers[3] = 1
        if loads != self._seen[1]:
            raise CheckpointMismatchError(
                "A state was loaded while persistent workers of a DataLoader were running, and cannot reach them. "
                "Load it before the first loop, or use midepoch.Loader."
            )
        changed = chosen != self._seen[0]
        self._seen = (chosen, loads)
        return self._numbers[1] if changed else None
