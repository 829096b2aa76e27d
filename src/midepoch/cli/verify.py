"""``verify``: stop and resume on the user's own data or loader, in many ways, and say what that proved."""

import logging
from argparse import Namespace
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from midepoch._common.checks import count
from midepoch.cli.main import Answer, table
from midepoch.cli.prepare import open_dataset, user_function
from midepoch.dataset import Dataset
from midepoch.testing import Layout, assert_elastic, assert_resumes, check_resume

LAYOUTS: Sequence[Sequence[Layout]] = (
    [(1, 1), (2, 1)],
    [(2, 2), (3, 1), (1, 3)],
    [(4, 1), (1, 1), (2, 3)],
    [(3, 2), (2, 2), (5, 1), (1, 2)],
)
"""Runs that are resized in the middle: each is a list of (ranks, workers of each rank)."""
MOST_STOPS = 20


def verify(arguments: Namespace) -> Answer:
    """Run all checks on a sample of the data, or judge a loader. The answer is bad if one of them fails."""
    if bool(arguments.data) == (arguments.loader is not None):
        raise ValueError("verify needs files, folders, globs or URLs, or --loader module:function, and not both.")
    if arguments.loader is not None:
        return _judge(arguments)
    if arguments.key or arguments.kill or arguments.png:
        raise ValueError("--key, --kill and --png are for --loader. Leave them out.")
    shuffle = None if arguments.pipeline else 1
    dataset = open_dataset(arguments.data, pipeline=arguments.pipeline, shuffle=shuffle, rows=arguments.rows)
    items = sum(1 for _ in dataset)
    if items == 0:
        return Answer(value={"items": 0}, lines=["The dataset has no items, so nothing was proved."], good=False)
    dataset.set_epoch(0)
    proved: list[str] = []
    failed = None
    log = logging.getLogger("midepoch")
    level = log.level
    log.setLevel(logging.ERROR)  # layouts that share lanes are meant, so nobody has to be warned of them
    try:
        proved.extend(_checks(dataset, items))
    except AssertionError as error:
        failed = str(error)
    finally:
        log.setLevel(level)
    value = {"items": items, "proved": proved, "failed": failed}
    lines = [f"on {count('item', items)} of the first {arguments.rows:,} rows:"]
    lines += [f"  ok      {line}" for line in proved] + ([] if failed is None else [f"  failed  {failed}"])
    return Answer(value=value, lines=lines, good=failed is None)


def _judge(arguments: Namespace) -> Answer:
    """Stop and resume any loader in new processes, and count what it lost, repeated and changed."""
    if arguments.png and find_spec("matplotlib") is None:
        raise ValueError("--png needs matplotlib, which is not installed: pip install matplotlib")
    make_loader = user_function(arguments.loader, "--loader", "train:make_loader")
    report = check_resume(
        make_loader, key=arguments.key, steps=arguments.steps, kill=arguments.kill, timeout=arguments.timeout
    )
    if arguments.png:
        report.save_png(arguments.png)
    value = {"loader": arguments.loader, **report.to_dict()}
    hidden = ("good", "verdict", "example")
    rows = [{name: cell for name, cell in one.items() if name not in hidden} for one in value["resumes"]]
    of = "an epoch" if report.whole else "the beginning of an epoch"
    lines = [f"{arguments.loader}: {count(report.unit, report.rows)} of {of}", *table(rows), *str(report).split("\n")]
    return Answer(value=value, lines=lines, good=report.good)


def _checks(dataset: Dataset, items: int) -> Iterator[str]:
    """What each check proved. One that fails raises AssertionError."""
    every = max(1, items // MOST_STOPS)
    assert_resumes(dataset, every=every)
    stops = len(range(0, items, every))
    yield f"stopped at {count('place', stops)}, twice each, and resumed: the items of an uninterrupted run"
    for layouts in LAYOUTS:
        ranks, workers = layouts[0]
        assert_elastic(dataset.lanes(ranks * workers), layouts)
        how = (f"{count('rank', ranks)} of {count('worker', workers)}" for ranks, workers in layouts)
        yield f"{', then '.join(how)}: every item once, none missing"
