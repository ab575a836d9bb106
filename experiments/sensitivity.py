"""Which assumption decides how far mFabric is from the fat-tree? One at a time is switched, under calibrated rates.

From preset "paper", every line changes one setting of both fabrics; the last ones are whole presets. What is looked
at: mFabric's iteration time over the fat-tree's, and its performance per dollar over the fat-tree's, beside published
ranges (1.2-1.5 at 100 Gbps, 1.9-2.3 at 400). Source: arXiv 2501.03905, evaluation; what it leaves open is switched.
"""

import dataclasses
from typing import Any

from mfabric_jax.case import Cases
from mfabric_jax.checks import InputError
from mfabric_jax.report.figures.groups import Dots
from mfabric_jax.report.figures.panels import Axis, Picture, looks
from mfabric_jax.resolving.calibration import PUBLISHED
from mfabric_jax.simulation import resolve

from .iteration_time import PER_DOLLAR, ROUNDED
from .rows import Rows, grouped, picked, pivots
from .script import FIRST, PRESETS, Found, Script, Sweep, Verdict, against, beside, check, compared, paper

BASE = "paper"
MICRO_BATCHES = "job.batch.micro_batches"  # here over the usual ones
CHANGES: dict[str, dict[str, Any]] = {
    BASE: {},
    **{f"first: {first}": FIRST[first] for first in ("reuse", "random", "predict", "pays")},
    "one matrix a block": {"traffic.alike": "micro-batches"},
    "one matrix": {"traffic.alike": "everything"},
    "packets wait": {"circuits.packets_wait": True},
    "ECMP": {"network.paths": "ecmp", "network.radix": 16},
    "split routing": {"circuits.routing": "split"},
    "best-path routing": {"circuits.routing": "best-path"},
    "greedy: next": {"circuits.policy": "greedy-next"},
    "greedy: released": {"circuits.policy": "greedy-released"},
    "NICs pooled": {"network.nic_use": "pooled"},
    "balanced": {"traffic.generated.skew": 0.0},
    "skew 0.6": {"traffic.generated.skew": 0.6},
    "skew 1.0": {"traffic.generated.skew": 1.0},
    "twice the micro-batches": {MICRO_BATCHES: 2},
    "half the micro-batches": {MICRO_BATCHES: 0.5},
    "experts overlap": {"job.parts": 4},
    "gradients overlap": {"job.overlap_gradients": True},
    "recomputed blocks": {"job.recompute": "block"},
    "no delay": {"circuits.delay_s": 0.0},
    "released": PRESETS["released"],
    "released, reuse": PRESETS["released"] | FIRST["reuse"],
}
WHAT = {"over_fat_tree": "iteration time", "per_dollar": "performance per dollar"}
RANGES = {gbps: ends for (fabric, gbps), ends in PER_DOLLAR.items() if fabric == "fat-tree"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Sweep):
    """What to switch, for which models."""

    models: tuple[str, ...] = tuple(PUBLISHED)  # Of those with published times.
    changes: tuple[str, ...] = tuple(CHANGES)  # Which assumptions; the first one is what others are compared with.
    nic_gbps: tuple[float, ...] = (100.0, 400.0)  # Bandwidth of every NIC.

    def __post_init__(self):
        check(self, known={"models": PUBLISHED, "changes": CHANGES})
        if self.changes[0] != BASE:
            raise InputError(f"changes must begin with {BASE!r}, got {self.changes[0]!r}.")
        check(self, cases="models changes")

    def setting(self, model: str, change: str) -> Cases:
        """One model on the two fabrics with one change."""
        changed = dict(CHANGES[change])
        if MICRO_BATCHES in changed:
            usual = resolve(paper().with_({"model.name": model})).job.micro_batches
            changed[MICRO_BATCHES] = max(1, round(changed[MICRO_BATCHES] * usual))
        return self.case(model, ("fat-tree", "mfabric"), changed)


def run(config: Config) -> Found:
    """A row for each change, model and bandwidth: times on both fabrics, their ratio, performance per dollar."""
    for (model, change), found in compared(config, config.models, config.changes):
        for gbps in config.nic_gbps:
            tree, here = (picked(found, fabric=fabric, nic_gbps=gbps)[0] for fabric in ("fat-tree", "mfabric"))
            row = {"change": change, "model": model, "nic_gbps": gbps} | beside(here, tree)
            yield row | {key: here[key] for key in ("reconfig_s", "ep_over_balanced")}


TITLES = {key: f"{what} of mFabric over the fat-tree's" for key, what in WHAT.items()}
table = pivots(["change"], "{model} {nic_gbps:g}G", TITLES, ".2f")

GBPS = looks({gbps: f"{gbps:g} Gbps" for gbps in (400.0, 100.0, 200.0, 800.0)}, "o")
RATIO = Axis("over_fat_tree", "mFabric's time over the fat-tree's\n(dashed: the base)", lines=(1,))
PANEL = Dots(RATIO, Axis("change"), "nic_gbps", GBPS, base=BASE, title="{model}")
PICTURE = Picture((PANEL,), across="model", width=2.8, share_x=False)


def verdicts(rows: Rows) -> list[Verdict]:
    """Performance per dollar under each whole preset, and the changes that move it most."""
    found = []
    for (gbps, change), here in grouped(rows, "nic_gbps", "change").items():
        if change in PRESETS and gbps in RANGES:
            claim = f"perf/$ over fat-tree, {gbps:g} Gbps, {change}"
            low, high = RANGES[gbps]
            found.append(against(claim, [row["per_dollar"] for row in here], low, high, allowed=ROUNDED / low))
    return found + [_most(here, gbps, model) for (gbps, model), here in grouped(rows, "nic_gbps", "model").items()]


def _most(rows: Rows, gbps: float, model: str) -> Verdict:
    """Of one model: the change that moves its time over the fat-tree's farthest."""
    base = picked(rows, change=BASE)[0]["over_fat_tree"]
    most = max(rows, key=lambda row: abs(row["over_fat_tree"] - base))
    moved = f"{most['change']}: {base:.2f} to {most['over_fat_tree']:.2f}"
    return Verdict(f"what moves {model} most, {gbps:g} Gbps", moved)


SCRIPT = Script(
    Config,
    quick={
        "models": ("mixtral-8x7b", "qwen-moe"),
        "changes": (BASE, "first: reuse", "one matrix", "packets wait", "skew 1.0", "no delay", "released"),
    },
)
SCRIPT.start(__name__)
