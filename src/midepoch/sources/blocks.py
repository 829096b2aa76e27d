"""The blocks that one lane holds in memory: in use, kept for the next step, or on their way."""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import CancelledError

from midepoch.sources.fetcher import BlockFetcher
from midepoch.sources.read_block import Data, PendingBlock, ReadBlock
from midepoch.storage.ranges import grouped


class HeldBlocks:
    """The blocks of one lane. The lane works in steps, and each step loads the blocks that it uses.

    Decoded blocks take memory, so they are kept for one more step only, or as long as the lane is in the same window of
    a shuffle. Views of mapped files take none, so up to ``max_views`` of them are kept.
    """

    def __init__(self, fetcher: BlockFetcher, max_views: int) -> None:
        self._fetcher, self._max_views = fetcher, max_views
        self._views: dict[int, Data] = {}  # in the order of their last use
        self._decoded: dict[int, Data] = {}
        self._idle: set[int] = set()
        """Decoded blocks that the last step did not use."""
        self._window: int | None = None
        self._pending: dict[int, PendingBlock] = {}
        """Blocks that are read ahead. Memory is reserved for each."""
        self._urgent: dict[int, PendingBlock] = {}
        """Blocks of the present step that are fetched or decoded side by side."""
        self._requested: tuple[set[int], set[int]] = set(), set()
        """The blocks of the last two calls of ``read_ahead``."""

    def __getitem__(self, number: int) -> Data:
        return self._views[number] if number in self._views else self._decoded[number]

    def is_view(self, number: int) -> bool:
        """True if a block is a view of its file."""
        return number in self._views

    @property
    def decoded(self) -> Collection[int]:
        """The decoded blocks."""
        return self._decoded.keys()

    def load(
        self, numbers: Sequence[int], read_ahead: Callable[[], None] = lambda: None, window: int | None = None
    ) -> None:
        """Start a step that uses these blocks: wait for them, and drop those that are no longer needed.

        ``window`` is the window of a shuffle in which the step ends. Its blocks are kept until another window begins.

        ``read_ahead`` is called to request the blocks of later steps. With remote files that is while this step waits
        for the store, and once more after it, if only then it is known how much blocks grow. With local files it is
        after this step's blocks are read, because both use the same disk.
        """
        growth_was_known = self._fetcher.growth.is_known
        self._fetcher.check(numbers)
        if window != self._window:  # before the new blocks are decoded, so that they find the memory free
            self._window, self._idle = window, set()
            for number in self._decoded.keys() - set(numbers):
                del self._decoded[number]
        if self._fetcher.is_remote:
            self._fetch_urgently(numbers)
            read_ahead()
        else:
            self._decode_side_by_side(numbers)
        for number in numbers:
            if number in self._views:
                self._views[number] = self._views.pop(number)
            elif number not in self._decoded:
                pending = self._urgent.pop(number, None) or self._take_pending(number)
                block = self._fetcher.read(number) if pending is None else self._result(number, pending)
                (self._views if block.is_view else self._decoded)[number] = block.data
        self._drop_unused(set(numbers), keep_decoded=window is not None)
        if not self._fetcher.is_remote or not growth_was_known:
            read_ahead()

    def read_ahead(self, numbers: Iterable[int], *, more_follow: bool = False) -> None:
        """Start to read these blocks in the background, in this order. Mapped and held blocks are left out.

        If ``more_follow``, a last group that the next blocks could join is left for the next call, so that it becomes
        one request. Runs of rows are requested many at a time, as soon as there are more of them than on their way, and
        in the order of their files: so more of them lie near each other and share requests.
        """
        numbers = list(numbers)
        self._requested = self._requested[1], set(numbers)
        self._cancel_unclaimed()
        if self._fetcher.has_runs and len(self._missing()) < len(self._pending):
            return
        wanted = list[int]()
        for number in numbers:
            if self._is_held(number) or self._fetcher.is_mapped(number):
                continue
            if not self._fetcher.reserve(number):
                more_follow = True
                break
            wanted.append(number)
        if self._fetcher.has_runs:
            wanted.sort()
        groups = grouped(wanted, self._fetcher.joins)
        if more_follow and groups and (self._pending or len(groups) > 1) and self._fetcher.can_grow(groups[-1]):
            for number in groups.pop():
                self._fetcher.release(number)
        for group in groups:
            self._pending |= self._fetcher.read_ahead(group)

    def _cancel_unclaimed(self) -> None:
        """Cancel blocks that the last two requests did not name: they belong to other readers of the lane.

        Those that the fetcher has cancelled are no longer on their way.
        """
        dropped = {number for number, pending in self._pending.items() if pending.cancelled()}
        for number in dropped | (self._pending.keys() - self._requested[0] - self._requested[1]):
            if (unclaimed := self._take_pending(number)) is not None:
                unclaimed.cancel()

    def _missing(self) -> set[int]:
        """The blocks of the last request that are neither here nor on their way."""
        return self._requested[1] - self._decoded.keys() - self._pending.keys() - self._urgent.keys()

    def _is_held(self, number: int) -> bool:
        return number in self._decoded or number in self._pending or number in self._urgent

    def _take_pending(self, number: int) -> "PendingBlock | None":
        """The future of a block that was read ahead, if any. Its memory is no longer reserved."""
        pending = self._pending.pop(number, None)
        if pending is not None:
            self._fetcher.release(number)
        return pending

    def _result(self, number: int, pending: PendingBlock) -> ReadBlock:
        """A block that was requested. The fetcher may have cancelled it, because blocks grew more than it knew."""
        try:
            return pending.result()
        except CancelledError:
            return self._fetcher.read(number)

    def _fetch_urgently(self, numbers: Sequence[int]) -> None:
        """Fetch all blocks of a step side by side, also those that were requested but whose reading has not begun."""
        wanted = list[int]()
        for number in numbers:
            if number in self._decoded or number in self._views:
                continue
            pending = self._pending.get(number)
            if pending is None or pending.cancel():
                self._take_pending(number)
                wanted.append(number)
        for group in grouped(wanted, self._fetcher.joins):
            self._urgent |= self._fetcher.read_ahead(group, urgent=True)

    def _decode_side_by_side(self, numbers: Sequence[int]) -> None:
        """Let threads decode the blocks of a step that were not read ahead: all of the first window, for example."""
        for number in numbers:
            if number in self._pending and self._pending[number].cancelled():
                self._take_pending(number)
        missing = [
            number
            for number in numbers
            if number not in self._views and not self._is_held(number) and not self._fetcher.is_mapped(number)
        ]
        if len(missing) > 1 and self._fetcher.decode_threads > 1:
            for number in missing:
                self._urgent |= self._fetcher.read_ahead([number], urgent=True)

    def _drop_unused(self, used: set[int], *, keep_decoded: bool) -> None:
        """Drop decoded blocks that neither this step nor the last one used, and the views used longest ago."""
        if not keep_decoded:
            for number in self._idle - used:
                self._decoded.pop(number, None)
            self._idle = self._decoded.keys() - used
        while len(self._views) > max(self._max_views, len(used)):
            del self._views[next(iter(self._views))]
