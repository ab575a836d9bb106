"""Which conclusions of the paper survive training as it is done today? Every effect alone, and all together.

Five models on three fabrics, H100 GPUs at half their peak, as many micro-batches under every schedule as make a bubble
of at most 15 % under 1F1B. The base is the paper's set-up; every line changes one setting of all fabrics, "together"
those of a careful run of today. Looked at: the iteration, and mFabric over the fat-tree in time and in performance per
dollar (published: 1.9 to 2.3 at 400 Gbps).
"""

import dataclasses
from typing import Any

from mfabric_jax.case import Cases
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate import resolve
from mfabric_jax.workload import micro_batches_for

from .iteration_time import PER_DOLLAR, ROUNDED
from .pictures import dots
from .rows import Rows, group_rows, picked, pivots
from .script import FIRST, Found, Script, Sweep, Verdict, against, check, compared, of_gpu, over_tree, paper

BASE = "the paper's set-up"
TOGETHER = "together"
POOLED = "together, fat-tree's NICs pooled"
STILL = "together, circuits that never turn"
RECEIVED = {"compute.experts": "received"}
FP8 = {"job.precision.dispatch": "fp8"}
PER_SERVER = {"job.per-server.node_limit": "model"}
PLACED = {"placement.rule": "longest-processing-time"}
HIERARCHICAL = {"placement.rule": "hierarchical"}
COUNTED = {"job.head": True, "job.optimizer_step": True}
SHARED_OUT = {"job.sharding": "parameters"}
DUALPIPE = {"job.schedule": "dualpipe", "job.overlap": "passes"}
ONE_A_RANK = "placement.hierarchical.redundant_experts"  # copies, of as many ranks
CHANGES: dict[str, dict[str, Any]] = {
    BASE: {},
    "experts compute what they get": RECEIVED,
    "... ranks send when done": RECEIVED | {"compute.received.combine": "rank"},
    "one copy a server": {"job.dispatch": "per-server"},
    "... to few servers (model's groups)": PER_SERVER,
    "FP8 dispatch": FP8,
    "drops above 1.25 times the mean": RECEIVED | {"job.capacity_factor": 1.25},
    "experts placed (LPT)": RECEIVED | PLACED,
    "experts copied (EPLB)": RECEIVED | HIERARCHICAL | {ONE_A_RANK: 0},
    "zero bubble (ZB-H1)": {"job.schedule": "zb-h1"},
    "DualPipe": DUALPIPE,
    "passes overlap": {"job.overlap": "passes"},
    "head and optimizer": COUNTED,
    "TP in experts, too": {"job.parallel.tp_reduces": "all"},
    "ZeRO-3": SHARED_OUT,
    "slowest of 4 replicas (R1 has one)": {"run.replicas": 4},
    "NDP": {"network.transport": "ndp"},
    "DCTCP": {"network.transport": "dctcp"},
    "the switch turns every time": {"circuits.reconfigure": "always"},
    "switch only where it pays": FIRST["pays"],
    "fat-tree's NICs pooled": {"network.nic_use": "pooled"},
}
TODAY = RECEIVED | PER_SERVER | FP8 | HIERARCHICAL | DUALPIPE | COUNTED | {"network.transport": "dctcp"}
CHANGES |= {TOGETHER: TODAY, POOLED: TODAY | {"network.nic_use": "pooled"}}
CHANGES[STILL] = TODAY | {"circuits.policy": "uniform", "circuits.routing": "relay"}
MODELS = ("mixtral-8x22b", "mixtral-8x7b", "llama-moe", "qwen-moe", "deepseek-r1")
FABRICS = ("fat-tree", "rail-optimized", "mfabric")
USUAL: dict[str, Any] = of_gpu("H100-SXM") | {"compute.efficiency": 0.5, "traffic.drawn": 1}
BUBBLE = 0.15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Sweep):
    """What to change, for which models."""

    models: tuple[str, ...] = MODELS  # Models of the catalogue.
    changes: tuple[str, ...] = tuple(CHANGES)  # What to change; the first is what others are compared with.

    def __post_init__(self):
        check(self, known={"models": MODELS, "changes": CHANGES})
        if self.changes[0] != BASE:
            raise InputError(f"changes must begin with {BASE!r}, got {self.changes[0]!r}.")
        check(self, cases="models changes")

    def setting(self, model: str, change: str) -> Cases:
        """One model on the three fabrics with one change."""
        job = resolve(paper().with_({"model.name": model})).job
        enough = -(-micro_batches_for(BUBBLE, job.pp) // job.pp) * job.pp  # as every schedule can take
        changed = USUAL | {"job.batch.micro_batches": enough} | CHANGES[change]
        if ONE_A_RANK in changed:
            changed[ONE_A_RANK] = job.ep
        if "run.replicas" in changed:
            changed["run.replicas"] = min(changed["run.replicas"], job.dp)
        return self.case(model, FABRICS, changed)


def run(config: Config) -> Found:
    """A row for each change and model: times on the fabrics, mFabric's over the fat-tree's, performance per dollar."""
    for (model, change), found in compared(config, config.models, config.changes):
        tree, rails, here = (picked(found, fabric=fabric)[0] for fabric in FABRICS)
        row = {"change": change, "model": model} | over_tree(here, tree) | {"rails_s": rails["iteration_s"]}
        yield row | {key: here[key] for key in ("reconfig_s", "ep_share", "compute_s", "bubble_share")}


TITLES = {
    "fat_tree_s": "iteration on the fat-tree [s]",
    "rails_s": "iteration on rails [s]",
    "mfabric_s": "iteration on mFabric [s]",
    "over_fat_tree": "time of mFabric over the fat-tree's",
    "per_dollar": "performance per dollar of mFabric over the fat-tree's",
}
table = pivots(["change"], "{model}", TITLES, ".3g")

build = dots(("over_fat_tree", "mFabric's time over the fat-tree's"), "{change}", "{model}", panel="{model}")


def verdicts(rows: Rows) -> list[Verdict]:
    """Performance per dollar under each change, and what each does to the ratio of times at most."""
    low, high = PER_DOLLAR["fat-tree", 400.0]
    found = []
    for (change,), here in group_rows(rows, "change").items():
        claim = f"perf/$ over the fat-tree, {change}"
        found.append(against(claim, [row["per_dollar"] for row in here], low, high, allowed=ROUNDED / low))
    return found


SCRIPT = Script(Config, quick={"models": ("llama-moe", "qwen-moe"), "changes": (BASE, *list(CHANGES)[1:4], TOGETHER)})
SCRIPT.start(__name__)
