"""Which parallelism moves how many of the bytes of an iteration, beside what was measured on a production cluster?

Mixtral 8x7B in the measured set-up (128 H800, one data-parallel replica) and as simulated; LLaMA-MoE and Qwen-MoE as
simulated. Counted, not simulated: bytes that all GPUs send, ring algorithms, as `mfabric traffic` prints them. Source:
arXiv 2501.03905, traffic by parallelism.

    python -m experiments.traffic_shares --out results
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfabric_jax import report, units, workload
from mfabric_jax.checks import names, whole
from mfabric_jax.report import style
from mfabric_jax.workload import Workload
from mfabric_jax.workload.volume import MEASURED_SHARES

from .script import Rows, Script, Verdict, against

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "traffic_shares"
MEASURED_SET_UP = {"mixtral-8x7b": {"dp": 1, "gpus": 128}}
LOOKS = {
    "TP": style.Look("Tensor", style.PARTS["tp_comm_s"].colour),
    "EP": style.Look("Expert", style.PARTS["ep_comm_s"].colour),
    "PP": style.Look("Pipeline", "#44AA99"),
    "DP": style.Look("Data", style.PARTS["dp_comm_s"].colour),
    "PP+DP": style.Look("Pipeline and data", "#999933"),
}
ROUNDED = 0.05  # shares are published in tens of per cent


@dataclasses.dataclass(frozen=True)
class Config:
    """What to count."""

    models: tuple[str, ...] = ("mixtral-8x7b", "llama-moe", "qwen-moe")
    """Of those with measured shares."""
    micro_batches: int = 0
    """Of an iteration, which the measurement does not state; 0: as many as pipeline stages."""

    def __post_init__(self):
        names("models", self.models, MEASURED_SHARES)
        whole("micro_batches", self.micro_batches, at_least=0)

    def jobs(self) -> list[tuple[str, Workload]]:
        """Set-ups with their names."""
        more = {"micro_batches": self.micro_batches} if self.micro_batches else {}
        found = []
        for model in self.models:
            if model in MEASURED_SET_UP:
                found.append(("as measured", workload.get(model, **more, **MEASURED_SET_UP[model])))
            found.append(("as simulated", workload.get(model, **more)))
        return found


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each set-up and parallelism: bytes of one iteration and their share, and what bounds the measured one.

    PP+DP is a row of its own: what was measured of both together.
    """
    return [row for set_up, job in config.jobs() for row in _rows(set_up, job)]


def _rows(set_up: str, job: Workload) -> list[dict[str, Any]]:
    facts = {"model": job.model, "set_up": set_up, "gpus": job.gpus, "dp": job.dp, "micro_batches": job.micro_batches}
    counted = workload.share_table(job)
    both = [row for row in counted if row["parallelism"] in ("PP", "DP")]
    together = {key: sum(row[key] for row in both) for key in ("bytes_per_iteration", "share")}
    rows = []
    for row in [*counted, together | {"parallelism": "PP+DP"}]:
        measured = MEASURED_SHARES[job.model].get(row["parallelism"])
        bounds = (None, None) if measured is None else (measured.low, measured.high)
        here = {key: row[key] for key in ("parallelism", "bytes_per_iteration", "share")}
        rows.append(facts | here | dict(zip(("measured_low", "measured_high"), bounds, strict=True)))
    return rows


def table(rows: Rows) -> str:
    """A line per row."""
    columns = [report.Column(key) for key in ("model", "set_up", "gpus", "parallelism")]
    columns += [report.Column("gigabytes", "GB, all GPUs"), report.Column("share", percent=True)]
    columns += [report.Column("measured")]
    lines = [{**row, "gigabytes": _gigabytes(row), "measured": _measured(row)} for row in rows]
    return report.plain(lines, columns)


def _gigabytes(row) -> float:
    return float(units.to_gigabytes(row["bytes_per_iteration"]))


def _measured(row) -> str | None:
    low, high = row["measured_low"], row["measured_high"]
    if low is None:
        return None
    return f"{low:.0%}" if low == high else f"{low:.0%} to {high:.0%}"


def draw(rows: Rows, path: str | Path) -> Path:
    """Shares of every set-up as one stacked bar; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: a bar per set-up, below it the measured shares, hatched."""
    from matplotlib.patches import Patch

    cases = list(dict.fromkeys((row["model"], row["set_up"]) for row in rows))
    figure = style.blank(8.6, 1.5 + 0.85 * len(cases))
    axes = figure.subplots()
    for place, case in enumerate(cases):
        here = {row["parallelism"]: row for row in rows if (row["model"], row["set_up"]) == case}
        _bar(axes, place - 0.16, here)
        _measured_bar(axes, place + 0.26, here)
    named = [f"{model}\n{set_up}" for model, set_up in cases]
    axes.set_yticks(range(len(cases)), named)
    axes.set_ylim(len(cases) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("bytes of one iteration, all GPUs")
    axes.grid(axis="x")
    handles = [Patch(color=LOOKS[kind].colour, label=LOOKS[kind].label) for kind in ("TP", "EP", "PP", "DP")]
    handles.append(Patch(facecolor="white", edgecolor=style.INK, hatch="////", label="measured"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _bar(axes: Axes, place: float, here: dict[str, Any]) -> None:
    left = 0.0
    for kind in ("TP", "EP", "PP", "DP"):
        share = here[kind]["share"]
        axes.barh(place, share, 0.42, left, color=LOOKS[kind].colour, edgecolor="white", linewidth=0.6)
        if share > 0.05:
            ink = style.ink_on(LOOKS[kind].colour)
            axes.text(left + share / 2, place, f"{share:.1%}", color=ink, ha="center", va="center")
        left += share


def _measured_bar(axes: Axes, place: float, here: dict[str, Any]) -> None:
    """Measured shares in the order of the bar above; of a range its lower end is full, the rest has no hatch."""
    known = [(kind, here[kind]) for kind in ("TP", "EP", "PP+DP") if here[kind]["measured_low"] is not None]
    left = 0.0
    for kind, row in known:
        colour, low, high = LOOKS[kind].colour, row["measured_low"], row["measured_high"]
        lines = {"facecolor": "none", "edgecolor": colour, "linewidth": 1.0}
        axes.barh(place, high, 0.26, left, linestyle=":" if low < high else "-", **lines)
        if low:
            axes.barh(place, low, 0.26, left, hatch="////", **lines)
        said = f"{low:.0%}" if low == high else f"{low:.0%} or more" if low else f"< {high:.0%}"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        axes.text(left + (low or high) / 2, place, said, ha="center", va="center", fontsize=8, bbox=box)
        left += high


def verdicts(rows: Rows) -> list[Verdict]:
    """Every measured share, in the measured set-up where there is one; shares are published in tens of per cent."""
    usable = [row for row in rows if row["measured_low"] is not None]
    measured = {row["model"] for row in usable if row["set_up"] == "as measured"}
    return [
        against(
            f"{row['model']} {row['set_up']}, {row['parallelism']} share of bytes",
            row["share"],
            row["measured_low"],
            row["measured_high"],
            form=".0%",
            allowed=_rounding(row),
        )
        for row in usable
        if row["set_up"] == "as measured" or row["model"] not in measured
    ]


def _rounding(row) -> float:
    """Half of ten per cent, as a part of a single published share; a range is wide enough."""
    low, high = row["measured_low"], row["measured_high"]
    return ROUNDED / low if low == high else 0.0


SCRIPT = Script(
    name=NAME,
    question="Bytes by parallelism: a row per set-up and parallelism.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
