"""The picture of the demo: the losses of both runs, and how often each row was delivered."""

from pathlib import Path
from typing import Any

from evidence import Run, largest_loss_difference, lost_and_repeated
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

INK, GREY, BLUE, RED, DARK = "#22272e", "#d0d7de", "#a8cfee", "#d1242f", "#3b1e5f"
SESSIONS = ["#0969da", "#d9690f", "#1a7f37"]
ACROSS = 80


def draw(path: Path, *, reference: Run, resumed: Run, layouts: list[str], others: dict[str, Run], rows: int) -> None:
    """Draw the losses above, and below them one field a row: for the resumed run, and for each of ``others``."""
    figure = Figure(figsize=(11, 7.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.12)
    grid = figure.add_gridspec(2, 1 + len(others), height_ratios=[1.35, 1])
    _draw_losses(figure.add_subplot(grid[0, :]), reference, resumed, layouts)
    runs = {f"midepoch, shuffled\nresumed on {layouts[1]}, then on {layouts[2]}": resumed}
    runs |= {f"datasets + StatefulDataLoader\n{name}, again on {layouts[0]}": run for name, run in others.items()}
    for column, (title, run) in enumerate(runs.items()):
        _draw_rows(figure.add_subplot(grid[1, column]), title, run, rows)
    colors = {"each field is a row: delivered once": BLUE, "never": RED, "more than once": DARK}
    fields = [Patch(color=color, label=name) for name, color in colors.items()]
    figure.legend(handles=fields, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path)


def _draw_losses(axes: Any, reference: Run, resumed: Run, layouts: list[str]) -> None:
    steps = sorted(reference.steps)
    whole = [reference.steps[step].loss for step in steps]
    axes.plot(
        steps,
        whole,
        color=GREY,
        linewidth=7,
        solid_capstyle="round",
        label=f"uninterrupted on {layouts[0]} (processes × workers)",
    )
    for number, (layout, color) in enumerate(zip(layouts, SESSIONS, strict=True)):
        own = [step for step in sorted(resumed.steps) if resumed.steps[step].session == number]
        name = f"killed on {layout}" if number == 0 else f"resumed on {layout}"
        axes.plot(own, [resumed.steps[step].loss for step in own], color=color, linewidth=1.7, label=name)
    for step, color in zip(resumed.resumed_at, SESSIONS[1:], strict=False):
        axes.axvline(step - 0.5, color=color, linewidth=1.2, linestyle=(0, (4, 3)))
        place = {"transform": axes.get_xaxis_transform(), "va": "top", "color": color}
        axes.text(step + 0.6, 0.97, f"SIGKILL to all processes,\nresumed at step {step}", **place)
    difference = largest_loss_difference(resumed, reference)
    title = f"Loss of every step, with two kills and without. Largest difference: {difference:.1g}"
    axes.set_title(title, loc="left", weight="bold", size=13, color=INK, pad=34)
    axes.set(xlabel="optimizer step", ylabel="loss per token", xlim=(0, max(steps) + 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.01, 1), ncols=4, borderaxespad=0.3)


def _draw_rows(axes: Any, title: str, run: Run, rows: int) -> None:
    lost, repeated = lost_and_repeated(run, rows)
    times = [min(run.rows[row], 2) for row in range(rows)] + [-1] * (-rows % ACROSS)
    lines = [times[start : start + ACROSS] for start in range(0, len(times), ACROSS)]
    axes.imshow(lines, cmap=ListedColormap(["white", RED, BLUE, DARK]), vmin=-1, vmax=2, aspect="auto")
    axes.set_title(title, loc="left", size=10.5, color=INK)
    axes.set_xlabel(f"{rows:,} rows: {lost:,} lost, {repeated:,} repeated", size=12, weight="bold", color=INK)
    axes.set(xticks=[], yticks=[])
