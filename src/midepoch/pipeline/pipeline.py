"""A pipeline: everything that decides which items there are, nothing about who reads."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeVar

import pyarrow as pa

from midepoch._common.checks import cached_property
from midepoch.checkpoint.lanes import Cursor
from midepoch.checkpoint.state import Edits, State
from midepoch.checkpoint.versions import fingerprint_digest
from midepoch.counting.survey import OwnLengths
from midepoch.counting.survey_file import Survey
from midepoch.sources.source import ItemSpec, Source
from midepoch.stages.flow import Context, Flow
from midepoch.stages.stage import Call, Stage, cursor_numbers
from midepoch.values.features import with_field_features

log = logging.getLogger("midepoch")

StageKind = TypeVar("StageKind", bound=Stage)


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
        return self.source.knows_lengths(lambda: self.known_survey)

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
        reason = self.source.why_not_counted(self.survey)
        if reason is not None:
            return reason
        random, grouping = None, None if self.source.has_rows else "mix"
        covered = self.survey.covered if self.survey is not None else 0
        for stage in self.stages:
            covered -= stage.checking(False).needs_survey
            if stage.needs_survey:
                if grouping is not None and not (grouping == "mix" and stage.length_column is not None):
                    remedy = "on each of the datasets before mixing them" if grouping == "mix" else f"before {grouping}"
                    return (
                        f"{stage.name} comes after {grouping}, whose items have no row numbers by which a survey could "
                        f"know them: use {stage.name} {remedy}"
                    )
                if random is not None:
                    return (
                        f"{stage.name} comes after {random} with with_rng=True, which makes other rows in every epoch: "
                        f"put {stage.name} first"
                    )
                known = self.knows_lengths if grouping == "mix" else self.known_survey is not self.survey
                if covered < 0 and not known:
                    return f"how many items {stage.name} yields is only known by reading the rows: call .survey() once"
            elif stage.count(1) is None:
                return stage.why_not_counted
            grouping = grouping or (None if stage.keeps_rows else stage.name)
            random = stage.name if stage.uses_rng else random
        return None

    @cached_property
    def keeps_layout(self) -> bool:
        """True if packs know their rows by keys. Then other rows keep their places when some are left out."""
        packs = [stage for stage in self.stages if stage.length_column is not None]
        groups = [stage for part in (self, *self._all_parts()) for stage in part.stages if stage.many_outputs]
        return bool(packs) and len(groups) == len(packs)

    @property
    def parts(self) -> "tuple[Pipeline, ...]":
        """The parts of a mixture; none of another source."""
        return getattr(self.source, "parts", ())

    def _all_parts(self) -> "Iterator[Pipeline]":
        for part in self.parts:
            yield part
            yield from part._all_parts()

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
        return self.source.chooses_form or any(stage.sets_form for stage in self.stages)

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
        """The user functions that the source and the stages call."""
        return [*self.source.functions, *(function for stage in self.stages for function in stage.functions)]

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
        if not self.source.has_rows:
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
        version: str | int | None = None,
    ) -> Call:
        """A user function as the next stage of this pipeline calls it."""
        if with_indices:
            self.check_row_numbers(f"{name}(with_indices=True)")
        return Call(
            function=function,
            stage=name,
            number=len(self.stages) + 1,
            with_rng=with_rng,
            with_indices=with_indices,
            salt=1 + sum(stage.describe() is not None for stage in self.stages),
            version=version,
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
