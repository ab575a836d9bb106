"""Pictures of studies: slow-downs by failure, errors of predictions, time over the degree bound, jobs on a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.charts import Bar, Chart, Curve, Panel
from mfabric_jax.report.drawing import drawn, paper
from mfabric_jax.report.grid import (
    Rows,
    check_values,
    distinguishing_columns,
    group_rows,
    setting_label,
    values_of,
    with_named_graphs,
)
from mfabric_jax.report.memory import memory_chart
from mfabric_jax.report.numerals import percent
from mfabric_jax.report.row_remarks import HELD

_OVER = "time over the degree bound"
_ABSENT, _WAITS = "none here", "the job waits"
_HELD_OUT, _PREDICTED = "held_out_", "predicted"


def failures_chart(rows: Rows) -> Chart:
    """Return a chart of slow-downs: panels of models on one scale, a bar per failure, diamonds for published values."""
    timed = [row for row in rows if row.get("slow_down") is not None]  # else the job waits for a repair
    check_values(timed, ("model", "failure", "slow_down"), "failures needs slow-downs")
    own = style.Look("simulated", style.FABRICS["mfabric"].colour)
    published = style.Look("published (arXiv 2501.03905)", style.INK, "D", hollow=True)
    shown = [value for row in timed for value in (row["slow_down"], row.get("published") or 0.0)]
    span, reach = max(map(abs, shown)), (min(shown), max(shown))
    panels, kinds = [], values_of(rows, "failure")
    rows = with_named_graphs(rows)
    fabrics = ["fabric"] if len({row.get("fabric") for row in rows}) > 1 else []
    apart = distinguishing_columns(rows)
    for key_of, own_rows in group_rows(rows, "model", *fabrics, *apart).items():
        subject, settings = key_of[: 1 + len(fabrics)], key_of[1 + len(fabrics) :]
        model = ", ".join([" on ".join(subject), *map(setting_label, apart, settings)])
        known = {kinds.index(row["failure"]): row for row in own_rows}
        slower = {position: row["slow_down"] or 0.0 for position, row in known.items()}
        bars = [Bar(own, position, min(0.0, value), max(0.0, value), "") for position, value in slower.items()]
        points = [(row["published"], position) for position, row in known.items() if row.get("published") is not None]
        totals = [
            _beyond(known[position], span) if position in known else (0.0, _ABSENT) for position in range(len(kinds))
        ]
        curves = [Curve(published, points, joined=False)] if points else []
        panels.append(Panel(model, "", curves=curves, bars=bars, names=kinds, totals=totals, percent=True, reach=reach))
    key = [own, published] if any(panel.curves for panel in panels) else []
    return Chart("Iteration time over the time of a healthy cluster", "", key, panels)


def _beyond(row: Mapping[str, Any], span: float) -> tuple[float, str]:
    value, published = row["slow_down"], row.get("published")
    if value is None:
        return 0.0, _WAITS
    end = max(0.0, value)
    if published is not None and 0 <= published - end < 0.25 * span:
        end = published + 0.02 * span
    return end, percent(value, signed=True)


def steps_chart(rows: Rows) -> Chart:
    """Return a chart of errors (predicted over measured - 1): a bar per measured step, coloured by GPU."""
    known = [row for row in rows if row.get("error") is not None]
    if not known:
        raise InputError("the figure of trainings needs a measured row, got none.")
    looks = style.distinct_looks(values_of(known, "gpu"))
    ends = [(min(0.0, row["error"]), max(0.0, row["error"])) for row in known]
    bars = [Bar(looks[row["gpu"]], n, *end, "") for n, (row, end) in enumerate(zip(known, ends, strict=True))]
    totals = [(high, percent(row["error"], signed=True)) for row, (_, high) in zip(known, ends, strict=True)]
    names = [str(row["row"]) for row in known]
    spread = {
        n: (row["low_s"] / row["measured_s"] - 1, row["high_s"] / row["measured_s"] - 1) for n, row in enumerate(known)
    }
    panel = Panel("", "", bars=bars, names=names, totals=totals, spread=spread, percent=True)
    note = f"Lines: the band of the prediction{f' ({HELD})' if 'what' not in known[0] else ''}."
    return Chart("Error of the predicted seconds of a step", note, list(looks.values()), [panel])


def training_chart(lines: Rows) -> Chart:
    """Return a chart of training: a line for its batches, and one for each held-out number of servers."""
    timed = [line for line in lines if line.get("time") is not None]
    if not timed:
        raise InputError("the figure of a training needs lines of metrics with a time, got none.")
    held = sorted({name for line in lines for name in line if name.startswith(_HELD_OUT)}, key=lambda n: (len(n), n))
    looks = style.distinct_looks([f"held out, {name.removeprefix(_HELD_OUT)} servers" for name in held])
    curves = [Curve(style.Look("in training", style.FAINT, ""), [(line["step"], line["time"]) for line in timed])]
    for name, look in zip(held, looks.values(), strict=True):
        curves.append(Curve(look, [(line["step"], line[name]) for line in lines if name in line]))
    return Chart("Training", "", [curve.look for curve in curves], [Panel("", "steps", _OVER, curves)])


def forecasts_chart(rows: Rows) -> Chart:
    """Return a chart of forecasts: a panel per workload, size and routing, with predictions at the right."""
    if not rows:
        raise InputError("the figure of forecasts needs rows, got none.")
    looks = style.distinct_looks(values_of(rows, "policy"))
    panels = []
    for (workload, servers, routing), here in group_rows(rows, "workload", "servers", "routing").items():
        names = values_of(here, "forecast")
        curves = []
        for rank, (policy, look) in enumerate(looks.items()):
            for predicted in (False, True):
                own = [r for r in here if r["policy"] == policy and (r["forecast"] == _PREDICTED) == predicted]
                aside = 0.06 * (rank - len(looks) / 2) * predicted
                points = [(names.index(row["forecast"]) + aside, row["over_bound"]) for row in own]
                if own:
                    curves.append(Curve(look, points, spread=[(row["low"], row["high"]) for row in own]))
        title = f"{workload}, {servers} servers, {routing}"
        panels.append(Panel(title, "forecast error (sigma)", _OVER, curves, columns=names))
    return Chart("Policies under forecasts", "Vertical lines are 95 % intervals.", list(looks.values()), panels)


# -- shares of a link that jobs use over time, stacked

WAYS = {
    "fair": "fair sharing",
    "cassini": "CASSINI: time shifts",
    "mltcp": "MLTCP: weights",
    "best": "best shifts found",
}
JOB_COLOURS = ("#88CCEE", "#CC6677", "#DDCC77", "#117733", "#332288", "#AA4499", "#44AA99", "#999933")  # Tol's muted
_LINK_WIDE, _LINK_HIGH = 5.6, 1.35


def build_interleaving(rows: Rows, title: str = "") -> Figure:
    """Draw each job's share of a link over time, a row of panels per way of sharing.

    `rows`: as from `jobs.compared.both_ends`.
    """
    if not rows:
        raise InputError("rows must hold at least one interval, got none.")
    ways, columns, jobs = (values_of(rows, key) for key in ("way", "when", "job"))
    colours = {job: JOB_COLOURS[index % len(JOB_COLOURS)] for index, job in enumerate(jobs)}
    figure = paper.blank(0.9 + _LINK_WIDE * len(columns), 1.1 + _LINK_HIGH * len(ways))
    if title:
        paper.set_heading(figure, title)
    every = figure.subplots(len(ways), len(columns), squeeze=False, sharey=True)
    cells = group_rows(rows, "way", "when")
    for (line, way), (index, when) in ((a, b) for a in enumerate(ways) for b in enumerate(columns)):
        axes = every[line, index]
        _stack(axes, cells.get((way, when), []), colours)
        if not line:
            axes.set_title(when, loc="left")
        if not index:
            axes.set_ylabel(style.wrap_text(WAYS.get(str(way), str(way)), 1.3))
    for axes in every[-1]:
        axes.set_xlabel("time [s]")
    handles = [Patch(facecolor=colour, label=job) for job, colour in colours.items()]
    fit = paper.key_columns(handles, figure.get_figwidth())
    figure.legend(handles=handles, loc="outside lower center", ncols=fit)
    return figure


def _stack(axes: Axes, rows: Sequence[Any], colours: dict[str, str]) -> None:
    axes.set(ylim=(0, 1.02), yticks=[0, 0.5, 1], yticklabels=["0", "50 %", "100 %"])
    axes.grid(axis="y")
    if not rows:
        return
    of_job = group_rows(rows, "job")
    first = next(iter(of_job.values()))
    edges = np.array([row["begin_s"] for row in first] + [first[-1]["end_s"]])
    base = np.zeros(len(first))
    for (job,), own in of_job.items():
        top = base + np.array([row["use"] for row in own])
        low, high = (np.append(level, level[-1]) for level in (base, top))
        axes.fill_between(edges, low, high, step="post", color=colours[job], linewidth=0)
        base = top
    axes.set_xlim(edges[0], edges[-1])


# Each draws rows into a file and returns the path: failures(rows, path).
failures, training = drawn.picture_writer(failures_chart), drawn.picture_writer(training_chart)
forecasts, interleaving = drawn.picture_writer(forecasts_chart), drawn.picture_writer(build_interleaving)
steps, memory = drawn.picture_writer(steps_chart), drawn.picture_writer(memory_chart)
