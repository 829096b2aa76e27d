"""Which bytes and blocks are fetched together: byte ranges that lie near each other, blocks that follow each other."""

from collections.abc import Callable, Iterable, Sequence

Span = tuple[int, int]
"""The bytes of a file from an offset to another, which is not included."""

LEAST_BYTES = 64 << 10
"""A request costs more than fetching this many bytes, so no request asks for fewer, and gaps up to this are fetched."""
REQUEST_BYTES = 32 << 20
GROUP_BYTES = 8 << 20
GROUP_BLOCKS = 32


def joined(spans: Iterable[Span], gap: int = LEAST_BYTES, most: int = REQUEST_BYTES) -> list[Span]:
    """The ranges to request, so that each span lies in one of them.

    Spans share a range if at most ``gap`` unwanted bytes lie between them. A range is longer than ``most`` only if a
    single span is.
    """
    ranges: list[Span] = []
    for begin, end in sorted(spans):
        if ranges:
            first, last = ranges[-1]
            until = max(last, end)
            if begin - last <= gap and until - first <= most:
                ranges[-1] = first, until
                continue
        ranges.append((begin, end))
    return ranges


def grouped(numbers: Iterable[int], joins: Callable[[Sequence[int], int], bool]) -> list[list[int]]:
    """Numbers of blocks in groups, in the same order: a block that does not join the group before it begins another."""
    groups: list[list[int]] = []
    for number in numbers:
        if groups and joins(groups[-1], number):
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups
