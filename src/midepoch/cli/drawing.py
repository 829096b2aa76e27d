"""The picture of a state: how much of each lane is delivered, and which parts of which files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from midepoch._common.text import count
from midepoch._common.types import I64
from midepoch.checkpoint.lanes import LanePosition, lane_cuts
from midepoch.checkpoint.state import State
from midepoch.dataset import Dataset
from midepoch.errors import MissingExtraError
from midepoch.order.orders import Order
from midepoch.sources.source import EpochCut

INK, DELIVERED, LEFT = "#22272e", "#2f7fc1", "#dfe5ea"
MOST_NAMES, MOST_LINES, PARTS, MOST_ROWS = 40, 40, 100, 100_000
"""The most lanes and files that have a name; the most files that are drawn one by one; the parts of a line; the most
rows that are asked for, evenly over the epoch."""


@dataclass(frozen=True, kw_only=True)
class FileParts:
    """How much of each part of each file is delivered: from 0 to 1, or NaN where the epoch has no rows."""

    files: int
    names: list[str]
    """The name of each line of ``delivered``; a line stands for several files if there are many."""
    delivered: npt.NDArray[np.float64]
    sampled: int | None
    """How many rows were asked for; None for all of them."""


def delivered_of_lanes(state: State, sizes: list[int]) -> list[list[tuple[int, int]]]:
    """The intervals of positions of each lane that are delivered."""
    return [
        _intervals(position, state.item_rows, size)
        for position, size in zip(state.positions.expand(), sizes, strict=True)
    ]


def _intervals(position: LanePosition, item_rows: int, size: int) -> list[tuple[int, int]]:
    reached = min(position.cursor[0], size)
    # Cursors with groups say nothing about the rows of the items that are ahead.
    ahead = position.delivered_ahead if len(position.cursor) == 1 else ()
    starts = [(reached + number * item_rows, reached + (number + 1) * item_rows) for number in ahead]
    return [(0, reached), *((start, min(end, size)) for start, end in starts)]


def draw_state(path: Path, state: State, rows: int, dataset: Dataset | None) -> None:
    """Draw the lanes of a state, and the files if ``dataset`` is the one that the state is of."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "viz", "inspect --png") from error
    sizes, orders = _lanes_of(state, rows, dataset)
    delivered = delivered_of_lanes(state, sizes)
    files = None if dataset is None else parts_of_files(dataset, orders, delivered)
    heights = [_height(len(sizes))] + ([] if files is None else [_height(len(files.names))])
    figure: Any = Figure(figsize=(10, 1.6 * len(heights) + sum(heights)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(h_pad=0.12, w_pad=0.08)
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    done = sum(end - start for intervals in delivered for start, end in intervals)
    least = "at least " if any(len(position.cursor) > 1 for _, position in state.positions.runs) else ""
    share = f"{done / max(1, sum(sizes)):.1%}"
    title = f"Epoch {state.epoch}: {least}{done:,} of {count('row', sum(sizes))} delivered ({share})"
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=13, color=INK)
    _draw_lanes(figure.add_subplot(grid[0]), sizes, delivered)
    if files is not None:
        _draw_files(figure, figure.add_subplot(grid[1]), files)
    figure.savefig(path)


def _lanes_of(state: State, rows: int, dataset: Dataset | None) -> tuple[list[int], list[Order]]:
    """The number of rows of each lane, and the orders of the lanes where the dataset is known."""
    if state.reader_progress is not None or any(len(position.cursor) > 2 for _, position in state.positions.runs):
        raise ValueError(
            "--png draws complete states of rows of files. This one is of a mixture, or holds what one of several "
            "readers delivered: join the states of all with merge_states."
        )
    if state.lanes is None:
        raise ValueError("--png has nothing to draw: the epoch has not begun.")
    if dataset is None:
        if state.mode == "file" or state.appended or state.edits:
            raise ValueError("--png needs --data for this state: its lanes follow from the files.")
        return np.diff(lane_cuts(rows, state.lanes)).tolist(), []
    cut = dataset.file_rows("inspect --png").cut(
        EpochCut(
            epoch=state.epoch,
            lanes=state.lanes,
            mode=state.mode,
            appended=state.appended,
            edits=state.edits,
        )
    )
    return [cut.size(lane) for lane in range(state.lanes)], [cut.order(lane) for lane in range(state.lanes)]


def parts_of_files(dataset: Dataset, orders: list[Order], delivered: list[list[tuple[int, int]]]) -> FileParts:
    """Find the files of the rows of all lanes. No data is read."""
    view = dataset.file_rows("inspect --png").index.view
    starts = np.asarray(view.file_starts)
    lines = min(len(view.names), MOST_LINES)
    step = -(-sum(order.size for order in orders) // MOST_ROWS) or 1
    totals, done, before = *np.zeros((2, lines * PARTS)), 0
    for order, intervals in zip(orders, delivered, strict=True):
        positions: I64 = np.arange(-before % step, order.size, step)
        before += order.size
        rows = order.rows(positions)
        files = np.searchsorted(starts, rows, "right") - 1
        inside = (rows - starts[files]) * PARTS // (starts[files + 1] - starts[files])
        parts = files * lines // len(view.names) * PARTS + inside
        came = np.zeros(len(positions), bool)
        for start, end in intervals:
            came |= (positions >= start) & (positions < end)
        totals += np.bincount(parts, minlength=len(totals))
        done += np.bincount(parts[came], minlength=len(done))
    with np.errstate(invalid="ignore"):
        share = (done / totals).reshape(lines, PARTS)
    asked = None if step == 1 else int(totals.sum())
    names = _names_of_lines(list(view.names), lines)
    return FileParts(files=len(view.names), names=names, delivered=share, sampled=asked)


def _names_of_lines(names: list[str], lines: int) -> list[str]:
    if len(names) == lines:
        return names
    first = [-(-line * len(names) // lines) for line in range(lines + 1)]
    return [f"{names[first[line]]} … ({first[line + 1] - first[line]})" for line in range(lines)]


def _height(lines: int) -> float:
    return min(0.6 + 0.24 * lines, 8.0)


def _draw_lanes(axes: Any, sizes: list[int], delivered: list[list[tuple[int, int]]]) -> None:
    lanes = range(len(sizes))
    thick = 0.8 if len(sizes) <= MOST_NAMES else 1.0
    axes.barh(lanes, sizes, height=thick, color=LEFT, linewidth=0)
    pieces = [(lane, start, end - start) for lane in lanes for start, end in delivered[lane] if end > start]
    if pieces:
        at, left, width = zip(*pieces, strict=True)
        axes.barh(at, width, left=left, height=thick, color=DELIVERED, linewidth=0)
    axes.set_title(
        f"{count('lane', len(sizes))}, the parts of the order that are read side by side",
        loc="left",
        size=11,
        color=INK,
    )
    axes.set(ylim=(len(sizes) - 0.4, -0.6), xlim=(0, max(sizes, default=1) or 1), xlabel="row of the lane")
    if len(sizes) <= MOST_NAMES:
        axes.set_yticks(lanes, [f"lane {lane}" for lane in lanes])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)


def _draw_files(figure: Any, axes: Any, files: FileParts) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("delivered", [LEFT, DELIVERED]).with_extremes(bad="white")
    shown = axes.imshow(files.delivered, aspect="auto", cmap=colors, vmin=0, vmax=1, interpolation="nearest")
    said = "" if files.sampled is None else f" (a sample of {count('row', files.sampled)})"
    title = f"{count('file', files.files)}: what is delivered of each part{said}"
    axes.set_title(title, loc="left", size=11, color=INK)
    axes.set_yticks(range(len(files.names)), [name if len(name) <= 40 else f"…{name[-39:]}" for name in files.names])
    axes.set_xticks([-0.5, PARTS / 2 - 0.5, PARTS - 0.5], ["first row", "middle of the file", "last row"])
    axes.hlines(np.arange(1, len(files.names)) - 0.5, -0.5, PARTS - 0.5, color="white", linewidth=2)
    axes.spines[:].set_visible(False)
    axes.tick_params(left=False)
    figure.colorbar(shown, ax=axes, format=lambda share, _: f"{share:.0%}", shrink=0.9, pad=0.01)
