"""A mixture: a source that draws from several pipelines, its parts, in the proportion of their weights.

Lane ``l`` of a mixture draws from lane ``l`` of every part. Its cursor holds, for each part, how many items were drawn
since the schedule began, how often the part has come to its end, and the part's own cursor. The schedule is a pure
function of the weights, the seed, the lane and those counts.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeVar, get_args

import pyarrow as pa

from midepoch._common.checks import cached_property
from midepoch.checkpoint.lanes import Cursor
from midepoch.checkpoint.state import edits_of_part
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.adopt import adopt_mixture
from midepoch.pipeline.draws import (
    LOW_BITS,
    CountedDraws,
    Draws,
    LaneParts,
    PartPosition,
    Stop,
    join_positions,
    part_salt,
    split_positions,
)
from midepoch.pipeline.pipeline import Pipeline, PipelineLanes
from midepoch.pipeline.schedule import NEVER, DrawTable, Shares, WeightSteps, integer_weights, weight_in_words
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
from midepoch.stages.counted import CountedItems
from midepoch.stages.flow import Context, Flow, noting
from midepoch.stages.pack.documents import TOKENS

T = TypeVar("T")
STOPS: tuple[str, ...] = get_args(Stop)
EPOCHS_KEPT = 4
"""How many epochs' lanes of each part are kept in memory."""


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Several pipelines, drawn from in the proportion of their weights."""

    parts: tuple[Pipeline, ...]
    names: tuple[str, ...]
    weights: tuple[float, ...]
    named: bool
    """True if the user named the parts. Otherwise the names are made from what the parts are."""
    seed: int = 0
    stop: Stop = "first"
    steps: WeightSteps | None = None
    """Weights that change with the number of items; then ``weights`` are the first of them."""
    in_turn: bool = False
    """True if the parts are read one after the other. Then ``stop`` is "all", and weights have no meaning."""
    tokens_in: str = field(default=TOKENS, compare=False)
    """The column whose lists are the tokens of rows, where these are counted."""
    uniform = False
    has_rows = False

    @property
    def label(self) -> str:
        return f"{'concat' if self.in_turn else 'mix'}-of-{len(self.parts)}"

    def __str__(self) -> str:
        if self.in_turn:
            return ", then ".join(self.names)
        weights = map(weight_in_words, self.described_weights)
        parts = ", ".join(f"{name} ({weight})" for name, weight in zip(self.names, weights, strict=True))
        return f"a mixture of {parts}"

    @cached_property
    def integer_weights(self) -> tuple[int, ...]:
        """The weights as the schedule takes them."""
        return integer_weights(self.weights)

    @property
    def described_weights(self) -> list[Any]:
        """The weight of each part as a checkpoint holds it: a number, or all of its weights if they change."""
        if self.steps is None:
            return list(self.weights)
        return [self.steps.of_part(part) for part in range(len(self.parts))]

    def why_not_counted(self, survey: RowFacts | None) -> str | None:
        for name, part in zip(self.names, self.parts, strict=True):
            if (reason := part.why_not_counted()) is not None:
                return f"in the part {name!r} of the mixture, {reason}"
        return None

    def knows_lengths(self, survey: FindSurvey) -> bool:
        of_rows = all(stage.keeps_rows for part in self.parts for stage in part.stages)
        return of_rows and all(part.knows_lengths for part in self.parts)

    @property
    def shuffled(self) -> bool:
        return any(part.source.shuffled for part in self.parts)

    def log_mixing(self, lanes: int) -> None:
        for part in self.parts:
            part.source.log_mixing(lanes)

    @property
    def functions(self) -> list[Callable[..., Any]]:
        return [function for part in self.parts for function in part.functions]

    @property
    def survives_fork(self) -> bool:
        return all(part.source.survives_fork for part in self.parts)

    @property
    def item_spec(self) -> ItemSpec:
        return self.parts[0].item_spec  # mix() checks that all parts agree

    @property
    def chooses_form(self) -> bool:
        return any(part.chooses_form for part in self.parts)

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
                "weights": self.described_weights,
                "seed": self.seed,
                "stop": self.stop,
                "widths": [len(part.begin) for part in self.parts],
                "parts": [part.describe() for part in self.parts],
                **({"in_turn": True} if self.in_turn else {}),
            }
        ]

    def part_epoch(self, epoch: int, times_ended: int) -> int:
        """The epoch of a pass over a part. One that starts over does so in its next epoch, with another shuffle."""
        return epoch + (times_ended if self.stop == "never" else 0)

    def cut(self, cut: EpochCut, survey: FindSurvey = no_survey) -> "MixtureLanes":
        """The lanes of an epoch. They are counted with the surveys of the parts."""
        if cut.appended:
            raise CheckpointMismatchError(
                "The state is damaged: it says that files were appended to a mixture. Load an earlier checkpoint."
            )
        if cut.edits and (isinstance(cut.edits, int) or len(cut.edits) != len(self.parts)):
            raise CheckpointMismatchError(
                "The state is damaged: its edits are not those of the parts of a mixture. Load an earlier checkpoint."
            )
        return MixtureLanes(self, cut)

    def open(self, lanes: int) -> "OpenMixture":
        return OpenMixture([part.source.open(lanes * -(-len(self.parts) // 4)) for part in self.parts])

    def context(self, epoch: int, rows_until: int) -> Context:
        return Context(seed=self.seed, epoch=epoch, rows_until=0, locate=_no_row)

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
        self._mixture, self._cut = mixture, cut
        # All lanes share an epoch's order. While some lanes are a pass ahead of others, the orders of both are needed.
        self._cached_lanes = lru_cache(maxsize=EPOCHS_KEPT * len(mixture.parts))(self._cut_part)
        self._left_out: dict[int, set[int]] = {}

    def note_masked(self, lane: int, left_out: set[int]) -> None:
        self._left_out[lane] = left_out

    def _cut_part(self, part: int, epoch: int) -> PipelineLanes:
        edits = edits_of_part(self._cut.edits, part)
        return PipelineLanes(self._mixture.parts[part], replace(self._cut, epoch=epoch, edits=edits))

    def _part_lanes(self, part: int, times_ended: int) -> PipelineLanes:
        """The lanes of a pass over a part."""
        return self._cached_lanes(part, self._mixture.part_epoch(self._cut.epoch, times_ended))

    def size(self, lane: int) -> int:
        return sum(self._part_lanes(part, 0).size(lane) for part in range(len(self._mixture.parts)))

    def reaches(self, lane: int, cursor: Cursor, margin: int) -> bool:
        """True if every part can have reached its cursor, and the schedule its counts."""
        positions = self._mixture.part_positions(cursor)
        table = self._table(lane, [position.times_ended for position in positions])
        drawn = [position.drawn for position in positions]
        if table is not None and (sum(drawn) >= NEVER or table.drawn(sum(drawn)).tolist() != drawn):
            return False
        return all(
            self._part_lanes(part, times_ended).reaches(lane, cursor, self._mixture.parts[part].item_rows)
            for part, (_, times_ended, cursor) in enumerate(positions)
        )

    def _table(self, lane: int, times_ended: Sequence[int]) -> DrawTable | None:
        """All draws of a lane, given how often each part has ended; None if no part is left to draw from."""
        mixture, key = self._mixture, (self._mixture.seed, self._cut.epoch, lane)
        if mixture.steps is not None:
            steps = mixture.steps.of_lane(lane, self._cut.lanes)
            return DrawTable([(begin, Shares(weights, *key, step)) for step, (begin, weights) in enumerate(steps)])
        parts = zip(mixture.integer_weights, times_ended, strict=True)
        weights = [0 if mixture.stop == "all" and ended else weight for weight, ended in parts]
        if not any(weights):
            return None
        return DrawTable.in_turn(weights) if mixture.in_turn else DrawTable([(0, Shares(weights, *key))])

    def _lane_parts(self, lane: int, cursor: Cursor, open_part: Callable[[int, int, Cursor], T]) -> LaneParts[T]:
        return LaneParts(
            names=self._mixture.names,
            begins=[part.begin for part in self._mixture.parts],
            positions=self._mixture.part_positions(cursor),
            stop=self._mixture.stop,
            open=open_part,
            table=partial(self._table, lane),
        )

    def flow(self, opened: OpenMixture, lane: int, cursor: Cursor) -> Flow:
        """The items of a lane, in runs of rows if the parts have a common schema."""
        mixture = self._mixture
        draws = Draws(self._lane_parts(lane, cursor, partial(self._open, opened, lane)))
        form, batched = mixture.item_spec
        pass_rows = self._pass_rows(lane) if mixture.stop == "never" else None
        if mixture.schema is not None:
            return Flow(row_runs=draws.row_runs(), form=form, pass_rows=pass_rows)
        return Flow(single_items=draws.single_items(), form=form, batched=batched, pass_rows=pass_rows)

    def _pass_rows(self, lane: int) -> int:
        """How many draws take at least all items of each part once."""
        weights = self._mixture.integer_weights
        weighted = [(lanes, weight) for lanes, weight in zip(self.first_passes(), weights, strict=True) if weight]
        return max(lanes.size(lane) * sum(weights) // weight for lanes, weight in weighted)

    def first_passes(self) -> list[PipelineLanes]:
        """The lanes of each part in its first pass."""
        return [self._part_lanes(part, 0) for part in range(len(self._mixture.parts))]

    def counted(self, lane: int, cursor: Cursor) -> CountedDraws:
        def open_part(part: int, times_ended: int, cursor: Cursor) -> CountedItems:
            return self._part_lanes(part, times_ended).counted(lane, cursor)

        parts = self._lane_parts(lane, cursor, open_part)
        return CountedDraws(parts, form=self._mixture.item_spec, in_runs=self._mixture.schema is not None)

    def _open(self, opened: OpenMixture, lane: int, part: int, times_ended: int, cursor: Cursor) -> Flow:
        lanes, name = self._part_lanes(part, times_ended), self._mixture.names[part]
        flow = lanes.flow(opened.parts[part], lane, cursor)
        if lane in self._left_out and lane in lanes.left_out:
            mask = partial(_note_masked, self._left_out[lane], lanes.left_out[lane], part_salt(name, times_ended))
            flow = noting(flow, mask)
        return flow


def _note_masked(left_out: set[int], of_part: Set[int], salt: int, keys: list[int]) -> None:
    """Add the keys that the mixture gives to those items of a part that are masked."""
    left_out.update((key ^ salt) & LOW_BITS for key in keys if key in of_part)


def _no_row(key: int) -> tuple[str, int]:
    raise LookupError(key)  # a key does not say of which part it is
