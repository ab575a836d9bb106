"""Does mFabric's advantage hold up to 32,768 GPUs, and can a cluster of that size be solved flow by flow?

The data-parallel degree grows with the cluster; each link adds 1 us, so that rings over many servers take their time.
All-to-alls are those of one replica and the same at every size: they are solved once. Then all flows of one iteration
on every link of the largest cluster. Published: the advantage holds to more than 30,000 GPUs. Source: arXiv
2501.03905, scale.
"""

import dataclasses
from typing import Any

from mfabric_jax import units
from mfabric_jax.case import Case, Cases
from mfabric_jax.checks import InputError
from mfabric_jax.cluster import cluster_rows, solve_cluster
from mfabric_jax.fabric.registry import PRICED
from mfabric_jax.report import style
from mfabric_jax.report.figures.groups import Bars
from mfabric_jax.report.figures.panels import Axis, Lines, Picture, Pictures
from mfabric_jax.workload import NAMES

from .rows import Row, Rows, adding, grouped, listed, picked, pivots, then, told, where
from .script import FLOW_BY_FLOW, Found, Script, Sweep, Verdict, beside, cells, check, replica_gpus, reusing

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
class Config(Sweep):
    """Which clusters."""

    models: tuple[str, ...] = ("mixtral-8x7b", "qwen-moe")  # One with large and one with small experts.
    fabrics: tuple[str, ...] = ("fat-tree", "rail-optimized", "topoopt", "mfabric")
    """Of those that have a price; the fat-tree among them."""
    gpus: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384, 32768)  # Cluster sizes, whole replicas of every model.
    link_delay_us: float = 1.0  # Propagation of a link.
    flow_model: str = "mixtral-8x7b"  # Solved flow by flow on the largest cluster.
    flow_fabrics: tuple[str, ...] = ("mfabric",)  # On these.

    def __post_init__(self):
        check(self, known={"models": NAMES, "fabrics": PRICED}, distinct="gpus", whole={1: "gpus"})
        if REFERENCE not in self.fabrics:
            raise InputError(f"fabrics must name the {REFERENCE}, with which others are compared, got {self.fabrics}.")
        check(self, cases="models gpus")
        for fabric in self.flow_fabrics:
            self.cluster(fabric)

    def setting(self, model: str, gpus: int) -> Cases:
        """One model on a cluster of a size."""
        replica = replica_gpus(model)
        if gpus % replica:
            raise InputError(f"gpus must be whole replicas of {model} ({replica} GPUs each), got {gpus}.")
        own = {"job.parallel.gpus": gpus, "network.link_delay_s": units.us(self.link_delay_us)}
        return self.case(model, self.fabrics, own)

    def cluster(self, fabric: str) -> Case:
        """The largest cluster, flow by flow."""
        (one,) = self.case(self.flow_model, fabric, {"job.parallel.gpus": max(self.gpus)} | FLOW_BY_FLOW)
        return one


def run(config: Config) -> Found:
    """Rows of two kinds.

    - "iteration", for each model, size and fabric: time and performance per dollar, both also over the fat-tree's.
    - "flows", for each fabric and kind of traffic ("all": all of it): flows, end of the last one, seconds to build and
      solve (compiling included) and the most memory of this process [MB].
    """
    for fabric in config.flow_fabrics:
        for row in cluster_rows(solve_cluster(config.cluster(fabric))):
            yield {"row": "flows"} | {key: row[key] for key in FLOWS}
    solved: dict[str, dict[str, Any]] = {model: {} for model in config.models}
    for model, gpus in cells(config, config.models, sorted(config.gpus)):
        rows = reusing(config.setting(model, gpus), solved[model])
        (tree,) = picked(rows, fabric=REFERENCE)
        for row in rows:
            ratios = beside(row, tree)
            over = {"time_over_tree": ratios["over_fat_tree"], "per_dollar_over_tree": ratios["per_dollar"]}
            yield {"row": "iteration"} | {name: row[name] for name in KEPT} | over


TITLES = {"iteration_s": "iteration time [s], by GPUs"}
TITLES |= {"per_dollar_over_tree": "performance per dollar over the fat-tree's, by GPUs"}
ENDS = ("end_s", "ends at [s]"), "links", ("build_s", "build [s]"), ("solve_s", "solve [s]")
table = told(
    then(where(row="iteration"), pivots(("model", "fabric"), "{gpus:,}", TITLES, ".3f")),
    lambda rows: "flow by flow" if picked(rows, row="flows") else "",
    then(where(row="flows"), listed("fabric", "gpus", "traffic", "flows", *ENDS, ("peak_mb", "peak [MB]"))),
)


def _ends(rows: Rows) -> list[Row]:
    """The end of the last flow of every kind of traffic."""
    kinds = [row for kind in WHAT for row in picked(rows, row="flows", traffic=kind)]
    return adding(what=lambda row: WHAT[row["traffic"]], note="{flows:,} flows")(kinds)


def _thousands(gpus: int) -> str:
    return f"{gpus // 1024}K" if gpus % 1024 == 0 else f"{gpus:,}"


GPUS = Axis("gpus", "GPUs", log=True, ticks=_thousands)
PER_DOLLAR = Axis("per_dollar_over_tree", "performance per dollar\nover the fat-tree's", low=0)
SAME = {"by": "fabric", "looks": style.FABRICS, "under": REFERENCE}
TIMES = Lines(GPUS, Axis("iteration_s", "iteration time [s]", low=0), title="{model}", **SAME)
ITERATIONS = Picture((TIMES, Lines(GPUS, PER_DOLLAR, **SAME)), across="model", shown=where(row="iteration"), width=3.6)
END = Axis("end_s", "end of its last flow, all at once [s]", low=0, room=1.45)
FLOWING: dict[str, Any] = {"note": "note", "title": "Flow by flow: {model}\non {gpus:,} GPUs"}
BY_FLOW = Picture((Bars(END, Axis("what"), "fabric", style.FABRICS, **FLOWING),), shown=_ends)
PICTURE = Pictures((ITERATIONS, BY_FLOW))


def verdicts(rows: Rows) -> list[Verdict]:
    """mFabric against the fat-tree at the smallest and the largest size, and what the flow-by-flow solve took."""
    found = []
    for (model,), ours in grouped(picked(rows, row="iteration", fabric="mfabric"), "model").items():
        first, last = (pick(ours, key=lambda row: row["gpus"]) for pick in (min, max))
        ratio = last["per_dollar_over_tree"]
        text = f"{ratio:.2f} ({first['per_dollar_over_tree']:.2f} at {first['gpus']:,})"
        claim = f"{model}: per dollar, {last['gpus']:,} GPUs"
        found.append(Verdict(claim, text, "advantage holds", min(ratio - 1, 0.0)))
    for row in picked(rows, row="flows", traffic="all"):
        claim = f"{row['model']} on {row['fabric']}, {row['gpus']:,} GPUs"
        seconds = row["build_s"] + row["solve_s"]
        found.append(Verdict(claim, f"{row['flows']:,} flows, {seconds:.0f} s, {row['peak_mb']:,.0f} MB"))
    return found


SCRIPT = Script(Config, quick={"models": ("mixtral-8x7b",), "fabrics": ("fat-tree", "mfabric"), "gpus": (1024, 4096)})
SCRIPT.start(__name__)
