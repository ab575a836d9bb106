"""Tokens a second of a GPU beside those of a user, by fabric."""

from __future__ import annotations

from pathlib import Path

from mfabric_jax.checks import InputError
from mfabric_jax.report import charts, style
from mfabric_jax.report.charts import Chart, Curve, Panel
from mfabric_jax.report.grid import Rows, front, grouped, values_of

PER_USER, PER_GPU = "tokens_per_s_per_user", "tokens_per_s_per_gpu"


def served_chart(rows: Rows) -> Chart:
    """A panel for each model and GPU: of every fabric the set-ups that fit and that no other one of it beats."""
    fits = [row for row in rows if row["fits"]]
    if not fits:
        raise InputError("the figure of serving needs a row that fits its memory, got none.")
    looks = {name: style.fabric(name) for name in values_of(fits, "fabric")}
    panels = []
    for (model, gpu), own in grouped(fits, "model", "gpu").items():
        curves = []
        for (name,), some in grouped(own, "fabric").items():
            points = sorted(_front([(row[PER_USER], row[PER_GPU]) for row in some]))
            tips = [f"{name}: {user:.3g} tokens/s of a user, {each:,.0f} of a GPU" for user, each in points]
            curves.append(Curve(looks[name], points, tips=tips))
        panels.append(Panel(f"{model} on {gpu}", "tokens/s of a user", "tokens/s of a GPU", curves=curves))
    return Chart("Serving: throughput beside speed, set-ups that fit", "", list(looks.values()), panels)


def _front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those than which no other is better in both."""
    negative = [(-user, -each) for user, each in points]
    kept = front(negative)
    return [(-user, -each) for user, each in kept]


def served(rows: Rows, path: str | Path) -> Path:
    """Draw rows of `mfabric serve`; returns the path."""
    return style.save(lambda: charts.figure(served_chart(rows)), path)
