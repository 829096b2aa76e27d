"""A bar chart for each scenario."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.report import OURS, Table, number
from benchmarks.peers.scenarios import Scenario


def draw(scenario: Scenario, table: Table, labels: Mapping[str, str], path: Path) -> bool:
    """Write the picture, if there is anything to show."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = {column: {n: c for n, c in cells.items() if c.middle is not None} for column, cells in table.items()}
    shown = {column: cells for column, cells in shown.items() if cells}
    path.parent.mkdir(parents=True, exist_ok=True)
    if not shown:
        return False
    names = [name for name in labels if any(name in cells for cells in shown.values())]
    across = 4 if len(shown) % 3 else 3
    across, down = min(len(shown), across), -(-len(shown) // across)
    figure, axes = pyplot.subplots(
        down, across, figsize=(3.2 * across + 2, (0.32 * len(names) + 1.1) * down), sharey=True, squeeze=False
    )
    for unused in axes.flat[len(shown) :]:
        unused.set_visible(False)
    for axis, (column, cells) in zip(axes.flat, shown.items(), strict=False):
        middles = [cells[name].middle if name in cells else 0.0 for name in names]
        spans = [_span(cells[name].values) if name in cells else (0.0, 0.0) for name in names]
        colours = ["#2a6fdb" if name == OURS else "#b8bfca" for name in names]
        axis.barh(range(len(names)), middles, color=colours, xerr=list(zip(*spans, strict=True)), ecolor="#555555")
        for at, name in enumerate(names):
            text = number(cells[name].middle or 0.0) if name in cells else "–"
            axis.annotate(text, (0, at), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7)
        axis.set_title(column or scenario.unit, fontsize=8)
        axis.set_yticks(range(len(names)), [labels[name] for name in names], fontsize=8)
        axis.tick_params(axis="x", labelsize=6)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].invert_yaxis()
    direction = "longer is better" if scenario.more else "shorter is better"
    figure.suptitle(f"{scenario.title} ({scenario.unit}; {direction})", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=80, bbox_inches="tight", metadata={"Software": None})
    pyplot.close(figure)
    return True


def _span(values: tuple[float, ...]) -> tuple[float, float]:
    middle = sorted(values)[len(values) // 2]
    return max(middle - min(values), 0.0), max(max(values) - middle, 0.0)
