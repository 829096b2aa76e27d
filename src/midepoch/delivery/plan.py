"""A plan: a pipeline, which part of it this process reads, where a reader starts from a state; and that in words."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from midepoch._common.checks import check_integer, count, log_once
from midepoch._common.world import torch_worker
from midepoch.checkpoint.digest import CHANGED, NOT_KEPT, RowDigest
from midepoch.checkpoint.fingerprint import stage_in_words
from midepoch.checkpoint.history import SessionRecord, remember
from midepoch.checkpoint.lanes import LanePosition
from midepoch.checkpoint.state import LanePositions, ReaderProgress, State
from midepoch.delivery.passes import Progress
from midepoch.delivery.session import AnySession, BalancedSession, FileSession, Session
from midepoch.delivery.uncounted import ReportedProgress, UncountedSession
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.mixture import Mixture
from midepoch.pipeline.pipeline import Pipeline
from midepoch.pipeline.surveyed import count_ahead
from midepoch.sources.files import FileRows
from midepoch.stages.batch import Batch
from midepoch.stages.stage import Stage


def progress_from(
    pipeline: Pipeline, start: State, reader: int, readers: int, delivered: ReaderProgress | None, workers: int = 1
) -> Progress:
    """The progress of a reader that starts from a complete state, or continues after what it ``delivered``."""
    session = session_from(pipeline, start, readers, delivered)
    if isinstance(session, UncountedSession):
        return ReportedProgress(session, reader, delivered, workers)
    return Progress(session, reader, delivered, workers)


def _digest_at(pipeline: Pipeline, state: State, *, continues: bool) -> RowDigest | None:
    """The digest of what was delivered before a state, if one is kept.

    If its session ``continues``, that has what the reader has delivered since the session began.
    """
    known = state.digest or RowDigest(unknown=NOT_KEPT)
    if not pipeline.digest:
        return None
    if state.lanes is None:
        return RowDigest()
    if state.digest is not None and state.appended:
        return RowDigest(unknown=CHANGED)
    return known if continues else known.at_start()


def _remembering(pipeline: Pipeline, start: State, ranks: int) -> State:
    """The start of a session, with a history that has it, if ranks deliver items by counts alone."""
    assert start.lanes is not None, "its epoch is cut into lanes"
    if start.earlier or start.appended or not start.positions.in_step or not _counts(pipeline, start):
        return replace(start, history=())
    balanced = pipeline.balanced or 0
    record = SessionRecord(start.epoch, start.lanes, start.turn, ranks, start.item_rows, start.mode, balanced)
    return replace(start, history=remember(start.history, record))


def _counts(pipeline: Pipeline, start: State) -> bool:
    """True if the items that readers take from a state are counted.

    Lanes of whole files stay with their readers, so that no file is read by two of them. If rows are masked, a pack may
    lose all of its documents, which only reading tells.
    """
    return pipeline.uniform or (pipeline.counted and start.mode == "example" and not pipeline.masks(start.edits))


def settled(pipeline: Pipeline, state: State) -> State:
    """A state that counts the items of all workers, as a complete state.

    The mixture of a complete state can be changed, the state loads without the survey, and workers that have not begun
    hold it as it is.
    """
    delivered, start = state.reader_progress, replace(state, reader_progress=None)
    if delivered is None or delivered.reader is not None or len(delivered.items) < delivered.workers:
        return state
    if start.item_rows != pipeline.item_rows:
        if not pipeline.uniform:
            raise _other_item_rows(start.item_rows, pipeline.item_rows)
        pipeline = replace(pipeline, stages=(Batch(size=start.item_rows),))  # the cursors are those of its items
    before = session_from(replace(pipeline, balanced=None), start, delivered.readers)
    before.check()
    assert isinstance(before, Session), "only counted items are counted for all workers"
    return before.after_each(delivered.items)


def session_from(
    pipeline: Pipeline, start: State, readers: int, delivered: ReaderProgress | None = None
) -> Session | UncountedSession:
    """A session of readers that start from a complete state, or continue after what one of them ``delivered``.

    A reader that has reported cursors continues to do so, even if its pipeline is counted by now, also in the next
    epochs: other readers may still be in an earlier one.
    """
    reports_cursors = bool(start.earlier) or (delivered is not None and delivered.reader is not None)
    if not pipeline.counted and any(stage.length_column is not None for stage in pipeline.stages):
        log_once(
            f"{pipeline.source.label}: {pipeline.why_not_counted()}. Then len() works, ranks get the same number of "
            "steps, and the state of any one rank restores all.",
            logging.INFO,
        )
    counted = pipeline.uniform or (_counts(pipeline, start) and not reports_cursors)
    if not counted:
        _check_not_balanced(pipeline)
        return UncountedSession(pipeline, start, readers)
    if pipeline.uniform and start.mode == "file" and len(start.positions) % readers == 0 and start.positions.in_step:
        return FileSession(pipeline, start, readers)
    return (Session if pipeline.balanced is None or readers == 1 else BalancedSession)(pipeline, start, readers)


def _check_not_balanced(pipeline: Pipeline) -> None:
    """Raise if ranks should get equal costs, but the state is not one of which all ranks know what was delivered."""
    if pipeline.balanced is not None:
        raise CheckpointMismatchError(
            "balance='cost' cannot continue this state: it holds what one of several readers delivered, lanes of whole "
            "files, or windows of packs out of which rows were left. Load merge_states of the states of all ranks, or "
            "finish the epoch without balance."
        )


def _check_reader_progress(delivered: ReaderProgress, *, reader: int, readers: int, workers: int) -> None:
    """Raise unless a partial state is this reader's own."""
    if delivered.readers != readers or (delivered.reader is None and delivered.workers != workers):
        raise CheckpointMismatchError(
            f"The state holds what one of {delivered.readers} readers delivered; now there are {readers}. "
            "To resume with another number of ranks or workers, merge the states of all ranks with merge_states, "
            "or those of a StatefulDataLoader's workers with from_stateful_dataloader, and load the result."
        )
    if delivered.reader is not None and delivered.reader != reader:
        raise CheckpointMismatchError(
            f"The state of reader {delivered.reader} of {readers} was loaded by reader {reader}. The state of a "
            "filtering or packing pipeline holds what its own rank delivered: load into each rank its own state, or "
            "into all ranks the result of merge_states."
        )


def _without_foreign(state: State, reader: int, readers: int) -> State:
    """The state without the epochs that another reader has finished. What is left of these for others is unknown."""
    finished = state.earlier[-1].reader_progress if state.earlier else None
    if finished is None or (finished.reader, finished.readers) == (reader, readers):
        return state
    log_once(
        f"The state is that of reader {finished.reader} of {finished.readers}, which had finished epoch "
        f"{state.epoch - 1}. If other ranks had not, their rows of that epoch will be missing. Save the states of all "
        "ranks, and load the result of merge_states."
    )
    return replace(state, earlier=())


def _other_item_rows(then: int, now: int) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"The state counts items of {count('row', then)}, because some readers of a lane were ahead of others when it "
        "was saved, or because it holds what one of several readers delivered. It cannot be resumed with items of "
        f"{count('row', now)}. Resume with the old batch size until the next epoch or a merged checkpoint, then change "
        "it."
    )


ShardMode = Literal["file", "example"]
ShardedBy = Literal["user", "launcher"]
Even = Literal["pad", "drop"]


def check_shard(num_shards: int, index: int) -> tuple[int, int]:
    """The number of shards and the index of one; raises if they do not fit each other."""
    ranks, rank = check_integer("num_shards", num_shards, least=1), check_integer("index", index)
    if rank >= ranks:
        raise ValueError(f"index is {rank} of {ranks} shards; it must be between 0 and {ranks - 1}.")
    return ranks, rank


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A pipeline and its readers. Only the pipeline is part of a checkpoint."""

    pipeline: Pipeline
    ranks: int = 1
    rank: int = 0
    mode: ShardMode = "example"
    sharded_by: ShardedBy | None = None
    """Who chose the shard; None if nobody did. A shard that the user chooses replaces one of the launcher."""
    lanes: int | None = None
    epochs_per_loop: int | None = 1
    items_per_step: int = 1
    """The number of items of each rank in a training step. Ranks that are kept even get whole steps."""
    even: Even | None = None
    """Gives all ranks the same number of items in an epoch, by repeating or leaving out at most one per rank."""

    def begin(self, state: State) -> Progress:
        """The progress of this process, which may be a worker of a DataLoader, when it starts from a state.

        A complete state starts a new session, with any number of readers. A partial state continues its session, and
        only for the reader that saved it.
        """
        worker, workers = torch_worker() or (0, 1)
        pipeline, reader, readers = self.pipeline, self.rank + self.ranks * worker, self.ranks * workers
        start = settled(pipeline, _without_foreign(state, reader, readers))
        delivered, start = start.reader_progress, replace(start, reader_progress=None)
        counts_items = not start.positions.in_step
        if delivered is not None:
            _check_reader_progress(delivered, reader=reader, readers=readers, workers=workers)
            _check_not_balanced(pipeline)
            counts_items = delivered.reader is None or start.counts_items(readers)
        if counts_items and start.item_rows != pipeline.item_rows:
            raise _other_item_rows(start.item_rows, pipeline.item_rows)
        if start.lanes is None:
            lanes = self.lanes or readers
            positions = LanePositions(((lanes, LanePosition(pipeline.begin)),))
            start = replace(start, lanes=lanes, mode=self.mode, turn=0, positions=positions)
        if delivered is None:
            start = _remembering(pipeline, replace(start, item_rows=pipeline.item_rows), self.ranks)
        start = replace(start, digest=_digest_at(pipeline, state, continues=delivered is not None))
        return progress_from(pipeline, start, reader, readers, delivered, workers)

    def check(self, state: State) -> None:
        """Raise if this process cannot resume from a state, or no run can have reached it."""
        for one in (state, *state.later):
            self.begin(one).check()

    @property
    def counted(self) -> bool:
        """True if every rank knows how many items each rank gets, and what all have delivered."""
        return self.why_not_counted() is None

    def why_not_counted(self) -> str | None:
        """What keeps the items from being counted, and what to do; None if they are counted."""
        if self.mode == "file" and not self.pipeline.uniform and self.pipeline.counted:
            return "shard(mode='file') gives ranks whole files, which may hold any number of items: use mode='example'"
        return self.pipeline.why_not_counted()

    def keeps_even(self, session: AnySession) -> bool:
        """True if ranks get the same number of items of a session, which has to be counted and to end."""
        return self.even is not None and session.counted and not session.is_endless

    def items_per_rank(self, session: AnySession) -> int | None:
        """The number of items that every rank gets from a session, or None if ranks may get different numbers."""
        if not isinstance(session, Session) or not self.keeps_even(session):
            return None
        items = [session.reader_items(reader) for reader in range(session.readers)]
        steps = -(-max(items) // self.items_per_step) if self.even == "pad" else min(items) // self.items_per_step
        return steps * self.items_per_step

    def items_of(self, session: Session, reader: int) -> int:
        """The number of items that a reader gets from a session, which is counted and ends."""
        items = self.items_per_rank(session)
        return session.reader_items(reader) if items is None else items

    def length(self, epoch: int) -> int:
        """The number of items that this rank gets in the loop that has this epoch. Raises if it is not known."""
        reason = self.why_not_counted()
        if reason is not None:
            raise TypeError(f"The length is unknown: {reason}.")
        if self.epochs_per_loop is None:
            raise TypeError("The length is unknown: repeat() never ends.")
        if self.pipeline.uniform and self.mode == "example":  # whole files may be in other lanes in each epoch
            return self.epochs_per_loop * self._items_of_epoch(0)
        first = epoch - epoch % max(1, self.epochs_per_loop)
        return sum(map(self._items_of_epoch, range(first, first + self.epochs_per_loop)))

    def _items_of_epoch(self, epoch: int) -> int:
        progress = self.begin(State(epoch=epoch))
        if not self.pipeline.uniform:
            count_ahead(progress.session.lanes)
        return self.items_of(progress.session, progress.reader)

    def ends_pass(self, start: State, *, empty: bool) -> bool:
        """True if a pass that has read the rest of an epoch, from ``start``, ends there.

        ``empty`` means that nothing was left for this reader. If nothing was left of an epoch under way, a pass of
        several epochs still goes into the next one. An epoch that was empty from its beginning ends every pass, which
        might never end otherwise.
        """
        if empty and start.lanes is None:
            return True
        return self.epochs_per_loop is not None and (start.epoch + 1) % self.epochs_per_loop == 0


def describe_plan(name: str, plan: Plan, *, epoch: int, options: Mapping[str, Any] | None = None) -> str:
    """What a dataset or a loader is, one stage a line. Nothing is read or counted for it."""
    lines = [f"<{name} of {plan.pipeline.source}", *_pipeline_lines(plan.pipeline), *_reader_lines(plan)]
    if options:
        lines.append("Loader(" + ", ".join(f"{key}={value!r}" for key, value in options.items()) + ")")
    return "\n  ".join([*lines, f"{_numbers(plan, epoch)}>"])


def _pipeline_lines(pipeline: Pipeline) -> Iterator[str]:
    source = pipeline.source
    if isinstance(source, Mixture):
        for name, part in zip(source.names, source.parts, strict=True):
            yield f"{name}: {part.source}"
            yield from (f"  {line}" for line in _pipeline_lines(part))
        mixing = {"op": "mix", "seed": source.seed, "stop": source.stop}
        yield "concat()" if source.in_turn else stage_in_words(mixing)
    else:
        yield from map(stage_in_words, source.describe())
    if isinstance(source, FileRows) and source.size != source.index.view.rows:
        yield f"= {count('row', source.size)}"
    yield from map(_stage_line, pipeline.stages)


def _stage_line(stage: Stage) -> str:
    """A stage and the parameters that are set, as a state describes them, also of stages that no state knows."""
    described = stage.describe() or stage.describe_as_input()
    described = described or {"op": stage.name, "type": getattr(stage, "form", None)}
    are_set = {name: value for name, value in described.items() if value not in (None, []) and value is not False}
    return stage_in_words(are_set)


def _reader_lines(plan: Plan) -> Iterator[str]:
    if plan.lanes is not None:
        yield f"lanes({plan.lanes})"
    if plan.ranks > 1 or plan.sharded_by is not None:
        yield f"shard({plan.ranks}, {plan.rank}{', mode=' + repr(plan.mode) if plan.mode == 'file' else ''})"
    if plan.epochs_per_loop != 1:
        yield f"repeat({'' if plan.epochs_per_loop is None else plan.epochs_per_loop})"


def _finds_lengths(pipeline: Pipeline) -> bool:
    """True if a pack would read the lengths of its rows now, to know whether it is counted."""
    if isinstance(pipeline.source, Mixture):
        return any(map(_finds_lengths, pipeline.source.parts))
    return pipeline.survey is None and pipeline.own_lengths is not None and not pipeline.own_lengths.is_known


def _numbers(plan: Plan, epoch: int) -> str:
    """The number of items where that is known by arithmetic alone, else why it is not known."""
    if _finds_lengths(plan.pipeline):
        return f"epoch {epoch}: the number of items is found out when it is first asked for"
    reason = plan.why_not_counted()
    if reason is not None:
        return f"epoch {epoch}: the number of items is unknown, because {reason}"
    if plan.epochs_per_loop is None or not plan.pipeline.uniform:
        return f"epoch {epoch}: the number of items is known" + (", and has no end" * (plan.epochs_per_loop is None))
    items = count("item", plan.length(epoch))
    return f"epoch {epoch}: {items}" + (f" for rank {plan.rank} of {plan.ranks}" if plan.ranks > 1 else "")
