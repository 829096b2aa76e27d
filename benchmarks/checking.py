"""Measure what the checks of Arrow files cost: ``python -m benchmarks.checking [--quick]``.

Processor time of whole epochs of fresh datasets, whose blocks are all checked, with the checks and without, in turn,
the best of each. Later epochs of an open dataset check nothing: each block is checked once.
"""

import argparse
import contextlib
import gc
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_most, figure, in_turn, show

BATCH = 64
CHECK = "midepoch.formats.arrow.check_offsets"
Read = Callable[[], Any]


def costs(rows: int, tokens: int, rounds: int) -> list[Figure]:
    """The processor time that the checks add, in a hundred parts of that without."""
    texts, lists = data.texts(rows), data.tokens(tokens)
    reads: dict[str, tuple[int, Read]] = {
        "text rows as dicts": (rows, lambda: me.read(texts, index_dir=data.INDEX)),
        "batches of text rows": (rows, lambda: me.read(texts, index_dir=data.INDEX).batch(BATCH)),
        "batches of shuffled text rows": (
            rows,
            lambda: me.read(texts, index_dir=data.INDEX).shuffle(seed=1, level="row").batch(BATCH),
        ),
        "batches of token rows as tensors": (
            tokens,
            lambda: me.read(lists, index_dir=data.INDEX).with_format("torch").batch(BATCH),
        ),
    }
    figures = []
    for what, (count, read) in reads.items():
        contenders = {str(checked): partial(_epoch, read, checked=checked) for checked in (False, True)}
        times = in_turn(contenders, rounds)
        plain, checked = min(times["False"]), min(times["True"])
        figures.append(at_most(3.0, f"{what}: added by the checks", 100 * (checked / plain - 1), "%"))
        figures.append(figure(f"{what}: without them", count / plain / 1000, "thousand rows/s"))
    return figures


def _epoch(read: Read, *, checked: bool) -> float:
    """The processor time of the first epoch of a dataset that is opened for it."""
    dataset = read()
    gc.collect()
    with contextlib.nullcontext() if checked else mock.patch(CHECK, _unchecked):
        begun = time.process_time()
        for _ in dataset:
            pass
        return time.process_time() - begun


def _unchecked(*_: Any) -> None:
    """In place of the checks."""


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows, to see that everything runs")
    quick = parser.parse_args().quick
    logging.disable(logging.WARNING)
    show("Checks of Arrow files", costs(20_000, 2_000, 3) if quick else costs(400_000, 32_000, 9))


if __name__ == "__main__":
    main()
