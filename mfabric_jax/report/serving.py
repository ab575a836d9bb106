"""Charts of serving as data: tokens per second of a GPU against tokens per second of a user, errors of predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.charts import Chart, Curve, Panel
from mfabric_jax.report.grid import TOKEN_USD, Rows, front, group_rows, values_of, with_named_graphs
from mfabric_jax.report.numerals import number, percent, usable
from mfabric_jax.report.served import IN_TIME, LIMIT, LOAD_USD, PER_GPU, PER_USER, is_replica, settings_apart

EP = "ep"
PERCENT = 100
_MOST_SIZES = 16  # most sizes of groups that are named below an axis
TITLES = {
    PER_USER: "tokens/s of a user",
    PER_GPU: "tokens/s of a GPU",
    TOKEN_USD: "$ a million answer tokens",
    LOAD_USD: "$ a million answer tokens at this load",
    EP: "GPUs that share the experts",
}


def of_serving(row: Mapping[str, Any]) -> bool:
    """Return whether a row is of pools on a fabric from `mfabric serve`."""
    return {"fabric", PER_USER, PER_GPU, LIMIT, "fits"} <= row.keys()


def serving_chart(rows: Rows) -> Chart:
    """Return a chart with a panel for each model, GPU and combination of settings.

    Each fabric has a line through its set-ups that fit in memory and that no other of its set-ups beats. If all rows
    have one time limit, the line shows the set-ups within the limit, by group size.
    """
    return _chart("Serving: throughput", rows, PER_GPU)


def serving_charts(rows: Rows) -> list[Chart]:
    """Return `serving_chart`, and the same chart with dollars, at a load if rows have one, if any row has a price."""
    by_usd = {usd: [row for row in rows if usable(row.get(usd)) is not None] for usd in (TOKEN_USD, LOAD_USD)}
    usd = LOAD_USD if by_usd[LOAD_USD] else TOKEN_USD
    return [serving_chart(rows), *([_chart("Serving: cost", by_usd[usd], usd)] if by_usd[usd] else [])]


def _chart(title: str, rows: Rows, name: str) -> Chart:
    fits = [row for row in with_named_graphs(rows) if row["fits"] and not is_replica(row)]
    if not fits:
        raise InputError("the figure of serving needs a row that fits its memory, got none.")
    limits = values_of(fits, LIMIT)
    by_size = len(limits) == 1 and usable(limits[0]) is not None and len(values_of(fits, EP)) > 1
    in_time = [row for row in fits if _in_time(row)] if by_size else fits
    shown, x = in_time or fits, EP if by_size else PER_USER
    looks = {name: style.fabric(name) for name in values_of(shown, "fabric")}
    panels = []
    apart = settings_apart(shown[0])
    sizes = sorted({row[EP] for row in shown}) if by_size else []
    sizes = sizes if len(sizes) <= _MOST_SIZES else []  # more names would overlap
    every_x, every_y = ([row[column] for row in shown] for column in (x, name))
    for (model, gpu, *others), own in group_rows(shown, "model", "gpu", *apart).items():
        curves = []
        for (fabric,), some in group_rows(own, "fabric").items():
            known = sorted((row[x], row[name]) for row in some)
            sign = 1 if name == PER_GPU else -1
            points = _best_by_size(known, sign) if by_size else sorted(_front(known, sign))
            tips = [
                f"{fabric}: {number(x_value)} {TITLES[x]}, {number(y_value)} {TITLES[name]}"
                for x_value, y_value in points
            ]
            points = [(sizes.index(size), value) for size, value in points] if sizes else points
            curves.append(Curve(looks[fabric], points, tips=tips))
        stated = (f"{path} {value}" for path, value in zip(apart, others, strict=True) if value is not None)
        where = ", ".join([f"{model} on {gpu}", *stated])
        shared = {"columns": [*map(str, sizes)], "reach": every_y, "reach_x": [] if sizes else every_x}
        panels.append(Panel(where, TITLES[x], TITLES[name], curves=curves, **shared))
    by = (
        f"by size of a group, within {number(1000 * limits[0])} ms a token"
        if by_size
        else "by speed, of set-ups that fit"
    )
    several = by_size and len({row.get("nic_gbps") for row in shown}) > 1
    note = "Each point has the best of all NIC bandwidths in the rows." if several else ""
    return Chart(f"{title} {by}", note, list(looks.values()), panels)


def _in_time(row: Mapping[str, Any]) -> bool:
    if row.get(IN_TIME) is not None:
        return bool(row[IN_TIME])
    return row["tpot_high_s" if row.get("by") == "high" else "tpot_s"] <= row[LIMIT]


def _best_by_size(points: list[tuple[float, float]], sign: int) -> list[tuple[float, float]]:
    """The best value of every size; `sign` as in `_front`."""
    best: dict[float, float] = {}
    for size, value in points:
        best[size] = max(best.get(size, value), value, key=lambda each: sign * each)
    return sorted(best.items())


def _front(points: list[tuple[float, float]], sign: int) -> list[tuple[float, float]]:
    """The points that no other beats in both values; `sign`: 1 if more of the second is better, else -1."""
    kept = front([(-user, -sign * each) for user, each in points])
    return [(-user, -sign * each) for user, each in kept]


def kernel_errors_chart(rows: Rows) -> Chart:
    """Return a chart of errors of dispatch and combine by EP, a look per family of kernels."""
    known = [row for row in rows if row["low_s"] is None]
    if not known:
        raise InputError("the figure of kernels needs a row of dispatch or combine, got none.")
    looks, every = style.distinct_looks(values_of(known, "kernels")), sorted({row["ep"] for row in known})
    panels = []
    for (what,), own in group_rows(known, "what").items():
        curves = []
        for (name, constant), some in group_rows(own, "kernels", "constant").items():
            look = dataclasses.replace(looks[name], hollow=True) if constant else looks[name]
            points = [(every.index(row["ep"]), PERCENT * row["error"]) for row in some]
            curves.append(
                Curve(
                    look,
                    points,
                    tips=[f"{row['row']}: {percent(row['error'], signed=True)}" for row in some],
                    joined=False,
                )
            )
        panels.append(Panel(what, "EP", "error [%]", curves, columns=[str(ep) for ep in every]))
    note = "Hollow: rows to which a constant of the model was fitted."
    return Chart("Error of the predicted seconds of dispatch and combine", note, list(looks.values()), panels)


def served_errors_chart(rows: Rows) -> Chart:
    """Return a chart of the errors of served models: a panel for each engine, a look for each model, by measured time.

    Raise `InputError` if no row has an error.
    """
    known = [row for row in rows if row["error"] is not None]
    if not known:
        raise InputError("the figure of served models needs a row with a measurement, got none.")
    looks = style.distinct_looks(values_of(known, "model_path"))
    panels = []
    for (engine,), own in group_rows(known, "backend").items():
        curves = []
        for (model,), some in group_rows(own, "model_path").items():
            points = [(float(row["silicon_tpot_ms"]), PERCENT * row["error"]) for row in some]
            tips = [
                f"{row['system']}, {row['batch_size']} requests: {percent(row['error'], signed=True)}" for row in some
            ]
            curves.append(Curve(looks[model], points, tips=tips, joined=False))
        panels.append(Panel(str(engine), "measured time per token [ms]", "error [%]", curves))
    note = "Predicted over measured time per output token - 1; nothing is fitted to these rows."
    return Chart("Error of served models", note, list(looks.values()), panels)
