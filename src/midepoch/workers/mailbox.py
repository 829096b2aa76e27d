"""What arrives from the workers of a pool in one round: messages, found by their turns."""

import pickle
import selectors
import time
from collections import deque
from collections.abc import Sequence

from midepoch.delivery.layout import Chunk, Destination
from midepoch.delivery.progress import AnyProgress
from midepoch.delivery.tally import Tally
from midepoch.delivery.transport import NO_TURN, PLACE, Message
from midepoch.workers.process import CHECK_SECONDS, END, ITEMS, ROUND, TURN
from midepoch.workers.worker import Worker


class Mailbox:
    """Reads where messages are as soon as that arrives, and leaves them where they are until their turn has come."""

    def __init__(self, workers: Sequence[Worker], round_number: int, progress: AnyProgress, *, timeout: float) -> None:
        self._workers, self._round, self._timeout = workers, round_number, timeout
        self._progress = progress
        self._messages: dict[int, tuple[Worker, Message]] = {}  # by their first turns
        self._errors: dict[int, bytes] = {}  # by the turns in place of which they come
        self._ended: set[Worker] = set()  # those that have sent everything
        self._gone: set[Worker] = set()  # those whose connections have ended
        self._ready = selectors.PollSelector()
        for worker in workers:
            self._ready.register(worker.connection, selectors.EVENT_READ, worker)

    def close(self) -> None:
        """Let workers use the memory of messages that nobody wants any more."""
        for worker, message in self._messages.values():
            worker.note_received(message)
        self._messages.clear()
        self._ready.close()

    def message(self, turn: int, *, wait: bool) -> tuple[Worker, Message] | None:
        """The message that begins with a turn; None if there is no such turn, or it has not arrived yet."""
        begun, maker = None, self._workers[turn % len(self._workers)]
        while turn not in self._messages:
            if NO_TURN in self._errors and wait:
                self._raise(NO_TURN)
            if turn in self._errors:
                if wait:  # not earlier: others have turns to deliver before
                    self._raise(turn)
                return None
            if maker in self._ended:
                return None
            if self._read(0):
                continue
            if not wait:
                return None
            begun = begun or time.monotonic()
            self._wait(maker, begun)
        return self._messages.pop(turn)

    def _raise(self, turn: int) -> None:
        pickle.loads(self._errors[turn]).reraise()

    def _wait(self, maker: Worker, begun: float) -> None:
        """Wait for something from the workers. ``maker`` makes the turn that is needed.

        First the time is used to prepare, for one worker and then another: else the loop would wait for that later.
        """
        maker.before_wait()
        if any(worker.prepare() for worker in (maker, *self._workers)):
            return  # what is needed may have arrived meanwhile
        seconds: float = CHECK_SECONDS
        if self._timeout:
            passed = time.monotonic() - begun
            if passed >= self._timeout:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
            seconds = min(seconds, self._timeout - passed)
        is_dead = maker in self._gone or not maker.process.is_alive()
        if not self._read(0 if is_dead else seconds) and is_dead:
            raise maker.death()

    def _read(self, seconds: float) -> bool:
        """Read what has arrived, or what arrives next; False if nothing has, after that time."""
        has_read = False
        for key, _ in self._ready.select(seconds):
            worker: Worker = key.data
            try:
                content = worker.connection.recv_bytes()
            except (EOFError, OSError):
                self._ready.unregister(worker.connection)
                self._gone.add(worker)
                continue
            has_read = True
            self._note(worker, bytes(content))
        return has_read

    def _note(self, worker: Worker, content: bytes) -> None:
        kind, head = content[:1], 1 + ROUND.size
        is_of_round = ROUND.unpack(content[1:head]) == (self._round,)
        if kind == ITEMS:
            message = Message.at(content[head : head + PLACE.size])
            if not is_of_round:  # of a loop that was left
                worker.note_received(message)
                return
            tally = Tally.read_back(content[head + PLACE.size :])
            self._progress.of_workers = self._progress.of_workers.plus(tally)
            self._messages[message.turn] = worker, message
        elif is_of_round and kind == END:
            self._ended.add(worker)
        elif is_of_round:
            (turn,) = TURN.unpack(content[head : head + TURN.size])
            self._errors[turn] = content[head + TURN.size :]


class WorkerPort:
    """Where the turns of one worker arrive in one round."""

    def __init__(self, mailbox: Mailbox, worker: int, workers: int, progress: AnyProgress, to: Destination) -> None:
        self._mailbox, self._turn, self._step = mailbox, worker, workers
        self._progress, self._to = progress, to
        self._chunks: deque[Chunk] = deque()
        self._error: Exception | None = None  # of the turn after these

    def chunk(self, *, wait: bool) -> Chunk | None:
        """The turns that are next; None at the end, or, without ``wait``, if none have arrived yet.

        An error of an item, as it becomes a Python value, is raised with ``wait`` only: others have turns before.
        """
        while not self._chunks:
            if self._error is not None:
                if wait:
                    raise self._error
                return None
            arrived = self._mailbox.message(self._turn, wait=wait)
            if arrived is None:
                return None
            worker, message = arrived
            begun = time.perf_counter()
            try:
                self._chunks.extend(message.receive(worker.memory, self._to))
            except Exception as error:
                self._error = error
            received = Tally(received=time.perf_counter() - begun)
            self._progress.of_workers = self._progress.of_workers.plus(received)
            worker.note_received(message)
            self._turn += self._step * sum(len(chunk.items) for chunk in self._chunks)
        return self._chunks.popleft()
