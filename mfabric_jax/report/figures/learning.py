"""How a policy was trained, and how policies hold up when demand is only forecast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.grid import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#D55E00", "#0072B2", "#4D4D4D", "#009E73", "#CC79A7", "#8a8a8a", "#E69F00", "#56B4E9")
_MARKERS = "osDv^PXh"
_HELD_OUT = "held_out_"
_PREDICTED = "predicted"
_WORDS = {"unsplit": "unsplit", "split": "split", "relay": "relay", "relay-planned": "relay, shares planned"}


def training(lines: Rows, path: str | Path) -> Path:
    """Draw the time over the degree bound against steps: of the batches seen, and held out; returns the path."""
    return style.save(lambda: build_training(lines), path)


def build_training(lines: Rows) -> Figure:
    """The figure itself."""
    timed = [line for line in lines if line.get("time") is not None]
    if not timed:
        raise InputError("the figure of a training needs lines of metrics with a time, got none.")
    figure = style.blank(6.5, 4.0)
    axes = figure.subplots()
    seen = [line["step"] for line in timed], [line["time"] for line in timed]
    axes.plot(*seen, color=style.FAINT, label="in training")
    held = sorted({name for line in lines for name in line if name.startswith(_HELD_OUT)}, key=lambda x: (len(x), x))
    for rank, name in enumerate(held):
        points = [(line["step"], line[name]) for line in lines if name in line]
        servers = name.removeprefix(_HELD_OUT)
        axes.plot(
            *zip(*points, strict=True),
            marker=_MARKERS[rank % 8],
            color=_COLOURS[rank % 8],
            label=f"held out, {servers} servers",
        )
    axes.set_xlabel("steps")
    axes.set_ylabel("time over degree bound")
    axes.grid(axis="y")
    axes.legend()
    return figure


def forecasts(rows: Rows, path: str | Path) -> Path:
    """Draw the mean time over the degree bound against the error of forecasts: a panel for each workload, number of
    servers and routing, a line with its 95 % interval for each policy, predicted demand to the right."""
    return style.save(lambda: build_forecasts(rows), path)


def build_forecasts(rows: Rows) -> Figure:
    """The figure itself."""
    places = list(dict.fromkeys((row["workload"], row["servers"], row["routing"]) for row in rows))
    if not places:
        raise InputError("the figure of forecasts needs rows, got none.")
    routings = list(dict.fromkeys(routing for _, _, routing in places))
    lines = list(dict.fromkeys((workload, servers) for workload, servers, _ in places))
    figure = style.blank(4.2 * len(routings), 2.9 * len(lines) + 0.7)
    grid = figure.subplots(len(lines), len(routings), squeeze=False)
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    for line, (workload, servers) in enumerate(lines):
        for column, routing in enumerate(routings):
            place = {"workload": workload, "servers": servers, "routing": routing}
            shown = [row for row in rows if place.items() <= row.items()]
            _panel(grid[line][column], shown, policies)
            title = f"{workload}, {servers} servers, {_WORDS.get(routing, routing)}"
            grid[line][column].set_title(title, loc="left", fontsize=9)
    handles = grid[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=min(len(policies), 7))
    return figure


def _panel(axes: Axes, rows: Rows, policies: list[str]) -> None:
    names = list(dict.fromkeys(row["forecast"] for row in rows))
    for rank, policy in enumerate(policies):
        found = {row["forecast"]: row for row in rows if row["policy"] == policy}
        colour, marker = _COLOURS[rank % len(_COLOURS)], _MARKERS[rank % len(_MARKERS)]
        sigmas = [name for name in names if name != _PREDICTED and name in found]
        for shown, label in ((sigmas, policy), ([_PREDICTED] if _PREDICTED in found else [], None)):
            at = [names.index(name) + 0.06 * (rank - len(policies) / 2) * (label is None) for name in shown]
            mean, low, high = ([found[name][key] for name in shown] for key in ("over_bound", "low", "high"))
            around = [[m - x for m, x in zip(mean, low, strict=True)], [x - m for m, x in zip(mean, high, strict=True)]]
            axes.errorbar(
                at,
                mean,
                yerr=around,
                color=colour,
                marker=marker,
                markersize=4,
                linewidth=1.2,
                elinewidth=0.7,
                label=label,
            )
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel("forecast error (sigma)")
    axes.set_ylabel("time over degree bound")
    axes.grid(axis="y")
