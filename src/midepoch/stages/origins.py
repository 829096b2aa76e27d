"""What the outputs of a stage are made of, noted while a lane is read again to find out which rows its items hold.

A stage that makes groups, such as ``pack``, gives its outputs keys of their own. So it notes the keys of their inputs.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from midepoch._common.types import I64
from midepoch.stages.traced import WHOLE


class Pieces(NamedTuple):
    """Inputs of outputs, one entry an input in each array."""

    outputs: I64
    """Which of the outputs, from 0."""
    places: I64
    """The place in the output, from 0."""
    inputs: I64
    """The keys of the inputs."""
    starts: I64
    """The first token of the input that is in the output; ``WHOLE`` if the outputs are no packs."""
    stops: I64


class Noted(NamedTuple):
    """Outputs that were made together. The inputs of output ``n`` are those from ``bounds[n]`` to ``bounds[n + 1]``."""

    bounds: I64
    inputs: I64
    starts: I64
    stops: I64


class Origins:
    """What the outputs of one stage in one lane are made of, by their keys."""

    def __init__(self) -> None:
        self._noted: dict[int, tuple[Noted, int]] = {}

    def note(
        self,
        keys: I64,
        bounds: I64,
        inputs: I64,
        *,
        starts: I64 | None = None,
        stops: I64 | None = None,
        kept: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Note the keys of outputs, and those of the inputs of each; of packs also which tokens of each input.

        Inputs that are not ``kept`` are left out of their outputs.
        """
        if kept is not None:
            bounds, inputs = np.concatenate([[0], np.cumsum(kept)])[bounds], inputs[kept]
            starts, stops = (None if column is None else column[kept] for column in (starts, stops))
        whole = np.full(len(inputs), WHOLE, np.int64)
        noted = Noted(bounds, inputs, whole if starts is None else starts, whole if stops is None else stops)
        self._noted.update((key, (noted, number)) for number, key in enumerate(keys.tolist()))

    def note_group(self, keys: I64, inputs: I64) -> None:
        """Note outputs of a group that are each made of all of its inputs."""
        self.note(keys, np.arange(len(keys) + 1) * len(inputs), np.tile(inputs, len(keys)))

    def of(self, keys: I64) -> Pieces:
        """The inputs of outputs, which were noted."""
        found = [self._of_one(number, key) for number, key in enumerate(keys.tolist())]
        nothing = np.empty(0, np.int64)
        return Pieces._make(np.concatenate(columns) for columns in zip(Pieces(*[nothing] * 5), *found, strict=True))

    def _of_one(self, number: int, key: int) -> Pieces:
        (bounds, *columns), output = self._noted[key]
        first, last = int(bounds[output]), int(bounds[output + 1])
        pieces = [column[first:last] for column in columns]
        return Pieces(np.full(last - first, number), np.arange(last - first), *pieces)
