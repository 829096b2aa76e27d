"""A pipeline: everything that decides which items there are, nothing about who reads. And its lanes in one epoch."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from math import prod
from typing import Any, TypeVar

import pyarrow as pa

from midepoch._common.checks import cached_property
from midepoch._common.hashing import digest
from midepoch.checkpoint.lanes import Cursor, LanePosition
from midepoch.checkpoint.state import Edits, State, fingerprint_digest
from midepoch.counting.survey import OwnLengths
from midepoch.counting.survey_file import Survey
from midepoch.sources.files import FileRows
from midepoch.sources.source import EpochCut, ItemSpec, Source
from midepoch.stages.counted import Checked, CountedItems, Kept, Outputs
from midepoch.stages.flow import Context, Flow, PackCounts, watched
from midepoch.stages.pack.counts import CountsOfLane, WindowCounts
from midepoch.stages.pack.windows import PlannedWindows
from midepoch.stages.stage import Call, Stage, cursor_numbers, why_no_survey
from midepoch.values.features import with_field_features

StageKind = TypeVar("StageKind", bound=Stage)
COUNTS_FORMAT = 2
"""Part of the key of shared counts; raise it when those of older releases must not be used."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A source of items, and the stages that they pass through."""

    source: Source
    stages: tuple[Stage, ...] = ()
    survey: Survey | None = field(default=None, compare=False)
    """What is known of each row without reading it. It changes no item, and is no part of a checkpoint."""
    own_lengths: OwnLengths | None = field(default=None, compare=False)
    """The survey that ``pack`` makes by itself, unless the user has made one."""
    balanced: int | None = field(default=None, compare=False)
    """The number of items of a global step whose costs are shared evenly by ranks; None if they take turns."""

    digest: bool = field(default=False, compare=False)
    """True if readers say what each item adds to a digest of the rows."""

    @property
    def known_survey(self) -> Survey | None:
        """The survey of the user, else the one that ``pack`` makes by itself, which is made now if need be."""
        if self.survey is not None or self.own_lengths is None:
            return self.survey
        return self.own_lengths.survey()

    @property
    def knows_lengths(self) -> bool:
        """True if the lengths of the documents that are packed are known by surveys of the rows."""
        if self.parts:
            of_rows = all(stage.keeps_rows for part in self.parts for stage in part.stages)
            return of_rows and all(part.knows_lengths for part in self.parts)
        survey = self.known_survey
        return survey is not None and survey.has_lengths

    @cached_property
    def uniform(self) -> bool:
        """True if the positions of all lanes follow from the numbers of rows and items alone, by a formula."""
        return self.source.uniform and all(stage.count(1) is not None for stage in self.stages)

    @cached_property
    def counted(self) -> bool:
        """True if the number of items of a lane from any cursor on is known without reading rows."""
        return self.why_not_counted() is None

    def why_not_counted(self) -> str | None:
        """Which stage keeps the items from being counted, and what to do; None if they are counted."""
        if self.uniform:
            return None
        is_mixture, survey = bool(self.parts), self.survey
        reason = self.source.why_not_counted(survey) or why_no_survey(self.stages, of_mixture=is_mixture)
        if reason is not None:
            return reason
        of_surveys = [stage for stage in self.stages if stage.checking(False).needs_survey]
        for stage in of_surveys[0 if survey is None else survey.covered :]:
            if stage.needs_survey and not (self.knows_lengths if is_mixture else self.known_survey is not survey):
                return f"how many items {stage.name} yields is only known by reading the rows: call .survey() once"
        return None

    @cached_property
    def keeps_layout(self) -> bool:
        """True if packs know their rows by keys. Then other rows keep their places when some are left out."""
        packs = [stage for stage in self.stages if stage.length_column is not None]
        groups = [stage for part in self._tree() for stage in part.stages if stage.many_outputs]
        return bool(packs) and len(groups) == len(packs)

    @property
    def parts(self) -> "tuple[Pipeline, ...]":
        """The parts of a mixture; none of another source."""
        return getattr(self.source, "parts", ())

    def _tree(self) -> "Iterator[Pipeline]":
        """This pipeline, its parts, and theirs."""
        yield self
        for part in self.parts:
            yield from part._tree()

    @property
    def files(self) -> list[FileRows]:
        """The rows of files that the items are made of: several of a mixture."""
        return [part.source for part in self._tree() if isinstance(part.source, FileRows)]

    def masks(self, edits: Edits) -> bool:
        """True if rows that edits leave out of an epoch under way only leave their places in packs empty.

        A pack may lose all of its rows, which only reading tells.
        """
        if not edits or self.keeps_layout:
            return bool(edits)
        return not isinstance(edits, int) and any(map(Pipeline.masks, self.parts, edits))

    @cached_property
    def item_rows(self) -> int:
        """The number of inputs of the first ``batch`` that make one item of the last."""
        return prod(stage.group_size for stage in self.stages if not stage.many_outputs)

    @cached_property
    def unit_stages(self) -> int:
        """The number of stages up to the last that changes the number of items. After it come batches at most."""
        return max((number for number, stage in enumerate(self.stages, 1) if stage.count(1) is None), default=0)

    @cached_property
    def window_stages(self) -> int:
        """The number of stages up to the one that packs windows of documents; 0 if there is none."""
        return next((number for number, stage in enumerate(self.stages, 1) if stage.makes_windows), 0)

    @property
    def begin(self) -> Cursor:
        """The cursor at the start of a lane."""
        return self.source.begin + (0,) * sum(cursor_numbers(self.stages))

    def _flow_of_nothing(self) -> Flow:
        """A flow without items through all stages. It says what the items are like, and nothing is read."""
        form, batched = self.source.item_spec
        schema = self.source.schema
        flow = Flow(single_items=iter(()), form=form, batched=batched)
        if schema is not None:
            flow = Flow(row_runs=iter(()), form=form, batched=batched, schema=schema)
        for stage in self.stages:
            flow = stage.flow(flow, self.begin, self.context(0))
        return flow

    @cached_property
    def item_spec(self) -> ItemSpec:
        """The form of the items, and whether they are batches."""
        flow = self._flow_of_nothing()
        return flow.form, flow.batched

    @property
    def chooses_form(self) -> bool:
        """True if the user said which form the values have."""
        return any(stage.sets_form for part in self._tree() for stage in part.stages)

    @cached_property
    def schema(self) -> pa.Schema | None:
        """The items' Arrow schema where their values are those of the files, else None."""
        return self._flow_of_nothing().schema

    @cached_property
    def run_schema(self) -> pa.Schema | None:
        """The same where every row is kept and comes in a run, so that a mixture can interleave columns."""
        flow = self._flow_of_nothing()
        return flow.schema if flow.row_runs is not None and self.first_resizing is None else None

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """The user functions that the stages call, those of parts first."""
        of_parts = [function for part in self.parts for function in part.functions]
        return of_parts + [function for stage in self.stages for function in stage.functions]

    @property
    def first_resizing(self) -> str | None:
        """The name of the first stage that does not make one output of each input."""
        return next((stage.name for stage in self.stages if not stage.one_to_one), None)

    @property
    def keeps_rows(self) -> bool:
        """True if the items are the source's rows with all their columns, in any form, and no function uses them."""
        if self.schema is None or self.first_resizing is not None or any(stage.functions for stage in self.stages):
            return False
        return bool(self.schema.equals(self.source.schema))

    def with_stages(self, *stages: Stage) -> "Pipeline":
        """This pipeline with more stages."""
        return replace(self, stages=(*self.stages, *stages))

    @cached_property
    def item_schema(self) -> pa.Schema | None:
        """The columns of the items, also where values are not those of the files; None if only reading tells."""
        schema = None if self.source.schema is None else with_field_features(self.source.schema)
        for stage in self.stages:
            schema = stage.item_schema(schema)
        return schema

    def check_row_numbers(self, purpose: str) -> None:
        """Raise if the items of this pipeline have no row numbers; ``purpose`` is for the message."""
        if self.parts:
            raise ValueError(
                f"{purpose} is not possible on a mixture, whose items have no common row numbers: use it on each of "
                "the datasets before mixing them."
            )
        grouping = next((stage.name for stage in self.stages if stage.many_outputs or stage.group_size > 1), None)
        if grouping is not None:
            raise ValueError(
                f"{purpose} after {grouping} is not possible: {grouping} makes items that are not single rows, or "
                f"forgets which rows they were. Put it before {grouping}."
            )

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        with_rng: bool = False,
        with_indices: bool = False,
        input_columns: Sequence[str] | str | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        version: str | int | None = None,
    ) -> Call:
        """A user function as the next stage of this pipeline calls it."""
        if with_indices:
            self.check_row_numbers(f"{name}(with_indices=True)")
        columns = [input_columns] if isinstance(input_columns, str) else input_columns
        return Call(
            function=function,
            stage=name,
            number=len(self.stages) + 1,
            with_rng=with_rng,
            with_indices=with_indices,
            salt=1 + sum(stage.describe() is not None for stage in self.stages),
            version=version,
            input_columns=None if columns is None else tuple(columns),
            fn_kwargs={} if fn_kwargs is None else fn_kwargs,
        )

    def find(self, kind: type[StageKind]) -> StageKind | None:
        """The first stage of a kind, for callers that added one themselves and need what it collects."""
        return next((stage for stage in self.stages if isinstance(stage, kind)), None)

    def items(self, rows: int, item_rows: int | None = None) -> int:
        """The number of items that ``rows`` rows of a lane make in a uniform pipeline.

        With another number of rows an item than the pipeline's own, as in a state taken with another batch size, the
        last item may have fewer.
        """
        items = max(0, rows)
        if item_rows not in (None, self.item_rows):
            return -(-items // item_rows)
        for stage in self.stages:
            outputs = stage.count(items)
            assert outputs is not None, "only uniform pipelines are counted"
            items = outputs
        return items

    def describe(self) -> list[dict[str, Any]]:
        """What a state remembers of the pipeline."""
        description = self.source.describe()
        for number, stage in enumerate(self.stages):
            grouped_later = any(later.many_outputs for later in self.stages[number + 1 :])
            described = stage.describe_as_input() if grouped_later else stage.describe()
            if described is not None:
                description.append(described)
        return description

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What a state remembers of data and pipeline."""
        return {"data": self.source.fingerprint, "pipeline": self.describe()}

    @cached_property
    def _fingerprint_digest(self) -> bytes:
        return fingerprint_digest(self.fingerprint)

    def state_dict(self, state: State) -> dict[str, Any]:
        """A state of this pipeline as plain values."""
        return state.to_dict(self.fingerprint, self._fingerprint_digest)

    def context(self, epoch: int) -> Context:
        """What the stages may know in an epoch."""
        rows_until = next(
            (number for number, stage in enumerate(self.stages, start=1) if stage.many_outputs or stage.group_size > 1),
            len(self.stages) + 1,
        )
        return self.source.context(epoch, rows_until)


def cut_of(state: State) -> EpochCut:
    """How the epoch of a state, which has begun, is cut."""
    return EpochCut(
        epoch=state.epoch,
        lanes=len(state.positions),
        mode=state.mode,
        appended=state.appended,
        edits=state.edits,
    )


class PipelineLanes:
    """The lanes of one epoch of a pipeline."""

    def __init__(self, pipeline: Pipeline, cut: EpochCut) -> None:
        self.pipeline, self.cut = pipeline, replace(cut, masks=bool(cut.edits) and (cut.masks or pipeline.keeps_layout))
        self.deferred = False
        """True if items of a uniform pipeline go to another process: rows that no function needs are ``RowItems``."""
        self.packs = PackCounts()
        self.source = pipeline.source.cut(self.cut, lambda: pipeline.known_survey)

    @classmethod
    def of(cls, pipeline: Pipeline, state: State) -> "PipelineLanes":
        """The lanes of a state's epoch, which has begun."""
        return cls(pipeline, cut_of(state))

    def __reduce__(self) -> tuple[Any, ...]:
        return PipelineLanes, (self.pipeline, self.cut)

    def size(self, lane: int) -> int:
        return self.source.size(lane)

    def reaches(self, lane: int, cursor: Cursor, margin: int) -> bool:
        return self.source.reaches(lane, cursor[: len(self.pipeline.source.begin)], margin)

    def open(self, opened: Any, lane: int, position: LanePosition, skip: int, stride: int) -> Flow:
        """The items of a lane from its position on: without the first ``skip``, then every ``stride``-th."""
        flow = self.flow(opened, lane, position.cursor)
        if not position.delivered_ahead and (skip, stride) == (0, 1):
            return flow
        delivered_ahead = set(position.delivered_ahead)
        items = flow.as_single_items()
        items = (single for number, single in enumerate(items) if number not in delivered_ahead)
        return flow.with_single_items(islice(items, skip, None, stride))

    def counted(self, lane: int, cursor: Cursor) -> CountedItems:
        return self._counted(lane, cursor, self.pipeline.stages)

    def units(self, lane: int, cursor: Cursor) -> CountedItems:
        """The outputs of the last stage that changes the number of items, from a cursor on."""
        return self._counted(lane, cursor, self.pipeline.stages[: self.pipeline.unit_stages])

    def windows(self, lane: int, cursor: Cursor) -> PlannedWindows | None:
        """The windows of the stage that packs documents, from a cursor of that stage on; None if there is none."""
        stages = self.pipeline.stages[: self.pipeline.window_stages]
        windows = self._counted(lane, cursor, stages) if stages else None
        assert isinstance(windows, PlannedWindows | None)
        return windows

    def _counted(self, lane: int, cursor: Cursor, stages: Sequence[Stage]) -> CountedItems:
        source = self.pipeline.source
        width = len(source.begin)
        items = self.source.counted(lane, cursor[:width])
        if self.pipeline.uniform:
            items = Outputs(items, self._with_deferral)
        output_counts = partial(self.output_counts, lane)
        context = replace(self.pipeline.context(self.cut.epoch), output_counts=output_counts, packs=self.packs)
        filters = [number for number, stage in enumerate(stages) if stage.needs_survey and stage.keeps_rows]
        names = [stages[number].name for number in filters]
        if not self.pipeline.parts and not source.uniform:
            names.insert(0, "read(filters=...)")
        if names:
            items = Kept(items) if filters else Checked(Kept(items), names, context.name)
        for number, (stage, own_numbers) in enumerate(zip(stages, cursor_numbers(stages), strict=True)):
            width += own_numbers
            items = stage.counted(items, cursor[:width], context)
            if number in filters[-1:]:
                items = Checked(items, names, context.name)
        return items

    def output_counts(self, lane: int) -> CountsOfLane:
        """How many packs the windows of a lane have, as far as any process knows."""
        return CountsOfLane(self._output_counts, lane)

    @cached_property
    def _output_counts(self) -> WindowCounts:
        stages, survey = self.pipeline.stages[: self.pipeline.window_stages], self.pipeline.known_survey
        folder, key = None, ""
        if survey is not None and survey.folder is not None:
            described = self.pipeline.source.describe(), [stage.describe() for stage in stages]
            parts = [COUNTS_FORMAT, survey.digest, self.pipeline.source.fingerprint, described, asdict(self.cut)]
            folder, key = survey.folder, digest(json.dumps(parts, sort_keys=True).encode(), size=16).hex()
        return WindowCounts(folder, key, lanes=self.cut.lanes, size=stages[-1].group_size)

    def _with_deferral(self, flow: Flow) -> Flow:
        return replace(flow, deferred=True) if self.deferred else flow

    def flow(self, opened: Any, lane: int, cursor: Cursor) -> Flow:
        """The items of a lane from a cursor on. Each stage gets the cursor's numbers up to its own."""
        width = len(self.pipeline.source.begin)
        context = replace(self.pipeline.context(self.cut.epoch), packs=self.packs)
        flow = self.source.flow(opened, lane, cursor[:width])
        left_out = flow.left_out
        if left_out is not None:
            context = replace(context, left_out=left_out)
        make = partial(self._through_stages, cursor, context)
        watches = flow.pass_rows is not None and self.pipeline.first_resizing
        return replace(watched(flow, make) if watches else make(flow), left_out=left_out)

    def _through_stages(self, cursor: Cursor, context: Context, flow: Flow) -> Flow:
        width, stages = len(self.pipeline.source.begin), self.pipeline.stages
        for stage, own_numbers in zip(stages, cursor_numbers(stages), strict=True):
            width += own_numbers
            flow = stage.flow(replace(flow, skips=own_numbers > 1), cursor[:width], context)
        return flow
