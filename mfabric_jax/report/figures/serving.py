"""Tokens a second of a GPU beside those of a user, by fabric."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mfabric_jax.checks import InputError
from mfabric_jax.report import charts, style
from mfabric_jax.report.charts import Chart, Curve, Panel
from mfabric_jax.report.grid import Rows, front, grouped, values_of

PER_USER, PER_GPU = "tokens_per_s_per_user", "tokens_per_s_per_gpu"
PERCENT = 100


def served_chart(rows: Rows) -> Chart:
    """A panel for each model, GPU and value of settings that differ: of every fabric the set-ups that fit and that no
    other one of it beats."""
    fits = [row for row in rows if row["fits"]]
    if not fits:
        raise InputError("the figure of serving needs a row that fits its memory, got none.")
    looks = {name: style.fabric(name) for name in values_of(fits, "fabric")}
    panels = []
    apart = [name for name in fits[0] if "." in name]  # settings that rows differ in
    for (model, gpu, *others), own in grouped(fits, "model", "gpu", *apart).items():
        curves = []
        for (name,), some in grouped(own, "fabric").items():
            points = sorted(_front([(row[PER_USER], row[PER_GPU]) for row in some]))
            tips = [f"{name}: {user:.3g} tokens/s of a user, {each:,.0f} of a GPU" for user, each in points]
            curves.append(Curve(looks[name], points, tips=tips))
        title = ", ".join([f"{model} on {gpu}", *map("{} {}".format, apart, others)])
        panels.append(Panel(title, "tokens/s of a user", "tokens/s of a GPU", curves=curves))
    return Chart("Serving: throughput beside speed, set-ups that fit", "", list(looks.values()), panels)


def _front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those than which no other is better in both."""
    negative = [(-user, -each) for user, each in points]
    kept = front(negative)
    return [(-user, -each) for user, each in kept]


def calls_chart(rows: Rows) -> Chart:
    """Errors of dispatch and of combine by EP, a look for each family of kernels."""
    known = [row for row in rows if row["low_s"] is None]
    if not known:
        raise InputError("the figure of kernels needs a row of dispatch or combine, got none.")
    looks, every = style.distinct_looks(values_of(known, "kernels")), sorted({row["ep"] for row in known})
    panels = []
    for (what,), own in grouped(known, "what").items():
        curves = []
        for (name, constant), some in grouped(own, "kernels", "constant").items():
            look = dataclasses.replace(looks[name], hollow=True) if constant else looks[name]
            points = [(every.index(row["ep"]), PERCENT * row["error"]) for row in some]
            curves.append(
                Curve(look, points, tips=[f"{row['row']}: {row['error']:+.1%}" for row in some], joined=False)
            )
        panels.append(Panel(what, "EP", "error [%]", curves, columns=[str(ep) for ep in every]))
    note = "Hollow: a constant was taken from the row."
    return Chart("Error of the predicted seconds of dispatch and combine", note, list(looks.values()), panels)


def calls(rows: Rows, path: str | Path) -> Path:
    """Draw rows of dispatch and combine of `mfabric validate serving`; returns the path."""
    return style.save(lambda: charts.figure(calls_chart(rows)), path)


def served(rows: Rows, path: str | Path) -> Path:
    """Draw rows of `mfabric serve`; returns the path."""
    return style.save(lambda: charts.figure(served_chart(rows)), path)
