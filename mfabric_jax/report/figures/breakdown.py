"""Where an iteration goes: a panel per model, a stacked bar per fabric, in units of the fat-tree's iteration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mfabric_jax.report import style
from mfabric_jax.report.grid import Grid, Rows, arrange

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEGIBLE = 0.06  # of the axis: parts wider than this carry their share as text


def breakdown(rows: Rows, path: str | Path, nic_gbps: float) -> Path:
    """Draw compute, communication, reconfiguration and bubble at one bandwidth; returns the path written."""
    return style.save(lambda: build(rows, nic_gbps), path)


def build(rows: Rows, nic_gbps: float) -> Figure:
    """The figure itself. Bars lie, so that the names of fabrics can be read."""
    from matplotlib.patches import Patch

    grid = arrange(rows, ["iteration_s", *style.PARTS])
    gbps = grid.checked_gbps(nic_gbps)
    figure, axes = style.panels(len(grid.models), height=1.2 + 0.3 * len(grid.series))
    for model, panel in zip(grid.models, axes, strict=False):
        _panel(panel, grid, model, gbps)
    handles = [Patch(facecolor=p.colour, edgecolor=style.FAINT, label=p.label) for p in style.PARTS.values()]
    style.legend(figure, axes, len(grid.models), handles)
    figure.suptitle(f"Parts of an iteration at {gbps:g} Gbps a NIC; in the bars: share of that bar's iteration")
    return figure


def _panel(axes: Axes, grid: Grid, model: str, gbps: float) -> None:
    reference = grid.reference(model, gbps)
    axes.set_title(model, loc="left")
    if reference is None:
        axes.text(0.5, 0.5, f"no result at {gbps:g} Gbps", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    unit = grid.value(model, reference, gbps, "iteration_s") or 1.0
    present = [s for s in grid.series if grid.value(model, s, gbps, "iteration_s") is not None]
    totals = [(grid.value(model, s, gbps, "iteration_s") or 0.0) / unit for s in present]
    limit = max(totals) * 1.14
    for place, (series, total) in enumerate(zip(present, totals, strict=True)):
        seconds = {key: grid.value(model, series, gbps, key) or 0.0 for key in style.PARTS}
        _bar(axes, place, seconds, unit, limit)
        axes.text(total + 0.01 * limit, place, f"{total:.2f}", va="center", fontweight="bold")
    axes.set_yticks(range(len(present)), [style.label(s) for s in present])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, limit)
    axes.set_xlabel(f"iteration time [{style.label(reference)} = 1]")
    axes.grid(axis="x")


def _bar(axes: Axes, place: int, seconds: dict[str, float], unit: float, limit: float) -> None:
    """The parts of one iteration, one after the other."""
    left, total = 0.0, sum(seconds.values())
    for key, part in style.PARTS.items():
        width = seconds[key] / unit
        if width == 0:
            continue
        axes.barh(place, width, 0.68, left=left, color=part.colour, edgecolor=style.FAINT, linewidth=0.5)
        if width > _LEGIBLE * limit:
            text = f"{seconds[key] / total:.0%}"
            ink = style.ink_on(part.colour)
            axes.text(left + width / 2, place, text, ha="center", va="center", color=ink, fontsize=style.FONT - 2)
        left += width
