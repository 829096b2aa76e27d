"""What is known of an epoch by arithmetic: which rows come at a step, when a row comes, and its digest.

Nothing is read, so items must be counted. A session of a run is rebuilt from the one before it: the turn at which it
ended says how many items of each lane were delivered. So a state only has to remember turns, ranks and batch sizes.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from midepoch._common.checks import check_integer, count
from midepoch._common.hashing import I64
from midepoch.checkpoint.digest import WHY_UNKNOWN, WORD, RowDigest
from midepoch.checkpoint.history import SessionRecord, sessions_of
from midepoch.checkpoint.state import State
from midepoch.delivery.passes import Pass, Progress
from midepoch.delivery.plan import Plan
from midepoch.delivery.session import AnySession, Session
from midepoch.delivery.tokens import EpochAmounts
from midepoch.errors import DigestMismatchError
from midepoch.pipeline.mixture import Mixture
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.files import FileRows
from midepoch.stages.batch import Batch
from midepoch.stages.counted import WHOLE, CountedItems

COLUMNS = ("epoch", "step", "rank", "item", "place", "document", "part", "file", "row", "start", "stop")
SCHEMA = pa.schema([(name, pa.string() if name in ("part", "file") else pa.int64()) for name in COLUMNS])


@dataclass(frozen=True, kw_only=True)
class TracedSession:
    """A session of an epoch, and what came before it."""

    plan: Plan
    session: Session
    first_step: int
    first_item: int
    turns: int | None
    """The number of its turns; None for the last session, which runs to the end of the epoch."""

    def has(self, rank: int, step: int) -> bool:
        """True if a rank gets an item at a step, counted from the session's start, if there are enough items."""
        if self.turns is not None:
            return step < self.session.items_of_reader(rank, self.turns)
        return self.plan.even != "drop" or step < self.most_items

    @property
    def most_items(self) -> int:
        """The most items of a rank until the end of the epoch, those included that it repeats to keep ranks even."""
        return max(self.plan.items_of(self.session, rank) for rank in range(self.session.readers))


def trace(run: Pass, step: int, *, epoch: int | None = None, ranks: int | None = None) -> pa.Table:
    """The rows of a step on all ranks, one line a row."""
    check_integer("step", step)
    epoch = run.epoch if epoch is None else check_integer("epoch", epoch)
    sessions = traced_sessions(run, epoch, ranks)
    for part in sessions:
        own = step - part.first_step
        items = [part.session.item(rank, own) for rank in range(part.session.readers) if part.has(rank, own)]
        lines = [_lines(epoch, part, *item) for item in items if item is not None]
        if lines:
            return pa.concat_tables(lines)
    last = sessions[-1]
    raise IndexError(
        f"Epoch {epoch} has no step {step:,}: it has {count('step', last.first_step + last.most_items)}, "
        "counted from 0."
    )


def find(run: Pass, file: str, row: int, *, epoch: int | None = None, ranks: int | None = None) -> pa.Table:
    """The lines of all traces of an epoch that have a row."""
    check_integer("row", row)
    epoch = run.epoch if epoch is None else check_integer("epoch", epoch)
    name = file_name(run.plan.pipeline, file)
    rows = max(rows for known, rows in _files(run.plan.pipeline) if known == name)
    if row >= rows:
        raise ValueError(f"{name} has {count('row', rows)}, counted from 0, so there is no row {row:,} in it.")
    sessions = traced_sessions(run, epoch, ranks)
    tables = [line for part in sessions for line in _lines_of_row(epoch, part, name, row)]
    return pa.concat_tables([SCHEMA.empty_table(), *tables]).sort_by("item")


def traced_sessions(run: Pass, epoch: int, ranks: int | None = None) -> list[TracedSession]:
    """The sessions of an epoch of a run; with ``ranks``, the one session of that number of ranks.

    Raises if items are not counted, or if the run does not know who read the epoch.
    """
    plan, session = run.plan, run.progress().session
    start = session.start
    reason = plan.why_not_counted()
    if reason is None and ranks is None and epoch == start.epoch and not session.counted:
        reason = "the state that was loaded holds what one of several readers delivered, or rows were left out of packs"
    if reason is not None:
        raise ValueError(f"The rows of a step are known only where items are counted: {reason}.")
    records: Sequence[SessionRecord] | None = sessions_of(start.history, epoch)
    if ranks is not None or epoch > start.epoch:
        ranks = plan.ranks if ranks is None else check_integer("ranks", ranks, least=1)
        pipeline = plan.pipeline
        size, balanced = pipeline.item_rows, pipeline.balanced or 0
        records = [SessionRecord(epoch, plan.lanes or ranks, 0, ranks, size, plan.mode, balanced)]
    if records is None:
        raise ValueError(
            f"The run does not know which ranks read epoch {epoch}: it was resumed from a state of uncounted "
            "items, or of readers that were not in step, or was resized very often. Pass ranks=n to trace it as a run "
            "of n ranks from the beginning of that epoch."
        )
    sessions = list(_rebuilt(plan, State(epoch=epoch), records))
    if ranks is None and epoch == start.epoch and not _leads_to(sessions[-1].session, start):
        raise ValueError(
            f"The state of epoch {epoch} does not follow from its history, so its steps cannot be traced. Some readers "
            "were ahead of others when it was saved. Pass ranks=n to trace the epoch as a run of n ranks."
        )
    return sessions


def _leads_to(session: Session, state: State) -> bool:
    """True if a session reaches a state, or begins there."""
    turns = state.turn - session.start.turn
    return turns >= 0 and session.after_turns(turns).positions == state.positions


def _rebuilt(plan: Plan, state: State, records: Sequence[SessionRecord]) -> Iterator[TracedSession]:
    first_step = first_item = 0
    for number, record in enumerate(records):
        pipeline = replace(_with_item_rows(plan.pipeline, record.item_rows), balanced=record.balanced or None)
        of_ranks = replace(plan, ranks=record.ranks, rank=0, lanes=record.lanes, mode=record.mode)
        session = replace(of_ranks, pipeline=pipeline).begin(state).session
        assert isinstance(session, Session), "only counted sessions are in a history"
        turns = records[number + 1].turn - record.turn if number + 1 < len(records) else None
        yield TracedSession(plan=plan, session=session, first_step=first_step, first_item=first_item, turns=turns)
        if turns is not None:
            first_step += max(session.items_of_reader(rank, turns) for rank in range(record.ranks))
            first_item += session.items_in(turns)
            state = session.after_turns(turns)


def _with_item_rows(pipeline: Pipeline, item_rows: int) -> Pipeline:
    """The pipeline with the batch size of an earlier session."""
    if pipeline.item_rows == item_rows:
        return pipeline
    batches = [number for number, stage in enumerate(pipeline.stages) if isinstance(stage, Batch)]
    if len(batches) > 1:
        raise ValueError(
            f"A session had items of {count('row', item_rows)}, and the pipeline has {len(batches)} batch stages, so "
            "it is unknown which of them was another. Trace with the batch sizes of that session."
        )
    stages: list[Any] = [*pipeline.stages, *([] if batches else [Batch(size=item_rows)])]
    if batches:
        stages[batches[0]] = replace(stages[batches[0]], size=item_rows)
    return replace(pipeline, stages=tuple(stages))


def _lines_of_row(epoch: int, part: TracedSession, file: str, row: int) -> Iterator[pa.Table]:
    for lane in range(len(part.session.positions)):
        for ordinal in part.session.lane_items(lane).find(file, row).tolist():
            rank, step, _ = part.session.delivery_of(lane, ordinal)
            if part.has(rank, step):
                lines = _lines(epoch, part, lane, ordinal)
                places = zip(lines["file"].to_pylist(), lines["row"].to_pylist(), strict=True)
                yield lines.filter(pa.array([place == (file, row) for place in places], pa.bool_()))


def _lines(epoch: int, part: TracedSession, lane: int, ordinal: int) -> pa.Table:
    """The rows of an item."""
    rank, step, item = part.session.delivery_of(lane, ordinal)
    rows = part.session.lane_items(lane).trace(np.array([ordinal]))
    numbers = (epoch, part.first_step + step, rank, part.first_item + item)
    is_row = rows.starts == WHOLE
    columns: list[Any] = [
        *(np.full(len(rows.rows), value, np.int64) for value in numbers),
        rows.places,
        pa.array(rows.documents, mask=is_row),
        pa.array([name or None for name in rows.parts.tolist()], pa.string()),
        pa.array(rows.files.tolist(), pa.string()),
        rows.rows,
        pa.array(rows.starts, mask=is_row),
        pa.array(rows.stops, mask=is_row),
    ]
    return pa.table(columns, schema=SCHEMA)


def file_name(pipeline: Pipeline, file: str) -> str:
    """The name of a file as the index has it, given that name, its path, or the end of it. Raises if it is unknown."""
    names = sorted({name for name, _ in _files(pipeline)})
    if file in names:
        return file
    matching = [name for name in names if file.endswith(f"/{name}") or name.endswith(f"/{file}")]
    if len(matching) != 1:
        found = f"{len(matching)} files are called so" if matching else "no file is called so"
        shown = ", ".join((matching or names)[:5]) + (" …" if len(matching or names) > 5 else "")
        raise ValueError(f"{file}: {found}. {'Name one of them' if matching else 'The dataset has'}: {shown}.")
    return matching[0]


def _files(pipeline: Pipeline) -> Iterator[tuple[str, int]]:
    """The names of all files, and their numbers of rows. Parts of a mixture may have files of the same name."""
    source = pipeline.source
    if isinstance(source, Mixture):
        for part in source.parts:
            yield from _files(part)
    elif isinstance(source, FileRows):
        view = source.index.view
        yield from zip(view.names, np.diff(view.file_starts).tolist(), strict=True)


class _Steps(NamedTuple):
    epoch: int
    step: int
    """The steps of this epoch so far, those before a resume included."""
    steps: int | None
    """All steps of this epoch; None if they are not counted, or never end."""


class EpochProgress(_Steps):
    """How far a rank is in an epoch, and all ranks in its tokens. Unpack its three numbers of steps, or print it.

    Tokens are counted when they are asked for, and not by a copy from a pickle.
    """

    _amounts: EpochAmounts | None = None
    _state: State | None = None

    @classmethod
    def of(cls, progress: Progress, step: int, steps: int | None) -> "EpochProgress":
        """The steps and the tokens of a progress."""
        made = cls(progress.session.start.epoch, step, steps)
        made._amounts, made._state = progress.amounts, progress.state()
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return EpochProgress, tuple(self)

    @property
    def tokens(self) -> int | None:
        """The tokens that all ranks have delivered of this epoch, those before a resume included.

        Padding is no token, and rows that are left out have none. None if lengths are not known.
        """
        if self._amounts is None or self._state is None:
            return None
        return self._amounts.delivered(self._state)[""].tokens

    @property
    def epoch_tokens(self) -> int | None:
        """All tokens of this epoch; None if lengths are not known, or it never ends."""
        return None if self._amounts is None else self._amounts.total

    @property
    def fraction(self) -> float | None:
        """How much of the epoch is done, from 0 to 1; None if that is unknown."""
        return None if self.steps is None else self.step / self.steps if self.steps else 1.0

    def __str__(self) -> str:
        of_tokens = "" if self.tokens is None else f", {count('token', self.tokens)}"
        if self.fraction is None or self.steps is None:
            return f"epoch {self.epoch}, {count('step', self.step)}{of_tokens}"
        if self.epoch_tokens is not None:
            of_tokens = f", {self.tokens:,} of {count('token', self.epoch_tokens)}"
        return f"epoch {self.epoch}, step {self.step:,} of {self.steps:,} ({self.fraction:.1%}){of_tokens}"


def epoch_progress(run: Pass) -> EpochProgress:
    """How far a pass is. If it is not known what came before a resume, steps count from there."""
    progress, plan = run.progress(), run.plan
    session = progress.session
    step = progress.items
    if not isinstance(session, Session) or session.is_endless:
        return EpochProgress.of(progress, step, None)
    left = plan.items_of(session, progress.reader) - step
    with suppress(ValueError):  # its sessions are not known
        last = traced_sessions(run, run.epoch)[-1]
        turns = session.start.turn - last.session.start.turn
        is_padded = plan.keeps_even(session) and plan.even == "pad"  # then all ranks take the steps of the longest
        ranks = range(last.session.readers) if is_padded else (progress.reader,)
        step += last.first_step + max(last.session.items_of_reader(rank, turns) for rank in ranks)
    return EpochProgress.of(progress, step, step + left)


AT_ONCE = 1 << 16
"""How many keys are computed at a time."""


def predicted_digest(plan: Plan, epoch: int) -> int:
    """The digest of a whole epoch, before anything of it is read."""
    if (reason := plan.why_not_counted()) is not None:
        raise ValueError(f"The digest cannot be predicted: {reason}.")
    session = plan.begin(State(epoch=epoch)).session
    _check_ends(session)
    items = [session.lanes.counted(lane, plan.pipeline.begin) for lane in range(len(session.positions))]
    return sum(_sum_of_first(of_lane, of_lane.total()) for of_lane in items) % WORD


def digest_of(progress: Progress) -> int:
    """The digest of what was delivered of an epoch."""
    start = progress.session.start
    if start.digest is None:
        raise ValueError("There is no digest: pass digest=True to the Loader.")
    if start.digest.unknown is not None:
        raise ValueError(
            f"The digest of epoch {start.epoch} is not known, because {WHY_UNKNOWN[start.digest.unknown]}."
        )
    delivered: RowDigest = replace(start.digest, own=progress.own_sum, rank=progress.reader)
    return delivered.total


def check_digest(progress: Progress) -> int:
    """The same, if it is that of the rows that should have been delivered. Raises if not.

    Compares what all ranks had delivered when the session began, and what this rank delivered since.
    """
    session, found = progress.session, digest_of(progress)
    if not isinstance(session, Session):
        reason = session.pipeline.why_not_counted() or "the state holds what one of several readers delivered"
        raise ValueError(f"The digest cannot be checked: {reason}.")
    _check_ends(session)
    assert session.start.digest is not None
    before = sum(_sum_before(session, lane) for lane in range(len(session.positions))) % WORD
    resumed_right = before == session.start.digest.before
    if resumed_right and progress.own_sum == _own_sum(session, progress):
        return found
    when = "since it resumed" if resumed_right else "in all"
    raise DigestMismatchError(
        f"What rank {progress.reader} delivered of epoch {session.start.epoch} {when} is not what it should be: its "
        "digest differs. Rows were lost, repeated or exchanged. Go back to a checkpoint that passes the check, and "
        "report this with your pipeline."
    )


def _check_ends(session: AnySession) -> None:
    if session.is_endless:
        raise ValueError("The digest of an epoch that never ends cannot be known: mix(stop='never') starts over.")


def _sum_before(session: Session, lane: int) -> int:
    """The sum of what a lane had delivered when a session began."""
    position = session.positions[lane]
    units, left = (session.lanes.units(lane, cursor) for cursor in (session.pipeline.begin, position.cursor))
    ahead = np.array(position.delivered_ahead, np.int64)
    of_ahead = _sum_of(session.lanes.counted(lane, position.cursor), ahead) if len(ahead) else 0
    return _sum_of_first(units, units.total() - left.total()) + of_ahead


def _own_sum(session: Session, progress: Progress) -> int:
    """The sum of what a reader must have delivered since the session began."""
    runs = session.runs(progress.reader, range(progress.turns_taken))
    ordinals = ((session.lane_items(lane), one) for run in runs for lane, one in run.ordinals_of_lanes())
    return sum(_sum_of(items, np.arange(one.start, one.stop, one.step)) for items, one in ordinals) % WORD


def _sum_of_first(items: CountedItems, number: int) -> int:
    """The sum of what the first items add to a digest, of few at a time, which needs little memory."""
    parts = (np.arange(first, min(first + AT_ONCE, number)) for first in range(0, number, AT_ONCE))
    return sum(_sum_of(items, part) for part in parts)


def _sum_of(items: CountedItems, ordinals: I64) -> int:
    return int(items.hashes(ordinals).sum(dtype=np.uint64))
