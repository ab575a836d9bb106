"""Recorded routing over time: how alike loads are some records apart, and how wrong predictors are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mfabric_jax.report import charts, style
from mfabric_jax.report.charts import Chart, Curve, Panel
from mfabric_jax.report.grid import Rows, grouped

PREDICTORS = {
    "transition": style.Look("Transition", "#D55E00", "D"),
    "previous-layer": style.Look("Previous layer", "#CC79A7", "v"),
    "previous-iteration": style.Look("Previous iteration", "#0072B2", "s"),
    "moving-average": style.Look("Moving average", "#009E73", "o"),
    "uniform": style.Look("Even shares", "#8a8a8a", "X"),
}
_LOADS = style.Look("mean of the layers; bar: 10 % to 90 % of them", "#0072B2", "o")


def trace_drift(rows: Rows, path: str | Path, title: str = "") -> Path:
    """Draw how alike loads are against the records between them (rows of `survey.drift_rows`); returns the path."""
    points = [(row["records"], row["correlation"]) for row in rows if row["correlation"] is not None]
    spread = [(row["correlation_p10"], row["correlation_p90"]) for row in rows if row["correlation"] is not None]
    panel = Panel("", "records apart", "correlation of loads", [Curve(_LOADS, points, spread=spread)])
    return style.save(lambda: charts.figure(Chart(title, "", [_LOADS], [panel])), path)


def trace_foresight(rows: Rows, path: str | Path, title: str = "") -> Path:
    """Draw the error of every predictor against its horizon (rows of `traffic.foresight_rows`); returns the path."""
    return style.save(lambda: charts.figure(foresight_chart(rows, title)), path)


def foresight_chart(rows: Sequence[Mapping[str, Any]], title: str = "") -> Chart:
    """The chart itself."""
    looks = {name: PREDICTORS.get(name, style.Look(name, style.FAINT)) for (name,) in grouped(rows, "predictor")}
    curves = [
        Curve(looks[name], [(row["records"], row["error"]) for row in own])
        for (name,), own in grouped(rows, "predictor").items()
    ]
    panel = Panel("", "records ahead", "selections predicted for a wrong target", curves)
    return Chart(title, "", list(looks.values()), [panel])
