"""Which rows of files the items of a lane are made of, found by reading them: through stages and parts of mixtures."""

from dataclasses import replace

import numpy as np

from midepoch._common.types import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.pipeline.draws import part_salt
from midepoch.pipeline.waiting_rows import LOW_BITS
from midepoch.sources.source import RowOrigins
from midepoch.stages.flow import Context, Flow
from midepoch.stages.noting import noting
from midepoch.stages.origins import Origins, Pieces
from midepoch.stages.stage import Stage
from midepoch.stages.traced import WHOLE, TracedRows, join_traced


class LaneOrigins:
    """The rows of the items of one lane of a pipeline: by what each stage notes, and what its source knows."""

    def __init__(self, source: RowOrigins) -> None:
        self._source = source
        self._stages: list[tuple[Stage, Origins | BatchMembers]] = []

    def outputs(self, stage: Stage, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """The outputs of the next stage. It is noted what they are made of, unless they have the keys of their inputs.

        A batch has the key of its first input, and the others follow that.
        """
        if stage.many_outputs:
            origins = Origins()
            self._stages.append((stage, origins))
            context = replace(context, origins=origins)
        elif stage.group_size > 1:
            members = BatchMembers(stage.group_size)
            self._stages.append((stage, members))
            inputs = noting(inputs, members.note)
        return stage.flow(inputs, cursor, context)

    def trace(self, numbers: I64) -> TracedRows:
        """The rows of outputs of the last stage, given by their keys."""
        keys, items = numbers, np.arange(len(numbers))
        places = documents = np.zeros(len(keys), np.int64)
        starts = stops = np.full(len(keys), WHOLE, np.int64)
        for stage, origins in reversed(self._stages):
            try:
                pieces = origins.of(keys)
            except KeyError:
                raise ValueError(
                    f"{stage.name} does not note to context.origins what its outputs are made of, so the rows of items "
                    "are unknown. Let the flow of the stage note them."
                ) from None
            keys, of = pieces.inputs, pieces.outputs
            items, places, documents, starts, stops = items[of], places[of], documents[of], starts[of], stops[of]
            if stage.length_column is not None:
                documents, starts, stops = pieces.places, pieces.starts, pieces.stops
            elif not stage.many_outputs:
                places = places * stage.group_size + pieces.places
        rows = self._source.trace(keys)
        of = rows.items
        packed = starts[of] != WHOLE
        return rows.with_columns(
            items=items[of],
            places=places[of] + rows.places,
            documents=np.where(packed, documents[of], rows.documents),
            starts=np.where(packed, starts[of], rows.starts),
            stops=np.where(packed, stops[of], rows.stops),
        )


class BatchMembers:
    """The inputs of batches of one lane, in their order. A batch has the key of the first of them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._inputs: list[int] = []
        self._numbers: dict[int, int] = {}

    def note(self, keys: I64) -> None:
        """Note the keys of the next inputs."""
        self._numbers.update((key, number) for number, key in enumerate(keys.tolist(), len(self._inputs)))
        self._inputs.extend(keys.tolist())

    def of(self, keys: I64) -> Pieces:
        """The inputs of batches, given by their keys."""
        firsts = [self._numbers[key] for key in keys.tolist()]
        members = [self._inputs[first : first + self._size] for first in firsts]
        outputs = np.repeat(np.arange(len(keys)), list(map(len, members)))
        places = np.array([place for batch in members for place in range(len(batch))], np.int64)
        inputs = np.array([key for batch in members for key in batch], np.int64)
        whole = np.full(len(places), WHOLE, np.int64)
        return Pieces(outputs, places, inputs, whole, whole)


class DrawOrigins:
    """The rows of the items of one lane of a mixture: of which pass over which part each is, by its key."""

    def __init__(self) -> None:
        self._passes: list[tuple[str, LaneOrigins]] = []
        self._drawn: dict[int, tuple[int, int]] = {}

    def record(self, part: str, times_ended: int, of_part: LaneOrigins, flow: Flow) -> Flow:
        """The items of a pass over a part, which are noted under the keys that the mixture gives them."""
        number, salt = len(self._passes), part_salt(part, times_ended)
        self._passes.append((part, of_part))

        def note(keys: I64) -> None:
            of_mixture = ((keys ^ salt) & LOW_BITS).tolist()
            self._drawn.update((key, (number, inner)) for key, inner in zip(of_mixture, keys.tolist(), strict=True))

        return noting(flow, note)

    def trace(self, numbers: I64) -> TracedRows:
        """The rows of items, given by their keys."""
        drawn = np.array([self._drawn[key] for key in numbers.tolist()], np.int64).reshape(-1, 2)
        traced = []
        for number in np.unique(drawn[:, 0]).tolist():
            part, of_part = self._passes[number]
            items = np.flatnonzero(drawn[:, 0] == number)
            rows = of_part.trace(drawn[items, 1]).within(part)
            traced.append(rows.with_columns(items=items[rows.items]))
        return join_traced(traced)
