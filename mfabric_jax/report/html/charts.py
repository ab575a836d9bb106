"""Which charts a page has: those that its rows hold columns for, and sentences for the others."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.report.grid import Rows
from mfabric_jax.report.html.breakdown import breakdown
from mfabric_jax.report.html.chart import Chart
from mfabric_jax.report.html.cloud import cloud
from mfabric_jax.report.html.markup import tag, words
from mfabric_jax.report.html.pareto import pareto
from mfabric_jax.report.html.plainest import plainest
from mfabric_jax.report.html.sweeps import sweeps
from mfabric_jax.report.html.times import performance, times

COMPARISONS: dict[str, Callable[[Rows], Chart]] = {
    "network cost against iteration time": pareto,
    "iteration time against bandwidth": times,
    "parts of an iteration": breakdown,
    "performance per dollar": performance,
}


def charts(rows: Rows, effective: Mapping[str, Any]) -> str:
    """Every chart that can be drawn, then a sentence for each reason why others cannot."""
    drawn: list[Chart] = []
    why: dict[str, list[str]] = {}
    for name, build in COMPARISONS.items():
        try:
            drawn.append(build(rows))
        except InputError as reason:
            why.setdefault(str(reason), []).append(name)
            if build is pareto:  # several results in one place: a design space
                with contextlib.suppress(InputError):
                    drawn.append(cloud(rows, effective))
                    why[str(reason)].remove(name)
    timed = not any("iteration time against bandwidth" in names for names in why.values())
    why = {reason: names for reason, names in why.items() if names}
    varied = sweeps(rows, effective, skip=("nic_gbps", "gpus") if timed else ())
    drawn += varied if drawn else [*varied, plainest(rows)]
    left_out = [f"Left out: {', '.join(names)}: {reason}" for reason, names in why.items()]
    notes = [tag("p", words(sentence), class_="note") for sentence in left_out]
    return "".join(chart.markup() for chart in drawn) + "".join(notes)
