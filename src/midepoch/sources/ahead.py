"""Reading ahead: the rows that a lane delivers next, made by the same pure functions, only earlier.

A *step* is the rows that are made together. Its blocks are requested first. When they are in memory, a thread gathers
its rows from them. No task waits for another one: a step is submitted when its blocks are done. Steps are planned in
the order of the lane, as far ahead as bytes allow, and used in that order. Rows that leave here are copies or lie in
memory that was decoded for them, and their files are checked after the copy: no row is of two versions of a file.

Blocks of mapped files are views. They are not requested, and rows are copied straight from the map.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, pairwise
from threading import Event, current_thread
from typing import TypeVar
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import I64
from midepoch._common.world import torch_worker, usable_cores
from midepoch.errors import StaleIteratorError
from midepoch.formats import EMPTY, FORMATS
from midepoch.formats.arrow import holds_dictionary
from midepoch.index.index import Index
from midepoch.order.orders import Order
from midepoch.order.windows import distinct
from midepoch.sources.blocks import CURRENT_READS, Data, FileBlocks
from midepoch.sources.source import ReadCounts
from midepoch.stages.flow import RowRun
from midepoch.storage.block_cache import Fetch
from midepoch.storage.objects import GROUP_BLOCKS, GROUP_BYTES
from midepoch.values.arrow import concat_batches, gather, standalone, take
from midepoch.values.rows import RowOrigin, Rows

STEP_ROWS, STEP_BYTES = 8192, 1 << 20
"""The most rows of a step, and about its bytes: so they are still in the CPU cache when they are converted."""
SCATTERED_ROWS, SCATTERED_BYTES = 32768, 8 << 20
"""The same for rows that lie scattered: the more of them are picked from a block at a time, the faster."""
ROW_STEP_BYTES = 64 << 20
"""The bytes of a step of all lanes together if any row may follow any other."""
RUN_ROWS, RUN_BYTES = 1024, 1 << 20
"""The rows and bytes that are handed on together."""
NARROW_BYTES = 512 << 10
"""Runs of narrow rows are longer, up to this number of bytes."""
STEP_BLOCKS, FEW_ROWS = 256, 64
"""A step of blocks that have fewer than ``FEW_ROWS`` rows on average has as many rows as this many blocks, at most.
Of any blocks as many are on their way: to open a file takes time, however few rows it has."""
FIRST_ROWS = 256
"""The rows of the first step after a resume. Each step may have twice as many as the one before."""
MAX_ARRAYS = 64
"""How many arrays of wanted positions are put together, at most: who makes them must not get too far ahead."""
FIRST_STEPS = 8
"""How many steps of local files are planned at first: it is not known yet how much their blocks grow in memory."""
MAX_STEPS = 64
"""How many steps of a lane are planned, at most."""
MADE_BYTES = 32 << 20
"""About how many bytes of rows are made ahead, at most: one step for each thread."""
FETCH_THREADS = 24
"""Most of their time is spent waiting for a store."""
DECODE_THREADS = 12
"""More threads only wait for the interpreter lock."""
BYTES_OF_A_THREAD = 8 << 20
"""How many bytes of local blocks are decoded ahead for each thread but the first."""
DECODED_TOGETHER = 4 << 20
"""How many bytes of local blocks a thread decodes as one task, at most: to hand over a task takes time."""
GROUPS_AHEAD = 8
"""Of what is read ahead, one group of blocks that are fetched together is this part, at most."""
LEAST_HELD_BYTES = 64 << 20
"""If the blocks of a step take more than this, and more than a window may have, each is read, used and dropped."""
THREADS = "midepoch"
"""How the names of threads begin."""
CLOSE_SECONDS = 2.0
"""How long requests under way are waited for when a reader is closed. They end by themselves after that."""

Made = TypeVar("Made")


@dataclass(slots=True, weakref_slot=True, eq=False)
class HeldBlock:
    """A block that lanes need: on its way, or in memory. It is dropped with the last lane that needs it."""

    number: int
    nbytes: int
    """Its bytes in memory; an estimate until it is there."""
    request: Future[None] | None = None
    """What fetches it, with others of its group; None until it is requested."""
    data: "Data | None" = None
    """Its rows, once they are there."""

    @property
    def is_done(self) -> bool:
        """True if nobody has to wait for it: it is in memory, or could not be fetched."""
        return self.request is not None and self.request.done()


class OpenFiles:
    """What one reader of files holds open: files, threads, and the blocks that its lanes need now or soon."""

    def __init__(
        self,
        index: Index,
        wanted: pa.Schema,
        lanes: int,
        fetch: Fetch | None = None,
        window_bytes: int = 0,
        *,
        is_scattered: bool = False,
    ) -> None:
        """``window_bytes`` bounds the windows of a shuffle. If ``is_scattered``, any row may follow any other."""
        fetch = fetch or Fetch()
        self.blocks = FileBlocks(index, wanted, fetch.cache)
        self.view, self.is_remote, self.window_bytes = index.view, self.blocks.is_remote, window_bytes
        self.decodes = not all(
            is_view or name == EMPTY for is_view, name in zip(self.blocks.views, index.view.formats, strict=True)
        )
        self.threads = self._threads_to_decode()
        self.nothing_ahead = self.is_remote and not fetch.read_ahead
        ahead = fetch.read_ahead if self.is_remote else BYTES_OF_A_THREAD * (self.threads - 1)
        self.bytes_ahead = ahead // lanes
        """How many bytes of blocks each lane reads ahead."""
        self.group_bytes = min(GROUP_BYTES if self.is_remote else DECODED_TOGETHER, self.bytes_ahead // GROUPS_AHEAD)
        """How many bytes of neighbouring blocks are fetched together, at most."""
        has_dictionaries = any(holds_dictionary(field.type) for field in wanted)
        is_picked = bool(window_bytes) or is_scattered
        scattered_bytes = max(SCATTERED_BYTES, ROW_STEP_BYTES // lanes if is_scattered and not self.decodes else 0)
        self.sizes = StepSizes.of(
            index.view.row_bytes, lanes, scattered_bytes if is_picked and not has_dictionaries else 0, self.threads
        )
        if not is_scattered and index.view.rows < FEW_ROWS * len(index.view.block_rows):
            most = STEP_BLOCKS * max(1, index.view.rows // len(index.view.block_rows))
            self.sizes = replace(self.sizes, step=min(self.sizes.step, most), run=min(self.sizes.run, most))
        self._held: WeakValueDictionary[int, HeldBlock] = WeakValueDictionary()
        self._indexed, self._decoded = 0, 0
        """The bytes of all blocks that were read: in the index, and in memory."""
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._stop = Event()
        """Set when nobody waits for requests any more."""
        self._process, self._getpid = os.getpid(), os.getpid  # modules are emptied when the interpreter exits
        self._store = index.store
        self._earlier_retries = 0 if index.store is None else index.store.retries

    def _threads_to_decode(self) -> int:
        """About one a core, which workers share, if they can read one file side by side.

        There is one more than cores, because a thread that has decoded a block waits for the interpreter lock.
        """
        side_by_side = all(name == EMPTY or FORMATS[name].has_spans for name in set(self.view.formats))
        cores, worker = usable_cores(), torch_worker()
        own = cores if worker is None else max(1, cores // worker[1])
        return min(DECODE_THREADS, own + 1) if cores > 1 and (side_by_side or self.is_remote) else 1

    def submit(self, make: Callable[..., Made], *arguments: object, fetches: bool = False) -> Future[Made]:
        """Let a thread call a function. Those that wait for a store are others than those that compute."""
        kind, threads = ("fetch", FETCH_THREADS) if fetches and self.is_remote else ("make", self.threads)
        if kind not in self._pools:
            begin = None if self._store is None else partial(self._store.stop_with, self._stop)
            self._pools[kind] = ThreadPoolExecutor(threads, f"{THREADS}-{kind}", begin)
        return self._pools[kind].submit(make, *arguments)

    def hold(self, number: int) -> HeldBlock:
        """A block, which is held for as long as somebody keeps it. All lanes get the same."""
        held = self._held.get(number)
        if held is None:
            held = self._held[number] = HeldBlock(number, self.expected_bytes(number))
        return held

    def request(self, blocks: Iterable[HeldBlock]) -> None:
        """Let threads fetch blocks. Neighbours that follow each other are fetched together."""
        groups: list[list[HeldBlock]] = []
        for block in blocks:
            if block.request is not None:
                continue
            if groups and self._joins(groups[-1], block.number):
                groups[-1].append(block)
            else:
                groups.append([block])
        for group in groups:
            for block in group:
                block.nbytes = self.expected_bytes(block.number)  # before a thread sets what it has in memory
            request = self.submit(self._read, group, fetches=True)
            for block in group:
                block.request = request

    def _read(self, group: Sequence[HeldBlock]) -> None:
        try:
            read = self.blocks.read([block.number for block in group])
        except Exception:
            if len(group) == 1:
                raise
            return  # each is read alone when it is needed, so those before a damaged one are delivered
        for block in group:
            block.data = read[block.number]
            block.nbytes = block.data.get_total_buffer_size()
            self._indexed += int(self.view.block_lengths[block.number])
            self._decoded += block.nbytes

    def expected_bytes(self, number: int) -> int:
        """The bytes of a block in memory, if it grows as those did that were read."""
        return int(self.growth * self.view.block_lengths[number])

    @property
    def growth(self) -> float:
        """How many times as many bytes as in their files blocks have in memory."""
        return max(1.0, self._decoded / max(1, self._indexed))

    def data(self, number: int) -> Data:
        """The rows of a block: a view, or in memory, or read now.

        Nobody waits here for one on its way: the thread that is to read it may be this one.
        """
        held = self._held.get(number)
        if held is not None and held.request is not None and held.is_done:
            if held.request.cancelled():
                raise StaleIteratorError("This iterator is out of date: what it reads was closed.")
            held.request.result()  # raises if it failed
            if held.data is not None:
                return held.data
        return self.blocks.view_of(number) if self.is_view(number) else self.blocks.read([number])[number]

    def keeps(self, number: int) -> bool:
        """True if a block is in memory anyway, or takes none."""
        held = self._held.get(number)
        return (held is not None and held.data is not None) or self.is_view(number)

    def is_view(self, number: int) -> bool:
        """True if a block is a view of its file, which takes no memory to hold."""
        return self.blocks.views[self.view.file_of(number)]

    def _joins(self, group: Sequence[HeldBlock], number: int) -> bool:
        """True if a block is fetched together with the group before it: it is the next one of the same file.

        Of a store, all columns must be read, so that the bytes are adjacent and become one request. A group is only a
        part of what is read ahead, so that several groups are fetched at a time.
        """
        first, last = group[0].number, group[-1].number
        file = self.view.file_of(last)
        if number != last + 1 or number >= self.view.first_blocks[file + 1] or len(group) >= GROUP_BLOCKS:
            return False
        if self.is_remote and not self.blocks.is_read_whole(file):
            return False
        return bool(self.view.block_lengths[first : number + 1].sum() <= self.group_bytes)

    def check_process(self) -> None:
        """Raise in a forked process: the threads do not exist there."""
        if self._process != os.getpid():
            raise StaleIteratorError.forked(self._process)

    def timed(self, runs: Iterator[RowRun]) -> Iterator[RowRun]:
        """The same runs, counted."""
        return self.blocks.counts.timed(runs)

    def counts(self) -> ReadCounts:
        retries = 0 if self._store is None else self._store.retries - self._earlier_retries
        return replace(self.blocks.counts, retries=retries)

    def close(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Stop the threads and close the files. Requests that a store does not answer are not waited for.

        Does nothing while the interpreter shuts down, which does so itself and may have cleared ``sys`` already. Nor in
        a forked process: it has none of the threads, and a lock of theirs may be held forever.
        """
        if is_finalizing() or self._process != os.getpid():
            return
        self._stop.set()
        may_wait = not self.is_remote and not current_thread().name.startswith(THREADS)  # which collects garbage
        for pool in self._pools.values():
            pool.shutdown(wait=may_wait, cancel_futures=True)
        requests = {held.request for held in self._held.values() if held.request is not None}
        wait([request for request in requests if not request.cancel()], CLOSE_SECONDS)
        self._pools.clear()
        self.blocks.close()


@dataclass(frozen=True, slots=True)
class StepSizes:
    """How much a lane makes and hands on at a time. This changes memory and speed, never which rows are delivered."""

    step: int
    """How many rows are made together, at most."""
    run: int
    """How many rows are handed on together, at most."""
    made_ahead: int
    """How many steps are made ahead, at most."""

    @classmethod
    def of(cls, row_bytes: int, lanes: int, scattered_bytes: int = 0, threads: int = 1) -> "StepSizes":
        """Sizes for a reader of ``lanes`` lanes at once. Rows that lie scattered have steps of ``scattered_bytes``."""
        rows = max(RUN_ROWS, min(STEP_ROWS, NARROW_BYTES // row_bytes))
        run = max(1, min(max(16, rows // lanes), RUN_BYTES // row_bytes))
        step = max(run, min(STEP_ROWS // lanes, STEP_BYTES // row_bytes))
        step = max(step, min(SCATTERED_ROWS // lanes, scattered_bytes // row_bytes))
        return cls(step, run, max(1, min(threads, MADE_BYTES // lanes // (step * row_bytes))))


@dataclass(slots=True)
class Step:
    """Rows that are made together."""

    positions: I64
    numbers: I64
    window: int
    """The number of the window that has the first of them."""
    blocks: Sequence[HeldBlock]
    """What must be in memory before the rows are made."""
    made: Future[list[pa.RecordBatch]] | None = None


def blocks_of(starts: I64, rising: I64) -> tuple[I64, list[int]]:
    """The blocks of rows whose numbers rise, and where the rows of each begin among these, and the last end."""
    owners = np.searchsorted(starts, rising, "right") - 1
    changes = np.flatnonzero(np.diff(owners)) + 1
    begins = np.append(np.int64(0), changes)
    return owners[begins], [*begins.tolist(), len(rising)]


def make_rows(opened: OpenFiles, numbers: I64) -> list[pa.RecordBatch]:
    """Rows by their numbers, as copies that are of the indexed versions of their files.

    They are one record batch, unless their texts have more bytes than one can hold.
    """
    made = opened.blocks.index.rows(numbers, opened.blocks.wanted)
    if made is not None:
        return [made]
    places = None if (np.diff(numbers) > 0).all() else np.argsort(numbers)
    rising = numbers if places is None else numbers[places]
    blocks, bounds = blocks_of(opened.view.block_starts, rising)
    files = distinct(np.searchsorted(opened.view.first_blocks, blocks, "right") - 1).tolist()
    for file in files:
        opened.blocks.index.check(file)  # before too: a map of a truncated file cannot be read
    mapped = "; ".join(opened.view.path(file) for file in files if opened.blocks.views[file])
    try:
        with CURRENT_READS.noted(mapped):
            batch = _gathered(opened, rising, blocks.tolist(), bounds, places)
    except (pa.ArrowInvalid, pa.ArrowCapacityError, pa.ArrowIndexError) as error:
        if len(numbers) < 2 or "overflow" not in str(error):
            raise
        half = len(numbers) // 2
        return [*make_rows(opened, numbers[:half]), *make_rows(opened, numbers[half:])]
    finally:
        for file in files:
            opened.blocks.index.check(file)  # also after an error: a file that is being rewritten looks broken
    return [batch]


def _gathered(
    opened: OpenFiles, rising: I64, blocks: Sequence[int], bounds: Sequence[int], places: I64 | None
) -> pa.RecordBatch:
    """The rows of blocks, put at their ``places``; None if they stay in file order."""
    starts = opened.view.block_starts
    pieces = [*pairwise(bounds)]
    if places is None and all(rising[end - 1] - rising[begin] == end - 1 - begin for begin, end in pieces):
        slices = [
            _as_batch(opened.data(block).slice(int(rising[begin] - starts[block]), end - begin))
            for block, (begin, end) in zip(blocks, pieces, strict=True)
        ]
        if len(slices) > 1:
            return concat_batches(slices)
        return standalone(slices[0]) if opened.blocks.is_copied(opened.view.file_of(blocks[0])) else slices[0]
    parts = []
    for block, (begin, end) in zip(blocks, pieces, strict=True):
        rows, data = rising[begin:end] - starts[block], opened.data(block)
        if not isinstance(data, pa.RecordBatch) or not opened.keeps(block):
            rows, data = np.arange(end - begin), _as_batch(take(data, rows))
        parts.append((data, rows))
    back = np.arange(len(rising))
    if places is not None:
        back[places] = np.arange(len(rising))
    return gather(parts, back)


def _as_batch(data: Data) -> pa.RecordBatch:
    """Rows of a block as one record batch, copied if they come in several chunks."""
    if isinstance(data, pa.RecordBatch):
        return data
    batches = data.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class LaneRows:
    """The rows of a lane at wanted positions, in its order. Each object is good for one pass."""

    def __init__(self, opened: OpenFiles, order: Order) -> None:
        self._opened, self._order, self._sizes = opened, order, opened.sizes
        self._windows = order.piece_starts("block")
        self._planned: deque[Step] = deque()
        # Rows of mapped files are there at once, so the first of them waits for nothing else.
        self._most_planned = MAX_STEPS if opened.is_remote else FIRST_STEPS if opened.decodes else 1
        self._is_first, self._step_rows = True, min(FIRST_ROWS, self._sizes.step)
        self._is_known = True
        """False if the next positions are not known before all planned rows are handed on, or if there are none."""
        self._needed: dict[HeldBlock, int] = {}
        """The blocks that the lane holds, each with the position from which on it does not need them."""

    def runs(self, wanted: Iterator[I64], most_rows: int | None = None) -> Iterator[RowRun]:
        """The rows at rising positions, which come in arrays of any size, in runs of at most ``most_rows``.

        An empty array says that the rows before it are needed before the next positions are known.
        """
        steps, most_rows = self._steps(wanted), most_rows or self._sizes.run
        while True:
            self._opened.check_process()
            self._plan(steps)
            if not self._planned:
                return
            made = self._made(self._planned[0])
            if self._opened.decodes:
                self._plan(steps)
            yield from self._runs_of(self._planned[0], made, most_rows)
            self._planned.popleft()

    def _steps(self, wanted: Iterator[I64]) -> Iterator[Step | None]:
        """Positions as steps; None where the next are not known before all planned rows are handed on."""
        waiting = list[I64]()
        for array in chain(wanted, (np.empty(0, np.int64),)):
            waiting.append(array)
            can_wait = not self._is_first and len(waiting) < MAX_ARRAYS and sum(map(len, waiting)) < self._step_rows
            if len(array) and can_wait:
                continue
            left, waiting = np.concatenate(waiting), []
            while len(left):
                most = self._step_rows if len(left) >= 2 * self._step_rows else len(left)
                step = self._step(left[:most])
                yield step
                left, self._is_first = left[len(step.positions) :], False
                if len(step.positions) >= self._step_rows:
                    self._step_rows = min(2 * self._step_rows, self._sizes.step)
            if not len(array) and self._planned:
                yield None

    def _step(self, positions: I64) -> Step:
        """A step of these positions, or of those that are in the first window: windows share no blocks.

        The first row after a resume waits for its own block, so the first step has no other.
        """
        opened, window = self._opened, int(np.searchsorted(self._windows, positions[0], "right"))
        if opened.window_bytes:
            positions = positions[: int(np.searchsorted(positions, self._windows[window]))]
        numbers = self._order.rows(positions)
        if self._is_first:
            owners = np.searchsorted(opened.view.block_starts, numbers, "right")
            first = int((owners != owners[0]).argmax()) or len(positions)
            positions, numbers = positions[:first], numbers[:first]
        blocks = list[int]()
        if opened.decodes:
            owners, _ = blocks_of(opened.view.block_starts, np.sort(numbers))
            blocks = [number for number in owners.tolist() if not opened.is_view(number)]
        most = max(LEAST_HELD_BYTES, opened.window_bytes)
        if len(blocks) > 2 and opened.view.block_lengths[blocks].sum() > most:
            blocks = []  # so many that they are read and dropped one by one; two are where large blocks meet
        return Step(positions, numbers, window, [*map(opened.hold, blocks)])

    def _plan(self, steps: Iterator[Step | None]) -> None:
        """Plan further steps, request their blocks as far ahead as bytes allow, and make those that have theirs."""
        if self._planned:
            begin = int(self._planned[0].positions[0])
            self._needed = {block: until for block, until in self._needed.items() if until > begin}
        self._is_known = self._is_known or not self._planned
        requested = list[HeldBlock]()
        while not self._planned or (
            self._needs(self._planned[-1], requested) and self._is_known and len(self._planned) < self._most_planned
        ):
            step = next(steps, None)
            self._is_known = step is not None
            if step is None:
                break
            self._planned.append(step)
        self._opened.request(requested)
        self._most_planned = min(2 * self._most_planned, MAX_STEPS)
        self._make_ahead()

    def _needs(self, step: Step, requested: list[HeldBlock]) -> bool:
        """Hold the blocks of a step that may be read ahead now, and return true if that is all.

        Those of the first step are requested at once, the others are added to what is ``requested``.
        """
        missing = [block for block in step.blocks if block not in self._needed]
        fitting = missing if step is self._planned[0] else self._fitting(step, missing, requested)
        requested += fitting
        if step is self._planned[0]:
            self._opened.request(requested)
        self._needed |= dict.fromkeys(fitting, 0)
        end = int(self._windows[int(np.searchsorted(self._windows, step.positions[-1], "right"))])
        used = int(step.positions[-1]) + 1  # a block of one row, such as an image, is not needed again
        for block in step.blocks:
            if block in self._needed:
                is_used = self._opened.view.block_rows[block.number] == 1
                self._needed[block] = max(used if is_used else end, self._needed[block])
        return len(fitting) == len(missing)

    def _fitting(self, step: Step, missing: list[HeldBlock], requested: list[HeldBlock]) -> list[HeldBlock]:
        """The first blocks that may be read ahead now. One more than the first step needs always may.

        The next window of a shuffle is read ahead if it fits the bytes of one window together with this one. The first
        of what is ``requested`` together waits until there is room for a whole group of neighbours, or until less than
        half of what may be read ahead is held. Then whole groups are requested: no small block is fetched alone.
        """
        opened, now = self._opened, set(self._planned[0].blocks)
        if opened.nothing_ahead:
            return []
        held = sum(block.nbytes for block in self._needed)
        ahead = sum(block.nbytes for block in self._needed if block not in now)
        room = opened.bytes_ahead - ahead
        if opened.window_bytes and step.window <= self._planned[0].window + 1:
            room = max(room, opened.window_bytes - held)
        group = int(opened.growth * opened.group_bytes)
        if ahead and not requested and room < min(group, opened.bytes_ahead // 2):
            return []
        together = sum(block.nbytes for block in requested)
        are_small = 2 * max((block.nbytes for block in missing), default=0) <= group  # so that they share requests
        if are_small and ahead > together and room + together >= group > 0:
            room -= (room + together) % group
        fitting = int((np.cumsum([opened.expected_bytes(block.number) for block in missing]) <= room).sum())
        fitting = min(fitting, max(0, STEP_BLOCKS - sum(not block.is_done for block in self._needed)))
        return missing[: max(fitting, 0 if ahead else 1)]

    def _make_ahead(self) -> None:
        """Let threads make the next steps whose blocks are in memory."""
        for step in islice(self._planned, 1, self._sizes.made_ahead + 1):
            if any(block not in self._needed for block in step.blocks):
                return
            if step.made is None and all(block.is_done for block in step.blocks):
                step.made = self._opened.submit(make_rows, self._opened, step.numbers)

    def _made(self, step: Step) -> list[pa.RecordBatch]:
        """The rows of a step. If no thread has begun to make them, this one does."""
        if step.made is not None and not step.made.cancel():
            return step.made.result()
        wait({block.request for block in step.blocks if block.request is not None})
        return make_rows(self._opened, step.numbers)

    def _runs_of(self, step: Step, made: Sequence[pa.RecordBatch], most_rows: int) -> Iterator[RowRun]:
        """The rows of a step, a run at a time."""
        begin, locate = 0, self._opened.view.locate
        for batch in made:
            for start in range(0, batch.num_rows, most_rows):
                rows = batch.slice(start, most_rows)
                at = slice(begin, begin + rows.num_rows)
                numbers = step.numbers[at]
                begin += rows.num_rows
                yield RowRun(Rows(rows, origin=RowOrigin(numbers, locate)), step.positions[at, None] + 1, numbers)
