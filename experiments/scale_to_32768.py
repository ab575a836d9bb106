"""Does mFabric's advantage hold up to 32,768 GPUs?

The data-parallel degree grows with the cluster; each link adds 1 us, so that rings over many servers take their time.
All-to-alls are those of one replica and the same at every size: they are solved once. `mfabric cluster` solves such a
cluster flow by flow. Published: the advantage holds to more than 30,000 GPUs. Source: arXiv 2501.03905, scale.
"""

import dataclasses

from mfabric_jax import units
from mfabric_jax.case import Cases
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate import resolve

from .pictures import beside, lines
from .rows import Rows, group_rows, picked, pivots
from .script import PRICED, Found, OfFabric, Script, Sweep, Verdict, cells, check, over_tree, paper, reusing

REFERENCE = "fat-tree"
KEPT = ("model", "fabric", "nic_gbps", "gpus", "iteration_s", "compute_s", "ep_comm_s", "dp_comm_s", "reconfig_s")
KEPT += ("bubble_s", "network_cost_usd", "perf_per_dollar")


@dataclasses.dataclass(frozen=True)
class Config(Sweep):
    """Which clusters."""

    models: tuple[str, ...] = ("mixtral-8x7b", "qwen-moe")  # One with large and one with small experts.
    fabrics: tuple[str, ...] = ("fat-tree", "rail-optimized", "topoopt", "mfabric")
    """Of those that have a price; the fat-tree among them."""
    gpus: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384, 32768)  # Cluster sizes, whole replicas of every model.
    link_delay_us: float = 1.0  # Propagation of a link.

    def __post_init__(self):
        check(self, known={"fabrics": PRICED}, whole={1: "gpus"})
        if REFERENCE not in self.fabrics:
            raise InputError(f"fabrics must name the {REFERENCE}, with which others are compared, got {self.fabrics}.")
        check(self, cases="models gpus")

    def setting(self, model: str, gpus: int) -> Cases:
        """One model on a cluster of a size."""
        job = resolve(paper().with_({"model.name": model})).job
        replica = job.gpus // job.dp
        if gpus % replica:
            raise InputError(f"gpus must be whole replicas of {model} ({replica} GPUs each), got {gpus}.")
        own = {"job.parallel.gpus": gpus, "network.link_delay_s": units.us(self.link_delay_us)}
        return self.case(model, self.fabrics, own)


def run(config: Config) -> Found:
    """A row for each model, size and fabric: time and performance per dollar, both also over the fat-tree's."""
    solved: dict[str, dict[str, OfFabric]] = {model: {} for model in config.models}
    for model, gpus in cells(config, config.models, sorted(config.gpus)):
        rows = reusing(config.setting(model, gpus), solved[model])
        (tree,) = picked(rows, fabric=REFERENCE)
        for row in rows:
            ratios = over_tree(row, tree)
            over = {"time_over_tree": ratios["over_fat_tree"], "per_dollar_over_tree": ratios["per_dollar"]}
            yield {name: row[name] for name in KEPT} | over


TITLES = {"iteration_s": "iteration time [s], by GPUs"}
TITLES |= {"per_dollar_over_tree": "performance per dollar over the fat-tree's, by GPUs"}
table = pivots(("model", "fabric"), "{gpus:,}", TITLES, ".3f")


GPUS, PANEL = ("gpus", "GPUs"), {"by": "{fabric}", "panel": "{model}"}
build = beside(
    lines(GPUS, ("iteration_s", "iteration time [s]"), **PANEL),
    lines(GPUS, ("per_dollar_over_tree", "performance per dollar over the fat-tree's"), **PANEL),
)


def verdicts(rows: Rows) -> list[Verdict]:
    """mFabric against the fat-tree at the smallest and the largest size."""
    lines = []
    for (model,), ours in group_rows(picked(rows, fabric="mfabric"), "model").items():
        first, last = (pick(ours, key=lambda row: row["gpus"]) for pick in (min, max))
        ratio = last["per_dollar_over_tree"]
        text = f"{ratio:.2f} ({first['per_dollar_over_tree']:.2f} at {first['gpus']:,})"
        claim = f"{model}: per dollar, {last['gpus']:,} GPUs"
        lines.append(Verdict(claim, text, "advantage holds", min(ratio - 1, 0.0)))
    return lines


SCRIPT = Script(Config, quick={"models": ("mixtral-8x7b",), "fabrics": ("fat-tree", "mfabric"), "gpus": (1024, 4096)})
SCRIPT.start(__name__)
