"""A mixture: a source that draws from several pipelines, its parts, in the proportion of their weights.

Lane ``l`` of a mixture draws from lane ``l`` of every part. Its cursor holds, for each part, how many items were drawn
since the schedule began, how often the part has come to its end, and the part's own cursor. The schedule is a pure
function of the weights, the seed, the lane and those counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, get_args

import pyarrow as pa

from midepoch._common.checks import cached_property
from midepoch.checkpoint.lanes import Cursor
from midepoch.checkpoint.state import edits_of_part
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.adopt import adopt_mixture
from midepoch.pipeline.draws import (
    CountedDraws,
    Draws,
    PartPosition,
    ReadDraws,
    Stop,
    join_positions,
    split_positions,
)
from midepoch.pipeline.pipeline import Pipeline, PipelineLanes
from midepoch.pipeline.schedule import NEVER, DrawTable, Shares, Weights, weight_in_words
from midepoch.sources.source import (
    AdoptedCheckpoint,
    EpochCut,
    FindSurvey,
    ItemSpec,
    OpenSource,
    ReadCounts,
    RowFacts,
    no_survey,
    sum_counts,
)
from midepoch.stages.flow import Context, Flow
from midepoch.stages.pack.documents import TOKENS

STOPS: tuple[str, ...] = get_args(Stop)
EPOCHS_KEPT = 4
"""How many epochs' lanes of each part are kept in memory."""


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Several pipelines, drawn from in the proportion of their weights."""

    parts: tuple[Pipeline, ...]
    names: tuple[str, ...]
    weights: Weights
    named: bool
    """True if the user named the parts. Otherwise the names are made from what the parts are."""
    seed: int = 0
    stop: Stop = "first"
    in_turn: bool = False
    """True if the parts are read one after the other. Then ``stop`` is "all", and weights have no meaning."""
    tokens_in: str = field(default=TOKENS, compare=False)
    """The column whose lists are the tokens of rows, where these are counted."""
    uniform = False

    @property
    def label(self) -> str:
        return f"{'concat' if self.in_turn else 'mix'}-of-{len(self.parts)}"

    def __str__(self) -> str:
        if self.in_turn:
            return ", then ".join(self.names)
        weights = map(weight_in_words, self.weights.described)
        parts = ", ".join(f"{name} ({weight})" for name, weight in zip(self.names, weights, strict=True))
        return f"a mixture of {parts}"

    def why_not_counted(self, survey: RowFacts | None) -> str | None:
        for name, part in zip(self.names, self.parts, strict=True):
            if (reason := part.why_not_counted()) is not None:
                return f"in the part {name!r} of the mixture, {reason}"
        return None

    @property
    def item_spec(self) -> ItemSpec:
        return self.parts[0].item_spec  # mix() checks that all parts agree

    @cached_property
    def schema(self) -> pa.Schema | None:
        """The schema of all parts if they are unchanged rows and agree, so that they can be drawn in runs."""
        schemas = [part.run_schema for part in self.parts]
        same = all(schema is not None and schema.equals(schemas[0]) for schema in schemas)
        return schemas[0] if same else None

    @property
    def begin(self) -> Cursor:
        return join_positions([PartPosition(0, 0, part.begin) for part in self.parts])

    def part_positions(self, cursor: Cursor) -> list[PartPosition]:
        """The position in each part that a cursor of the mixture holds."""
        return split_positions(cursor, [len(part.begin) for part in self.parts])

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {"parts": [part.fingerprint["data"] for part in self.parts]}

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "op": "mix",
                "names": list(self.names),
                "weights": self.weights.described,
                "seed": self.seed,
                "stop": self.stop,
                "widths": [len(part.begin) for part in self.parts],
                "parts": [part.describe() for part in self.parts],
                **({"in_turn": True} if self.in_turn else {}),
            }
        ]

    def cut(self, cut: EpochCut, survey: FindSurvey = no_survey) -> "MixtureLanes":
        """The lanes of an epoch. They are counted with the surveys of the parts."""
        if cut.appended or (cut.edits and (isinstance(cut.edits, int) or len(cut.edits) != len(self.parts))):
            raise CheckpointMismatchError(
                "The state is damaged: the files that were appended, or its edits, are not those of a mixture of these "
                "parts. Load an earlier checkpoint."
            )
        return MixtureLanes(self, cut)

    def open(self, lanes: int) -> "OpenMixture":
        return OpenMixture([part.source.open(lanes * -(-len(self.parts) // 4)) for part in self.parts])

    def context(self, epoch: int, rows_until: int) -> Context:
        return Context(seed=self.seed, epoch=epoch, rows_until=0, locate=_no_row)

    def flow_of(self, draws: Draws | ReadDraws) -> Flow:
        """Draws as a flow: in runs if all parts are unchanged rows with one schema, else one by one."""
        form, batched = self.item_spec
        if self.schema is not None:
            return Flow(row_runs=draws.row_runs(), form=form, left_out=draws.left_out)
        return Flow(single_items=draws.single_items(), form=form, batched=batched, left_out=draws.left_out)

    def adopt(self, then: Mapping[str, Any]) -> AdoptedCheckpoint:
        """Accept a checkpoint of a mixture, also one with other weights or parts: each part keeps its own position."""
        return adopt_mixture(self, then)


class OpenMixture:
    """What the parts of a mixture hold open."""

    def __init__(self, parts: Sequence[OpenSource]) -> None:
        self.parts = parts

    @property
    def decodes(self) -> bool:
        return any(part.decodes for part in self.parts)

    def counts(self) -> ReadCounts:
        return sum_counts(part.counts() for part in self.parts)

    def close(self) -> None:
        for part in self.parts:
            part.close()


class MixtureLanes:
    """The lanes of one epoch of a mixture."""

    def __init__(self, mixture: Mixture, cut: EpochCut) -> None:
        self.mixture, self._cut = mixture, cut
        # All lanes share an epoch's order. While some lanes are a pass ahead of others, the orders of both are needed.
        self.of_part = lru_cache(maxsize=EPOCHS_KEPT * len(mixture.parts))(self._cut_part)

    def _cut_part(self, part: int, times_ended: int) -> PipelineLanes:
        """The lanes of a pass over a part. One that starts over does so in its next epoch, with another shuffle."""
        epoch = self._cut.epoch + (times_ended if self.mixture.stop == "never" else 0)
        edits = edits_of_part(self._cut.edits, part)
        return PipelineLanes(self.mixture.parts[part], replace(self._cut, epoch=epoch, edits=edits))

    def size(self, lane: int) -> int:
        return sum(self.of_part(part, 0).size(lane) for part in range(len(self.mixture.parts)))

    def reaches(self, lane: int, cursor: Cursor, margin: int) -> bool:
        """True if every part can have reached its cursor, and the schedule its counts."""
        positions = self.mixture.part_positions(cursor)
        table = self.table(lane, [position.times_ended for position in positions])
        drawn = [position.drawn for position in positions]
        if table is not None and (sum(drawn) >= NEVER or table.drawn(sum(drawn)).tolist() != drawn):
            return False
        return all(
            self.of_part(part, times_ended).reaches(lane, cursor, self.mixture.parts[part].item_rows)
            for part, (_, times_ended, cursor) in enumerate(positions)
        )

    def table(self, lane: int, times_ended: Sequence[int]) -> DrawTable | None:
        """All draws of a lane, given how often each part has ended; None if no part is left to draw from."""
        mixture, parts = self.mixture, self.draws_from(times_ended)
        drawn, steps = parts[:1] if mixture.in_turn else parts, []
        for step, (begin, weights) in enumerate(mixture.weights.of_lane(lane, self._cut.lanes)):
            left = [weight if part in drawn else 0 for part, weight in enumerate(weights)]
            key = () if mixture.weights.are_constant else (step,)
            steps.append((begin, Shares(left, mixture.seed, self._cut.epoch, lane, *key)))
        return DrawTable(steps) if parts else None

    def draws_from(self, times_ended: Sequence[int]) -> list[int]:
        """The parts that are drawn from, given how often each has ended."""
        left = [self.mixture.stop != "all" or not ended for ended in times_ended]
        weights = zip(*(weights for _, weights in self.mixture.weights.steps), strict=True)
        return [part for part, own in enumerate(weights) if left[part] and any(own)]

    def flow(self, opened: OpenMixture, lane: int, cursor: Cursor) -> Flow:
        """The items of a lane, in runs of rows if the parts have a common schema."""
        left_out = set[int]() if self._cut.masks else None
        flow = self.mixture.flow_of(Draws(self, lane, cursor, opened, left_out))
        return replace(flow, pass_rows=self._pass_rows(lane) if self.mixture.stop == "never" else None)

    def _pass_rows(self, lane: int) -> int:
        """How many draws take at least all items of each part once."""
        _, weights = self.mixture.weights.steps[0]
        weighted = [(lanes, weight) for lanes, weight in zip(self.first_passes(), weights, strict=True) if weight]
        return max(lanes.size(lane) * sum(weights) // weight for lanes, weight in weighted)

    def first_passes(self) -> list[PipelineLanes]:
        """The lanes of each part in its first pass."""
        return [self.of_part(part, 0) for part in range(len(self.mixture.parts))]

    def counted(self, lane: int, cursor: Cursor) -> CountedDraws:
        return CountedDraws(self, lane, cursor)


def _no_row(key: int) -> tuple[str, int]:
    raise LookupError(key)  # a key does not say of which part it is
