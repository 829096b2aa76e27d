"""How many edits came after an epoch was cut into lanes: a number, or one for each part of a mixture, in a tuple.

Parts may be mixtures themselves. 0 stands for no edit of any part.
"""

from collections.abc import Sequence
from typing import Any

from midepoch.checkpoint.migrations import shortened

Edits = int | tuple["Edits", ...]
MOST_EDITS, MOST_DEPTH, MOST_PARTS = 1 << 10, 16, 1 << 16


def edits_of_part(edits: Edits, part: int) -> Edits:
    """The edits of a part of a mixture."""
    return edits[part] if isinstance(edits, tuple) else 0


def join_edits(parts: Sequence[Edits]) -> Edits:
    """The edits of all parts of a mixture as those of the mixture."""
    return tuple(parts) if any(parts) else 0


def add_edits(first: Edits, second: Edits) -> Edits:
    """The edits of both, which are of one pipeline."""
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    parts = max(len(edits) for edits in (first, second) if isinstance(edits, tuple))
    return join_edits([add_edits(edits_of_part(first, part), edits_of_part(second, part)) for part in range(parts)])


def write_edits(edits: Edits) -> Any:
    """Plain values."""
    return edits if isinstance(edits, int) else [write_edits(part) for part in edits]


def read_edits(value: Any, depth: int = 0) -> Edits:
    """Read edits back. Raises ``ValueError`` if no run can have written them."""
    if isinstance(value, list | tuple) and 0 < len(value) <= MOST_PARTS and depth < MOST_DEPTH:
        edits = join_edits([read_edits(part, depth + 1) for part in value])
        if edits:
            return edits
    if type(value) is not int or not 0 <= value <= MOST_EDITS:
        raise ValueError(f"expected at most {MOST_EDITS} edits, or those of each part, got {shortened(value)}")
    return value
