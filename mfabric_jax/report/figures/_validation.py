"""Flow level against packet level: collective times of every run, and how far off its single flows are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfabric_jax import units
from mfabric_jax.report import charts, style
from mfabric_jax.report.charts import Bar, Curve, Panel
from mfabric_jax.report.grid import Rows, grouped, needs_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS = {
    "spraying": style.Look("Spraying, non-blocking tree", "#0072B2", "o", hollow=True),
    "one-path": style.Look("One path per flow, non-blocking tree", "#D55E00", "s", hollow=True),
    "unknown-path": style.Look("One path per flow, not recorded", "#4D4D4D", "X", hollow=True),
    "leaf-spine": style.Look("Oversubscribed leaf-spine", "#009E73", "D", hollow=True),
    "incast": style.Look("Incast, non-blocking tree", "#CC79A7", "^", hollow=True),
}
_MEDIAN = style.Look("median", style.INK, "|")
_BAND, _FAR = 0.05, 0.10  # runs within are as good; runs that are off by more carry their name
_NEEDS = ("group", "pattern", "transport", "measured_s", "predicted_s", "error")
_WIDEST = 0.75


def validation(rows: Rows, path: str | Path) -> Path:
    """Draw predicted against measured time, and the errors of large flows run by run; returns the path written."""
    return style.save(lambda: build_validation(rows), path)


def build_validation(rows: Rows) -> Figure:
    """The figure itself: rows in the order in which they come, groups together."""
    needs_values(rows, _NEEDS, "a validation needs packet-level runs")
    collectives, flows = _collectives(rows), _flows(rows)
    figure = style.blank(13.5, max(6.4, 1.6 + 0.2 * len(rows)))
    left, right = figure.subplots(1, 2, width_ratios=[1.2, 1])
    limits = [units.to_ms(end(row[key] for row in rows for key in _NEEDS[3:5])) for end in (min, max)]
    low, high = limits[0] / 1.3, limits[1] * 1.3
    for share in (1 - _BAND, 1.0, 1 + _BAND):
        left.plot([low, high], [share * low, share * high], color=style.FAINT, linewidth=0.7, zorder=0)
    charts.draw_panel(left, collectives)
    left.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    right.axvspan(-_BAND, _BAND, color=style.RULE, linewidth=0)
    charts.draw_panel(right, flows)
    reach = max((abs(end) for _, *ends in flows.whiskers for end in ends), default=0.0)
    limit = min(1.1 * max(reach, 2 * _BAND), _WIDEST)
    right.set_xlim(-limit, limit)
    chart = charts.Chart("", "", [_look(group) for (group,) in grouped(rows, "group")], [collectives])
    figure.legend(handles=charts.handles(chart), loc="outside lower center", ncols=4)
    figure.draw_without_rendering()
    charts.label(left, collectives)
    return figure


def _look(group: str) -> style.Look:
    return LOOKS.get(group, style.Look(group, style.FAINT))


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['pattern']} {row['transport']}"


def _collectives(rows: Rows) -> Panel:
    """Predicted against measured time of whole collectives."""
    curves = [
        Curve(
            _look(group),
            [(units.to_ms(row["measured_s"]), units.to_ms(row["predicted_s"])) for row in own],
            texts=[f"{_name(row)}, {row['error']:+.0%}" if abs(row["error"]) > _FAR else "" for row in own],
            joined=False,
        )
        for (group,), own in grouped(rows, "group").items()
    ]
    title = f"Collective time (outer lines: ±{_BAND:.0%})"
    return Panel(title, "measured at packet level [ms]", "predicted at flow level [ms]", curves)


def _flows(rows: Rows) -> Panel:
    """For every run the spread of the error of its large flows: whiskers, box and median."""
    shown = [row for row in rows if row.get("flow_error_q50") is not None]
    quantile = {q: [row[f"flow_error_q{q:02}"] for row in shown] for q in (5, 25, 50, 75, 95)}
    boxes = zip(shown, quantile[25], quantile[75], strict=True)
    bars = [Bar(_look(row["group"]), place, low, high, "") for place, (row, low, high) in enumerate(boxes)]
    whiskers = [(place, low, high) for place, (low, high) in enumerate(zip(quantile[5], quantile[95], strict=True))]
    medians = Curve(_MEDIAN, [(value, place) for place, value in enumerate(quantile[50])], joined=False)
    below = "predicted / measured - 1\nof a run's flows: line 5 % to 95 %, box 25 % to 75 %, tick median"
    names = [_name(row) for row in shown]
    return Panel("Flows of 1 MiB or more", below, "", [medians], bars, names, whiskers=whiskers, percent=True)
