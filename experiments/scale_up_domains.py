"""Is a GPU's bandwidth better spent on a larger share of NVLink, or on optics between scale-up domains?

NVL72 (64 of 72 GPUs used, NVLink inside, 800 Gbps Ethernet between domains) against mFabric with co-packaged optics
(the same bandwidth of a GPU and the same Ethernet, the rest half NVLink, half a regional optical switch), DeepSeek-V3
on 2,048 GPUs, expert parallelism 128 over two domains, balanced traffic, 240 micro-batches of one sequence. Source:
arXiv 2501.03905, look-ahead; published: mFabric 1.3 times faster at 8 Tbps per GPU. The GPU is not stated: a B200 at
half its peak here, and the ratio's sensitivity to its rate.

    python -m experiments.scale_up_domains --out results
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfabric_jax import report
from mfabric_jax.checks import distinct, positive
from mfabric_jax.report import style
from mfabric_jax.study.compare import inside, job_rows, jobs, solve
from mfabric_jax.study.config import Compare

from .script import Rows, Script, Verdict, against, grouped, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "scale_up_domains"
PUBLISHED = {8.0: 1.3}  # Tbps of a GPU -> iteration time of NVL72 over that of mFabric
PUBLISHED_MODEL = "deepseek-v3"
ROUNDED = 0.04  # of a ratio published with one decimal
FABRICS = ("nvl72", "mfabric-cpo")


@dataclasses.dataclass(frozen=True)
class Config:
    """What to compare."""

    model: str = "deepseek-v3"
    gpu_tbps: tuple[float, ...] = (8.0, 16.0)
    """Bandwidth of a GPU in all, per direction."""
    nic_gbps: float = 800.0
    """Ethernet of a GPU."""
    gpu: str = "B200-HGX"
    efficiency: tuple[float, ...] = (0.15, 0.25, 0.35, 0.5, 0.7, 1.0)
    """Achieved over peak FLOP/s; the breakdown is shown at the one nearest 0.5."""
    micro_batches: int | None = None
    """Micro-batches of an iteration (None: the model's own, 240)."""

    def __post_init__(self):
        for field in ("gpu_tbps", "efficiency"):
            positive(field, distinct(field, getattr(self, field)))
        for tbps in self.gpu_tbps:
            self.setting(tbps, self.efficiency[0])

    def setting(self, tbps: float, efficiency: float) -> Compare:
        """The comparison at one bandwidth of a GPU and one rate."""
        return Compare(
            models=(self.model,),
            fabrics=FABRICS,
            nic_gbps=(self.nic_gbps,),
            gpu_tbps=tbps,
            compute="achieved",
            gpu=self.gpu,
            efficiency=efficiency,
            traffic="generated",
            drift=0.0,
            drawn=1,
            micro_batches=self.micro_batches,
        )


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each bandwidth of a GPU, efficiency and fabric; `speed_up` of mFabric over NVL72 in both.

    The all-to-alls do not depend on the rate of the GPU: solved once for each bandwidth.
    """
    rows = []
    for tbps in config.gpu_tbps:
        first = config.setting(tbps, config.efficiency[0])
        solved = [(job, solve(first, job)._replace(inside_s=inside(first, job))) for job in jobs(first)]
        for efficiency in config.efficiency:
            one = config.setting(tbps, efficiency)
            pair = [row for job, found in solved for row in job_rows(one, job, found)]
            speed_up = pair[0]["iteration_s"] / pair[1]["iteration_s"]
            extra = {"gpu_tbps": tbps, "gpu": config.gpu, "efficiency": efficiency, "speed_up": speed_up}
            published = PUBLISHED.get(tbps) if config.model == PUBLISHED_MODEL else None
            rows += [row | extra | {"published": published} for row in pair]
    return rows


def table(rows: Rows) -> str:
    """The breakdown at the efficiency nearest one half, then the speed-up at every efficiency."""
    half = _nearest_half(rows)
    parts = ["gpu_tbps", "fabric", "iteration_s", "compute_s", "ep_comm_s", "dp_comm_s", "bubble_s"]
    shown = [row for row in rows if row["efficiency"] == half]
    parts = [report.Column(part) for part in parts]
    breakdown = report.plain(shown, [*parts, report.Column("speed_up", digits=3), report.Column("published", digits=3)])
    ratios = [
        {"gpu_tbps": tbps} | {f"{r['efficiency']:.0%}": r["speed_up"] for r in rows if r["gpu_tbps"] == tbps}
        for tbps in dict.fromkeys(row["gpu_tbps"] for row in rows)
    ]
    return f"{breakdown}\n\nspeed-up of mfabric-cpo over nvl72 by achieved over peak FLOP/s\n{report.plain(ratios)}"


def _nearest_half(rows: Rows) -> float:
    return min((row["efficiency"] for row in rows), key=lambda efficiency: abs(efficiency - 0.5))


def draw(rows: Rows, path: str | Path) -> Path:
    """Where the iteration goes, and the speed-up by the rate of the GPU; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself."""
    figure = style.blank(12.0, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=[1.2, 1])
    _breakdown(left, [row for row in rows if row["efficiency"] == _nearest_half(rows)])
    _speed_up(right, rows)
    return figure


def _breakdown(axes: Axes, rows: Rows) -> None:
    shares = {key: max(row[key] / row["iteration_s"] for row in rows) for key in style.PARTS}
    parts = {key: look for key, look in style.PARTS.items() if shares[key] > 0.005}
    for place, row in enumerate(rows):
        left = 0.0
        for key, look in parts.items():
            axes.barh(
                place,
                row[key],
                0.7,
                left,
                color=look.colour,
                edgecolor=style.FAINT,
                linewidth=0.6,
                label=look.label if place == 0 else None,
            )
            left += row[key]
        axes.text(left, place, f"  {row['iteration_s']:.1f} s", va="center")
    names = [f"{style.fabric(row['fabric']).label}\n{row['gpu_tbps']:g} Tbps" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.14 * max(row["iteration_s"] for row in rows))
    axes.set_xlabel("iteration [s]")
    axes.set_title(f"{rows[0]['gpu']} at {rows[0]['efficiency']:.0%} of peak", loc="left")
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.16), ncols=len(parts))


def _speed_up(axes: Axes, rows: Rows) -> None:
    for place, tbps in enumerate(dict.fromkeys(row["gpu_tbps"] for row in rows)):
        here = [row for row in rows if row["gpu_tbps"] == tbps]
        line = sorted({(row["efficiency"], row["speed_up"]) for row in here})
        colour = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")[place % 4]
        axes.plot(*zip(*line, strict=True), "o-", color=colour, label=f"{tbps:g} Tbps a GPU")
        if (published := here[0]["published"]) is not None:
            axes.axhline(
                published,
                color=colour,
                linestyle=(0, (4, 4)),
                linewidth=1.0,
                label=f"published at {tbps:g} Tbps: {published:g}",
            )
    axes.set_ylim(bottom=min(1.0, axes.get_ylim()[0]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("achieved over peak FLOP/s of the GPU")
    axes.set_title("NVL72's time over mFabric's", loc="left")
    axes.grid()
    axes.legend()


def verdicts(rows: Rows) -> list[Verdict]:
    """The speed-up of mFabric at half the GPU's peak, then what the GPU's rate makes of it."""
    found, half = [], _nearest_half(rows)
    for tbps, here in grouped(rows, "gpu_tbps").items():
        claim, published = f"time of NVL72 over mFabric, {tbps[0]:g} Tbps a GPU", here[0]["published"]
        middle = next(row["speed_up"] for row in here if row["efficiency"] == half)
        at = f"{claim}, {half:.0%} of peak"
        found.append(spread(at, [middle]) if published is None else against(at, middle, published, allowed=ROUNDED))
        rates = sorted(row["efficiency"] for row in here)
        if rates[0] < rates[-1]:
            found.append(spread(f"{claim}, {rates[0]:.0%} to {rates[-1]:.0%}", [row["speed_up"] for row in here]))
    return found


SCRIPT = Script(
    name=NAME,
    question="Scale-up domains: a row per bandwidth of a GPU, efficiency and fabric.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"gpu_tbps": (8.0,), "efficiency": (0.25, 0.5, 1.0)},
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
