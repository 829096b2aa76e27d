"""How deep JSON values are nested. Parsers call themselves for each level, and too many end the process."""

import re

import numpy as np

from midepoch._common.hashing import I64
from midepoch.formats.text.records import MalformedError

MOST_LEVELS = 100
"""More than data has. Arrow cannot store the schema of some hundreds."""
STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or the rest of the text if it is not closed, so that nothing is searched twice."""
OPENING, CLOSING = b"{[", b"}]"


def check_nesting(data: bytes, begins: I64) -> None:
    """Raise unless the values in these lines are nested ``MOST_LEVELS`` deep at most; ``begins`` are their offsets."""
    letters = np.frombuffer(data, np.uint8)
    is_opening = (letters == OPENING[0]) | (letters == OPENING[1])
    if len(begins) == 0 or np.count_nonzero(is_opening) <= MOST_LEVELS:
        return
    openings = np.add.reduceat(is_opening, begins, dtype=np.int64)
    for number in np.flatnonzero(openings > MOST_LEVELS).tolist():  # not all of them are inside each other
        end = begins[number + 1] if number + 1 < len(begins) else len(data)
        if is_too_deep(data[begins[number] : end]):
            raise MalformedError(f"has values that are nested more than {MOST_LEVELS} deep")


def is_too_deep(line: bytes) -> bool:
    """True if a value in this line is nested more than ``MOST_LEVELS`` deep."""
    letters = np.frombuffer(STRING.sub(b"", line), np.uint8)
    steps = np.isin(letters, [*OPENING]).astype(np.int64) - np.isin(letters, [*CLOSING])
    return len(steps) > 0 and int(np.cumsum(steps).max()) > MOST_LEVELS
