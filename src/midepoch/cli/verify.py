"""``verify``: stop and resume on the user's own data, in many ways, and say what that proved."""

import logging
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from midepoch._common.checks import count
from midepoch.cli.main import Answer
from midepoch.cli.prepare import open_dataset
from midepoch.dataset import Dataset
from midepoch.testing import Layout, assert_elastic, assert_resumes

LAYOUTS: Sequence[Sequence[Layout]] = (
    [(1, 1), (2, 1)],
    [(2, 2), (3, 1), (1, 3)],
    [(4, 1), (1, 1), (2, 3)],
    [(3, 2), (2, 2), (5, 1), (1, 2)],
)
"""Runs that are resized in the middle: each is a list of (ranks, workers of each rank)."""
MOST_STOPS = 20


def verify(arguments: Namespace) -> Answer:
    """Run all checks on a sample of the data. The answer is bad if one of them fails."""
    shuffle = None if arguments.pipeline else 1
    dataset = open_dataset(arguments.data, pipeline=arguments.pipeline, shuffle=shuffle, rows=arguments.rows)
    items = sum(1 for _ in dataset)
    if items == 0:
        return Answer(value={"items": 0}, lines=["The dataset has no items, so nothing was proved."], good=False)
    dataset.set_epoch(0)
    proved, failed = [], None
    with _without_warnings():
        for what in _checks(dataset, items):
            if isinstance(what, AssertionError):
                failed = str(what)
                break
            proved.append(what)
    sample = f"{count('item', items)} of the first {arguments.rows:,} rows"
    value: dict[str, Any] = {"items": items, "proved": proved, "failed": failed}
    lines = [f"on {sample}:", *(f"  ok      {line}" for line in proved)]
    if failed is not None:
        lines += [f"  failed  {failed}"]
    return Answer(value=value, lines=lines, good=failed is None)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Layouts that share lanes are meant, so nobody has to be warned of them."""
    log = logging.getLogger("midepoch")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _checks(dataset: Dataset, items: int) -> Iterator[str | AssertionError]:
    """What each check proved, until one fails."""
    every = max(1, items // MOST_STOPS)
    try:
        assert_resumes(dataset, every=every)
    except AssertionError as error:
        yield error
        return
    stops = len(range(0, items, every))
    yield f"stopped at {count('place', stops)}, twice each, and resumed: the items of an uninterrupted run"
    for layouts in LAYOUTS:
        lanes = layouts[0][0] * layouts[0][1]
        how = ", then ".join(f"{count('rank', ranks)} of {count('worker', workers)}" for ranks, workers in layouts)
        try:
            assert_elastic(dataset.lanes(lanes), layouts)
        except AssertionError as error:
            yield error
            return
        yield f"{how}: every item once, none missing"
