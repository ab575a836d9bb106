"""Flow level against packet level: collective times of every run, and how far off its single flows are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.grid import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS = {
    "spraying": style.Look("Spraying, non-blocking tree", "#0072B2", "o"),
    "one-path": style.Look("One path per flow, non-blocking tree", "#D55E00", "s"),
    "unknown-path": style.Look("One path per flow, not recorded", "#4D4D4D", "X"),
    "leaf-spine": style.Look("Oversubscribed leaf-spine", "#009E73", "D"),
    "incast": style.Look("Incast, non-blocking tree", "#CC79A7", "^"),
}
BAND = 0.05
_FAR = 0.10  # runs that are off by more carry their name
_NEEDS = ("group", "pattern", "transport", "measured_s", "predicted_s", "error")
_WIDEST = 0.75


def validation(rows: Rows, path: str | Path) -> Path:
    """Draw predicted against measured time, and the errors of large flows run by run; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: rows in the order in which they come, groups together."""
    from matplotlib.lines import Line2D

    missing = [key for key in _NEEDS if any(row.get(key) is None for row in rows)]
    if not rows or missing:
        wanted = f"rows lack {', '.join(missing)}" if rows else "there are no rows"
        raise InputError(f"the figure of a validation needs packet-level runs, but {wanted}.")
    figure = style.blank(13.5, max(6.4, 1.6 + 0.2 * len(rows)))
    left, right = figure.subplots(1, 2, width_ratios=[1.2, 1])
    _collectives(left, rows)
    _flows(right, rows)
    present = dict.fromkeys(row["group"] for row in rows)
    handles = [
        Line2D([], [], linestyle="", color=look.colour, marker=look.marker, markerfacecolor="none", label=look.label)
        for look in map(_look, present)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4))
    return figure


def _look(group: str) -> style.Look:
    return LOOKS.get(group, style.Look(group, style.FAINT))


def _collectives(axes: Axes, rows: Rows) -> None:
    """Predicted against measured, both axes logarithmic and alike."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    times = [units.to_ms(row[key]) for row in rows for key in ("measured_s", "predicted_s")]
    low, high = min(times) / 1.3, max(times) * 1.3
    axes.fill_between(
        [low, high],
        [low * (1 - BAND), high * (1 - BAND)],
        [low * (1 + BAND), high * (1 + BAND)],
        color="#e3e3e3",
        linewidth=0,
    )
    axes.plot([low, high], [low, high], color=style.FAINT, linewidth=0.8)
    for row in rows:
        look, point = _look(row["group"]), (units.to_ms(row["measured_s"]), units.to_ms(row["predicted_s"]))
        marks = {"markersize": 7, "markerfacecolor": "none", "markeredgewidth": 1.3}
        axes.plot(*point, look.marker, color=look.colour, **marks)
        if abs(row["error"]) > _FAR:
            text = f"{_name(row)}, {row['error']:+.0%}"
            beside = {"xytext": (8, -8), "textcoords": "offset points", "va": "center"}
            axes.annotate(text, point, color=look.colour, fontsize=style.FONT - 2, **beside)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.set_xlabel("measured at packet level [ms]")
    axes.set_ylabel("predicted at flow level [ms]")
    axes.set_title(f"Collective time (band: ±{BAND:.0%})", loc="left")
    axes.grid()


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['pattern']} {row['transport']}"


def _flows(axes: Axes, rows: Rows) -> None:
    """For every run the spread of the error of its large flows: whiskers, box and median."""
    shown = [row for row in rows if row.get("flow_error_q50") is not None]
    reach = 0.0
    axes.axvspan(-BAND, BAND, color="#e3e3e3", linewidth=0)
    axes.axvline(0, color=style.FAINT, linewidth=0.8)
    for place, row in enumerate(shown):
        colour = _look(row["group"]).colour
        q05, q25, q50, q75, q95 = (row[f"flow_error_q{q:02}"] for q in (5, 25, 50, 75, 95))
        reach = max(reach, -q05, q95)
        axes.plot([q05, q95], [place, place], color=colour, linewidth=1.2)
        axes.plot([q25, q75], [place, place], color=colour, linewidth=6, alpha=0.55, solid_capstyle="butt")
        axes.plot(q50, place, "|", color=style.INK, markersize=8, markeredgewidth=1.0)
    limit = min(1.1 * max(reach, 2 * BAND), _WIDEST)
    axes.set_yticks(range(len(shown)), [_name(row) for row in shown], fontsize=style.FONT - 2)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(-limit, limit)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+.0%}" if value else "0")
    axes.set_xlabel("predicted / measured - 1\nof a run's flows: line 5 % to 95 %, box 25 % to 75 %, tick median")
    axes.set_title("Flows of 1 MiB or more", loc="left")
    axes.grid(axis="x")
