"""Split expressions such as "train[10%:20%]+test": which rows of which splits. Pure functions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from midepoch.order.selection import clipped, percent_of

ROUNDINGS = ("closest", "pct1_dropremainder")
EXAMPLES = "'train', 'train[:10%]', 'train[100:-100]' or 'train+test[50%:]'"
TERM = re.compile(
    r"(?P<split>\w+(?:\.\w+)*)"
    r"(?:\[(?:(?P<start>-?\d+(?:_\d+)*)(?P<start_pct>%)?)?:(?:(?P<stop>-?\d+(?:_\d+)*)(?P<stop_pct>%)?)?\])?"
    r"(?:\((?P<rounding>[^)]*)\))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A split, or the rows of it between two bounds, which count rows or percent."""

    split: str
    start: int | None = None
    stop: int | None = None
    percent: bool = False
    rounding: str = "closest"

    def rows(self, count: int) -> tuple[int, int]:
        """The first row and the end, in a split of ``count`` rows. They are equal if there are no rows between them."""
        start, stop = self.bounds(count)
        return start, max(start, stop)

    def bounds(self, count: int) -> tuple[int, int]:
        """The bounds as row numbers, in a split of ``count`` rows. Negative bounds count from the end."""
        start = 0 if self.start is None else self._bound(self.start, count)
        stop = count if self.stop is None else self._bound(self.stop, count)
        return start, stop

    def _bound(self, bound: int, count: int) -> int:
        if self.percent and self.rounding == "closest":
            bound = percent_of(bound, count)
        elif self.percent:
            if count < 100:
                raise ValueError(
                    f"The rounding pct1_dropremainder needs a split of at least 100 rows; this one has {count}. Leave "
                    "it out, or use rows instead of percents."
                )
            bound *= count // 100
        return clipped(bound, count)


def parse(expression: str) -> list[Term]:
    """The terms of a split expression, such as the two of "train[:10%]+test"."""
    return [_term(text.strip(), expression) for text in expression.split("+")]


def _term(text: str, expression: str) -> Term:
    match = TERM.fullmatch(text)
    if match is None:
        raise ValueError(f"split is {expression!r}; write it as {EXAMPLES}.")
    bounds = [match["start"], match["stop"]]
    percent = bool(match["start_pct"] or match["stop_pct"])
    start, stop = (None if bound is None else int(bound) for bound in bounds)
    rounding = match["rounding"]
    if rounding is not None and (rounding not in ROUNDINGS or not percent):
        raise ValueError(f"split is {expression!r}; a rounding can be {' or '.join(ROUNDINGS)}, and needs percents.")
    if percent and any(bound is not None and abs(bound) > 100 for bound in (start, stop)):
        raise ValueError(f"split is {expression!r}; percents must be between -100 and 100.")
    return Term(split=match["split"], start=start, stop=stop, percent=percent, rounding=rounding or "closest")


def select_terms(expression: str | None, splits: Sequence[str], dataset: str) -> list[Term]:
    """The terms of an expression, whose splits must exist; without an expression, the only split of the dataset."""
    if expression is None:
        if len(splits) != 1:
            raise ValueError(f"{dataset} has the splits {', '.join(splits)}: choose with split=, such as {EXAMPLES}.")
        return [Term(split=splits[0])]
    terms = parse(expression)
    if [term.split for term in terms] == ["all"] and "all" not in splits:
        return [Term(split=name) for name in splits]
    for term in terms:
        if term.split not in splits:
            raise ValueError(f"{dataset} has no split {term.split!r}. It has: {', '.join(splits)}.")
    return terms


def row_ranges(terms: Sequence[Term], starts: Mapping[str, int], counts: Mapping[str, int]) -> list[tuple[int, int]]:
    """The rows of the terms, given the first row and the number of rows of each split.

    As in `datasets`, it raises if all slices are empty, and a slice whose bounds are the wrong way round has no rows.
    """
    ranges = []
    for term in terms:
        start, stop = term.rows(counts[term.split])
        ranges.append((starts[term.split] + start, starts[term.split] + stop))
    bounds = [(term.split, *term.bounds(counts[term.split])) for term in terms]
    if any(counts[term.split] for term in terms) and all(start == stop for _, start, stop in bounds):
        slices = [f"rows {start:,} to {stop:,} of the {counts[split]:,} of {split!r}" for split, start, stop in bounds]
        raise ValueError(
            f"split selects no rows, only {' and '.join(slices)}. The first bound must be before the second "
            "one, and inside the split."
        )
    return ranges
