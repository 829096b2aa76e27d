"""What is fetched together: blocks that follow each other, and ranges of bytes that lie near each other."""

from collections.abc import Callable, Iterable, Sequence

Span = tuple[int, int]
"""Bytes of a file, from one offset to before another."""

# A request costs more than these bytes do, so they are fetched where that spares one.
LEAST_BYTES = 64 << 10
REQUEST_BYTES = 32 << 20
STRETCH_BYTES = 8 << 20
STRETCH_BLOCKS = 32


def joined(spans: Iterable[Span], hole: int = LEAST_BYTES, most: int = REQUEST_BYTES) -> list[Span]:
    """The ranges to ask for, so that each span lies in one of them.

    Between two spans that share a range lie at most ``hole`` bytes that nobody wants. A range is longer than ``most``
    only if a single span is.
    """
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found:
            first, last = found[-1]
            until = max(last, end)
            if begin - last <= hole and until - first <= most:
                found[-1] = first, until
                continue
        found.append((begin, end))
    return found


def stretches(numbers: Iterable[int], joins: Callable[[Sequence[int], int], bool]) -> list[list[int]]:
    """Numbers of blocks, in their order, cut where a block does not join those before it."""
    found: list[list[int]] = []
    for number in numbers:
        if found and joins(found[-1], number):
            found[-1].append(number)
        else:
            found.append([number])
    return found
