"""Does mFabric's advantage hold up to 32,768 GPUs, and can a cluster of that size be solved flow by flow?

The data-parallel degree grows with the cluster; each link adds 1 us, so that rings over many servers take their time.
All-to-alls are those of one replica and the same at every size: they are solved once. Then all flows of one iteration
on every link of the largest cluster. Published: the advantage holds to more than 30,000 GPUs. Source: arXiv
2501.03905, scale.

    python -m experiments.scale_to_32768 --out results
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mfabric_jax import report, units
from mfabric_jax.checks import InputError, distinct, names, whole
from mfabric_jax.fabric.cost import PRICED
from mfabric_jax.report import style
from mfabric_jax.study import Compare, WholeCluster, cluster_rows, solve_cluster
from mfabric_jax.study.compare import inside, job_rows, jobs, joined, solve
from mfabric_jax.workload import NAMES

from .script import Rows, Script, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "scale_to_32768"
REFERENCE = "fat-tree"
KEPT = ("model", "fabric", "nic_gbps", "gpus", "iteration_s", "compute_s", "ep_comm_s", "dp_comm_s", "reconfig_s")
KEPT += ("bubble_s", "network_cost_usd", "perf_per_dollar")
FLOWS = ("model", "fabric", "nic_gbps", "gpus", "traffic", "flows", "links", "end_s", "build_s", "solve_s", "peak_mb")
WHAT = {
    "EP": "Expert",
    "DP experts": "Data: experts",
    "DP between": "Data: between servers",
    "DP inside": "Data: inside",
    "PP": "Pipeline",
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Which clusters."""

    models: tuple[str, ...] = ("mixtral-8x7b", "qwen-moe")
    """One with large and one with small experts."""
    fabrics: tuple[str, ...] = ("fat-tree", "rail-optimized", "topoopt", "mfabric")
    """Of those that have a price; the fat-tree among them."""
    gpus: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384, 32768)
    """Cluster sizes, whole replicas of every model."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    link_delay_us: float = 1.0
    """Propagation of a link."""
    flow_model: str = "mixtral-8x7b"
    """Solved flow by flow on the largest cluster."""
    flow_fabrics: tuple[str, ...] = ("mfabric",)
    """On these."""
    seed: int = 0
    """Of the traffic."""

    def __post_init__(self):
        names("models", self.models, NAMES)
        names("fabrics", self.fabrics, PRICED)
        if REFERENCE not in self.fabrics:
            raise InputError(f"fabrics must name the {REFERENCE}, with which others are compared, got {self.fabrics}.")
        for count in distinct("gpus", self.gpus):
            whole("gpus", count)
            for model in self.models:
                self.setting(model, count)
        for fabric in self.flow_fabrics:
            self.cluster(fabric)

    def setting(self, model: str, gpus: int) -> Compare:
        """One model on a cluster of a size."""
        usual = Compare(models=(model,)).workload(model)
        replica = usual.gpus // usual.dp
        if gpus % replica:
            raise InputError(f"gpus must be whole replicas of {model} ({replica} GPUs each), got {gpus}.")
        return Compare(
            models=(model,),
            fabrics=self.fabrics,
            nic_gbps=(self.nic_gbps,),
            dp=gpus // replica,
            gpus=gpus,
            link_delay_s=units.us(self.link_delay_us),
            seed=self.seed,
        )

    def cluster(self, fabric: str) -> WholeCluster:
        """The largest cluster, flow by flow."""
        servers = max(self.gpus) // 8
        return WholeCluster(
            model=self.flow_model, fabric=fabric, servers=servers, nic_gbps=self.nic_gbps, seed=self.seed
        )


def run(config: Config) -> Iterator[dict[str, Any]]:
    """Rows of two kinds.

    - "iteration", for each model, size and fabric: time and performance per dollar, both also over the fat-tree's.
    - "flows", for each fabric and kind of traffic ("all": all of it): flows, end of the last one, seconds to build and
      solve (compiling included) and the most memory of this process [MB].
    """
    for fabric in config.flow_fabrics:
        for row in cluster_rows(solve_cluster(config.cluster(fabric))):
            yield {"row": "flows"} | {key: row[key] for key in FLOWS}
    cells = [(model, gpus) for model in config.models for gpus in sorted(config.gpus)]
    solved: dict[tuple[str, str], Any] = {}
    for model, gpus in tqdm(cells, desc=NAME, unit="cluster", file=sys.stderr, disable=None):
        setting, rows = config.setting(model, gpus), []
        for job in jobs(setting):
            key = model, job.fabric.name
            if key not in solved:
                solved[key] = joined(solve(setting, job), inside(setting, job))
            rows += [
                {"row": "iteration"} | {name: row[name] for name in KEPT} for row in job_rows(setting, job, solved[key])
            ]
        tree = next(row for row in rows if row["fabric"] == REFERENCE)
        for row in rows:
            over = {"time_over_tree": row["iteration_s"] / tree["iteration_s"]}
            yield row | over | {"per_dollar_over_tree": row["perf_per_dollar"] / tree["perf_per_dollar"]}


def table(rows: Rows) -> str:
    """Seconds and performance per dollar by size, then the largest cluster flow by flow."""
    parts = []
    titles = {"iteration_s": "iteration time [s], by GPUs"}
    titles |= {"per_dollar_over_tree": "performance per dollar over the fat-tree's, by GPUs"}
    for key, said in titles.items():
        lines: dict[tuple, dict[str, Any]] = {}
        for row in _of(rows, "iteration"):
            line = lines.setdefault((row["model"], row["fabric"]), {"model": row["model"], "fabric": row["fabric"]})
            line[f"{row['gpus']:,}"] = f"{row[key]:.3f}"
        parts += [said, report.plain(list(lines.values()))]
    if flows := _of(rows, "flows"):
        columns = ["fabric", "gpus", "traffic", "flows", report.Column("end_s", "ends at [s]"), "links"]
        columns += [report.Column("build_s", "build [s]"), report.Column("solve_s", "solve [s]")]
        parts += ["flow by flow", report.plain(flows, [*columns, report.Column("peak_mb", "peak [MB]")])]
    return "\n\n".join(parts)


def _of(rows: Rows, kind: str) -> list:
    return [row for row in rows if row["row"] == kind]


def draw(rows: Rows, path: str | Path) -> Path:
    """Time and performance per dollar against GPUs, and when flows end; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself."""
    from matplotlib.lines import Line2D

    each, flows = _of(rows, "iteration"), [row for row in _of(rows, "flows") if row["traffic"] != "all"]
    models = list(dict.fromkeys(row["model"] for row in each))
    figure = style.blank(4.2 * len(models) + 4.4 * bool(flows), 6.2)
    layout = [[f"{what} {model}" for model in models] + ["flows"] * bool(flows) for what in ("time", "dollar")]
    panels: dict[str, Axes] = figure.subplot_mosaic(layout)  # pyright: ignore
    for model in models:
        here = [row for row in each if row["model"] == model]
        _lines(panels[f"time {model}"], here, "iteration_s", "iteration time [s]")
        _lines(panels[f"dollar {model}"], here, "per_dollar_over_tree", "performance per dollar\nover the fat-tree's")
        panels[f"time {model}"].set_title(model, loc="left")
        panels[f"dollar {model}"].set_xlabel("GPUs")
    if flows:
        _ends(panels["flows"], flows)
    looks = [style.fabric(fabric) for fabric in dict.fromkeys(row["fabric"] for row in each)]
    handles = [Line2D([], [], color=look.colour, marker=look.marker, label=look.label) for look in looks]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _lines(axes: Axes, rows: Sequence, key: str, said: str) -> None:
    """A line per fabric, from zero."""
    for fabric in dict.fromkeys(row["fabric"] for row in rows):
        look, wide = style.fabric(fabric), fabric == REFERENCE  # rails lie on the tree
        line = [(row["gpus"], row[key]) for row in rows if row["fabric"] == fabric]
        axes.plot(
            *zip(*line, strict=True),
            color=look.colour,
            marker=look.marker,
            markersize=8 if wide else 5,
            linewidth=3.2 if wide else 1.4,
        )
    gpus = sorted({row["gpus"] for row in rows})
    axes.set_xscale("log")
    axes.set_xticks(gpus, [f"{count // 1024}K" if count % 1024 == 0 else f"{count:,}" for count in gpus])
    axes.minorticks_off()
    axes.set_ylim(0, 1.08 * max(row[key] for row in rows))
    axes.set_ylabel(said)
    axes.grid()


def _ends(axes: Axes, rows: Sequence) -> None:
    """End of the last flow of every kind of traffic."""
    kinds = [kind for kind in WHAT if any(row["traffic"] == kind for row in rows)]
    fabrics = list(dict.fromkeys(row["fabric"] for row in rows))
    high = 0.7 / len(fabrics)
    for row in rows:
        place = kinds.index(row["traffic"]) + (fabrics.index(row["fabric"]) - (len(fabrics) - 1) / 2) * high
        axes.barh(place, row["end_s"], 0.92 * high, color=style.fabric(row["fabric"]).colour)
        axes.annotate(
            f"{row['flows']:,} flows",
            (row["end_s"], place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(range(len(kinds)), [WHAT[kind].replace(": ", ":\n") for kind in kinds])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(kinds) - 0.5, -0.5)
    axes.set_xlim(0, 1.45 * max(row["end_s"] for row in rows))
    axes.set_xlabel("end of its last flow, all at once [s]")
    axes.set_title(f"Flow by flow: {rows[0]['model']}\non {rows[0]['gpus']:,} GPUs", loc="left")
    axes.grid(axis="x")


def verdicts(rows: Rows) -> list[Verdict]:
    """mFabric against the fat-tree at the smallest and the largest size, and what the flow-by-flow solve took."""
    found = []
    ours = [row for row in _of(rows, "iteration") if row["fabric"] == "mfabric"]
    for model in dict.fromkeys(row["model"] for row in ours):
        sizes = sorted((row for row in ours if row["model"] == model), key=lambda row: row["gpus"])
        first, last = sizes[0], sizes[-1]
        ratio = last["per_dollar_over_tree"]
        said = f"{ratio:.2f} ({first['per_dollar_over_tree']:.2f} at {first['gpus']:,})"
        claim = f"{model}: per dollar, {last['gpus']:,} GPUs"
        found.append(Verdict(claim, said, "advantage holds", min(ratio - 1, 0.0)))
    for row in (row for row in _of(rows, "flows") if row["traffic"] == "all"):
        claim = f"{row['model']} on {row['fabric']}, {row['gpus']:,} GPUs"
        seconds = row["build_s"] + row["solve_s"]
        found.append(Verdict(claim, f"{row['flows']:,} flows, {seconds:.0f} s, {row['peak_mb']:,.0f} MB"))
    return found


SCRIPT = Script(
    name=NAME,
    question="Clusters up to 32,768 GPUs: rows of iterations by size and of one flow-by-flow solve.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"models": ("mixtral-8x7b",), "fabrics": ("fat-tree", "mfabric"), "gpus": (1024, 4096)},
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
