"""What a dataset shares with its copies in the workers of a plain DataLoader."""

from midepoch._common.hashing import key_of
from midepoch.checkpoint.state import State
from midepoch.errors import CheckpointMismatchError

EPOCHS_SET, EPOCH, STATES_LOADED, HAVE_READ, FINISHED, WARNED = range(6)


class SharedWithWorkers:
    """Shared memory of a few numbers: what the main process has chosen, and what the workers have read since.

    The main process writes how often ``set_epoch`` was called, its epoch, and the number of states loaded. Workers
    write that they have started to read, from where they last read to the end, and that they have warned.
    """

    def __init__(self) -> None:
        from multiprocessing.sharedctypes import RawArray

        self._numbers = RawArray("Q", 6)
        self._seen = (0, 0)

    @property
    def have_read(self) -> bool:
        """True if a worker has started to read since the main process last set an epoch or loaded a state."""
        return bool(self._numbers[HAVE_READ])

    def set_epoch(self, epoch: int) -> None:
        """Send the epoch to the workers, including those that are already running."""
        self._numbers[EPOCH] = epoch
        self._numbers[EPOCHS_SET] += 1
        self._chosen()

    def state_loaded(self) -> None:
        """Record that a state was loaded. Only workers that start later receive it."""
        self._numbers[STATES_LOADED] += 1
        self._chosen()

    def _chosen(self) -> None:
        self._numbers[HAVE_READ] = self._numbers[FINISHED] = 0
        self._seen = (self._numbers[EPOCHS_SET], self._numbers[STATES_LOADED])

    def enter(self) -> int | None:
        """In a worker, before a loop: the epoch that was set since the last call, or None."""
        epochs_set, states_loaded = self._numbers[EPOCHS_SET], self._numbers[STATES_LOADED]
        self._numbers[HAVE_READ] = 1
        if states_loaded != self._seen[1]:
            raise CheckpointMismatchError(
                "A state was loaded while persistent workers of a DataLoader were running, and cannot reach them. "
                "Load it before the first loop, or use midepoch.Loader."
            )
        changed = epochs_set != self._seen[0]
        self._seen = (epochs_set, states_loaded)
        return self._numbers[EPOCH] if changed else None

    def finished(self, start: State) -> None:
        """In the last worker: a pass from ``start`` is read to its end.

        The last worker gets the fewest requests, so it reads the least ahead of a loop that is left early.
        """
        self._numbers[FINISHED] = key_of(repr(start))

    def is_first_repeat(self, start: State) -> bool:
        """In the last worker: True once, if it has finished a pass from ``start`` and nothing was chosen since."""
        if self._numbers[WARNED] or self._numbers[FINISHED] != key_of(repr(start)):
            return False
        self._numbers[WARNED] = 1
        return True
