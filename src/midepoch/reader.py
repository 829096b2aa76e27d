"""Reading: the process that takes a reader's turns at its lanes."""

import logging
from collections.abc import Iterator

from midepoch.deal import Deal
from midepoch.leg import Progress
from midepoch.stages.blocks import Files
from midepoch.stages.flow import Step
from midepoch.stages.source import Pace

log = logging.getLogger("midepoch")


def take_turns(progress: Progress, worker: int = 0, workers: int = 1) -> Iterator[Step | None]:
    """The steps of a reader's turns from where it stands, None for a turn whose lane has run out.

    Where several processes do a reader's work, each takes the turns of one worker: the first, the second …
    Ends when no lane has anything left.
    """
    leg, reader = progress.leg, progress.reader
    index = leg.pipeline.index
    inner = Deal(lanes=leg.deal.period, turn=progress.turns, readers=workers)
    places = inner.rotation(worker)
    files = Files(index, leg.pipeline.names)
    pace = Pace.of(index.row_bytes, len(places))
    stride = leg.deal.stride * inner.stride
    if worker == 0:
        _warn_of_sharing(progress, files, stride, workers)
    lanes = []
    for number, place in enumerate(places):
        lane, phase = progress.rotation[place], leg.deal.phase(reader, place)
        standing, end = leg.standings[lane], progress.end(place)
        if leg.pipeline.uniform:
            skip = phase + leg.deal.stride * leg.deal.taken(progress.turns, place)
        elif end:
            standing, skip = standing.after(end, progress.cursors[place]), leg.deal.stride - 1
        else:
            skip = phase
        skip += leg.deal.stride * inner.phase(worker, number)
        lanes.append(leg.lanes.open(files, pace, lane, standing, skip, stride))
    return _in_turn(lanes, files)


def _in_turn(lanes: list[Iterator[Step]], files: Files) -> Iterator[Step | None]:
    """The next step of each lane in turn, until all have run out."""
    alive = [True] * len(lanes)
    try:
        while True:
            for place, lane in enumerate(lanes):
                step = next(lane, None)
                if step is None and alive[place]:
                    alive[place] = False
                    if not any(alive):
                        return
                yield step
    finally:
        files.close()


def _warn_of_sharing(progress: Progress, files: Files, stride: int, workers: int) -> None:
    """Have the first reader say that several work through the same lanes, where that costs more than skipping."""
    pipeline, deal = progress.leg.pipeline, progress.leg.deal
    decoded = pipeline.index.rows > 0 and not files.is_mapped(0)
    if stride > 1 and progress.reader == 0 and (decoded or not pipeline.uniform):
        log.warning(
            f"{deal.lanes} lanes are read by {deal.readers * workers} readers, so {stride} of them work through each "
            f"lane and keep one item in {stride}. To avoid that, let the number of readers (ranks × workers) divide "
            "the number of lanes; .lanes(n) fixes it for the next epoch."
        )
