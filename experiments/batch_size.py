"""Does a larger micro-batch hide more of a reconfiguration, and what is mFabric's time then over the fat-tree's?

Micro-batches of 1 to 32 sequences, as many as pipeline stages in an iteration, calibrated computation, 400 Gbps. Both
computation and all-to-alls grow with the micro-batch, the switch's delay does not. Whether activations fit a GPU is
not looked at. Source: arXiv 2501.03905, sweep of the batch size, which has no numbers in its text.

    python -m experiments.batch_size --out results
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from mfabric_jax import report, units
from mfabric_jax.checks import distinct, names, positive, whole
from mfabric_jax.report import style
from mfabric_jax.schedule import FIRST, Exchanges, places
from mfabric_jax.study import Compare
from mfabric_jax.study.compare import Job, computation, inside, job_rows, job_times, jobs, joined, solve
from mfabric_jax.workload import NAMES

from .script import Rows, Script, Verdict, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "batch_size"
COLOURS = {"block": "#D55E00", "reuse": "#0072B2", "random": "#009E73"}
MARKERS = {"block": "o", "reuse": "s", "random": "^"}


@dataclasses.dataclass(frozen=True)
class Config:
    """What to sweep."""

    models: tuple[str, ...] = ("mixtral-8x22b", "mixtral-8x7b", "qwen-moe")
    """Whose iterations."""
    micro_batch: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Sequences of a rank in a micro-batch."""
    firsts: tuple[str, ...] = ("block", "reuse")
    """Which circuits the first all-to-all of a forward block finds: block, reuse or random."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    delay_ms: float = 25.0
    """Reconfiguration delay."""
    seed: int = 0
    """Of the traffic."""

    def __post_init__(self):
        names("models", self.models, NAMES)
        names("firsts", self.firsts, [first for first in FIRST if first in COLOURS])
        for size in distinct("micro_batch", self.micro_batch):
            whole("micro_batch", size)
        positive("delay_ms", self.delay_ms)
        self.setting(self.models[0], self.micro_batch[0])

    def setting(self, model: str, micro_batch: int, first: str = "block", fabric: str = "mfabric") -> Compare:
        """One case."""
        return Compare(
            models=(model,),
            fabrics=(fabric,),
            nic_gbps=(self.nic_gbps,),
            micro_batch=micro_batch,
            first=first,
            delay_s=units.ms(self.delay_ms),
            seed=self.seed,
        )


def run(config: Config) -> Iterator[dict[str, Any]]:
    """A row for each model, size and rule: seconds on both fabrics, per sequence, and the hidden part of the delay.

    `turns`: reconfigurations of the busiest stage in an iteration; `hidden`: 1 - what it waits for them over their
    delays, None where the switch never turns.
    """
    cells = list(product(config.models, sorted(config.micro_batch)))
    for model, size in tqdm(cells, desc=NAME, unit="case", file=sys.stderr, disable=None):
        tree, _ = _solved(config.setting(model, size, fabric="fat-tree"))
        for first in config.firsts:
            here, turns = _solved(config.setting(model, size, first))
            delays_s = turns * units.ms(config.delay_ms)
            yield {
                "model": model,
                "micro_batch": size,
                "first": first,
                "fat_tree_s": tree["iteration_s"],
                "mfabric_s": here["iteration_s"],
                "over_fat_tree": here["iteration_s"] / tree["iteration_s"],
                "per_dollar": here["perf_per_dollar"] / tree["perf_per_dollar"],
                "compute_s": here["compute_s"],
                "ep_comm_s": here["ep_comm_s"],
                "reconfig_s": here["reconfig_s"],
                "turns": turns,
                "hidden": 1 - here["reconfig_s"] / delays_s if turns else None,
                "s_per_sequence": here["iteration_s"] / size,
            }


def _solved(config: Compare) -> tuple[dict[str, Any], int]:
    """The row of the only case, and how often the switch of its busiest stage turns."""
    (job,) = jobs(config)
    found = joined(solve(config, job), inside(config, job))
    (row,) = job_rows(config, job, found)
    return row, _turns(config, job, found)


def _turns(config: Compare, job: Job, found: Exchanges) -> int:
    timed = job_times(config, job, found, computation(config, job), config.nic_gbps)
    stage = int(np.asarray(timed.stage)[0, 0])
    moe = places(job.workload).layer >= 0
    return int((np.asarray(found.switch)[0] & moe[..., None])[stage].sum())


def table(rows: Rows) -> str:
    """A line per row."""
    columns = [report.Column("model"), report.Column("first"), report.Column("micro_batch", "micro-batch")]
    columns += [report.Column("fat_tree_s", "fat-tree [s]"), report.Column("mfabric_s", "mFabric [s]")]
    columns += [report.Column("over_fat_tree", "ratio"), report.Column("per_dollar", "per dollar")]
    columns += [report.Column("turns"), report.Column("hidden", percent=True)]
    return report.plain(rows, columns)


def draw(rows: Rows, path: str | Path) -> Path:
    """Time over the fat-tree's and the hidden part against the micro-batch; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: a column per model, each with its own scale of time."""
    from matplotlib.lines import Line2D

    models, firsts = (list(dict.fromkeys(row[key] for row in rows)) for key in ("model", "first"))
    figure = style.blank(1.0 + 3.4 * len(models), 5.6)
    panels = figure.subplots(2, len(models), sharex=True, squeeze=False)
    for (over, hidden), model in zip(panels.T, models, strict=True):
        here = [row for row in rows if row["model"] == model]
        _panel(over, here, "over_fat_tree")
        over.axhline(1, color=style.INK, linewidth=0.8)
        over.set_title(model, loc="left")
        _hidden(hidden, here)
        hidden.set_xlabel("sequences in a micro-batch")
    sizes = sorted({row["micro_batch"] for row in rows})
    for axes in panels.ravel():
        axes.set_xscale("log")
    for axes in panels.ravel():
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
    panels[0, 0].set_ylabel("iteration time\nover the fat-tree's")
    panels[1, 0].set_ylabel("hidden part of the delay")
    handles = [Line2D([], [], color=COLOURS[first], marker=MARKERS[first], label=first) for first in firsts]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _hidden(axes: Axes, rows: Sequence) -> None:
    turning = [row for row in rows if row["hidden"] is not None]
    _panel(axes, turning, "hidden")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_ylim(-0.04, 1.06)
    if not turning:
        axes.text(0.5, 0.5, "the switch never turns", transform=axes.transAxes, ha="center", color=style.FAINT)


def _panel(axes: Axes, rows: Sequence, key: str) -> None:
    """A line per rule."""
    for (first,), here in grouped(rows, "first").items():
        line = [(row["micro_batch"], row[key]) for row in here]
        wide = 3.0 if first == "block" else 1.4  # the others may lie on it
        axes.plot(*zip(*line, strict=True), color=COLOURS[first], marker=MARKERS[first], linewidth=wide)
    axes.grid()


def verdicts(rows: Rows) -> list[Verdict]:
    """From the smallest to the largest micro-batch; the paper's sweep has no numbers."""
    found = []
    for (model, first), here in grouped(rows, "model", "first").items():
        ends = here[0], here[-1]
        at = " to ".join(f"{row['micro_batch']}" for row in ends)
        ratio = " to ".join(f"{row['over_fat_tree']:.2f}" for row in ends)
        found.append(Verdict(f"{model}, {first}: over fat-tree at {at}", ratio))
        if all(row["hidden"] is not None for row in ends):
            hidden = " to ".join(f"{row['hidden']:.0%}" for row in ends)
            found.append(Verdict(f"{model}, {first}: hidden at {at}", hidden))
    return found


SCRIPT = Script(
    name=NAME,
    question="Sweep the micro-batch: a row per model, size and rule.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"models": ("mixtral-8x22b",), "micro_batch": (1, 8, 32), "firsts": ("block",)},
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
