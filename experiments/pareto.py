"""What does a dollar of network buy? Cost against iteration time of all fabrics that have a price, at four bandwidths.

Computation is calibrated to fat-tree times where these are published. Published: performance per dollar of mFabric
1.2-1.5 times the fat-tree's at 100 Gbps and 1.9-2.3 times at 400 over four models, best for Mixtral 8x7B at 100;
1.4-1.5 and 2.3-2.4 times that of a rail-optimised fabric. Source: arXiv 2501.03905, Pareto front.

    python -m experiments.pareto --out results
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mfabric_jax import report
from mfabric_jax.checks import names
from mfabric_jax.fabric.cost import PRICED
from mfabric_jax.report.figures import compared_picture
from mfabric_jax.report.fronts import front
from mfabric_jax.study import Compare, compare
from mfabric_jax.study.calibration import PUBLISHED

from .script import Rows, Script, Verdict, against

NAME = "pareto"
PER_DOLLAR = {  # mFabric's performance per dollar over that of a fabric, over four models
    ("fat-tree", 100.0): (1.2, 1.5),
    ("fat-tree", 400.0): (1.9, 2.3),
    ("rail-optimized", 100.0): (1.4, 1.5),
    ("rail-optimized", 400.0): (2.3, 2.4),
}
CHEAP = ("topoopt", "rail-only")
ROUNDED = 0.05  # ranges are published with one decimal
BEST_AT_100 = "mixtral-8x7b"


@dataclasses.dataclass(frozen=True)
class Config:
    """What to compare."""

    models: tuple[str, ...] = (*PUBLISHED, "deepseek-r1")
    """All of them on every fabric."""
    fabrics: tuple[str, ...] = PRICED
    """Of those that have a price."""
    nic_gbps: tuple[float, ...] = (100.0, 200.0, 400.0, 800.0)
    """Bandwidth of every NIC."""
    seed: int = 0
    """Of the traffic."""

    def __post_init__(self):
        names("fabrics", self.fabrics, PRICED)
        self.setting()

    def setting(self) -> Compare:
        """All cells."""
        return Compare(models=self.models, fabrics=self.fabrics, nic_gbps=self.nic_gbps, seed=self.seed)


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each model, fabric and bandwidth, as `compare` gives it.

    - `on_front`: no other fabric or bandwidth is at most as dear and as slow; `on_front_of_trees`: TopoOpt and
      rail-only, which have no spine to pay for, left out.
    - `mfabric_per_dollar`: performance per dollar of mFabric over that of this fabric, at the same bandwidth.
    """
    setting = config.setting()
    total = len(config.models) * len(config.fabrics)
    with tqdm(total=total, desc=NAME, unit="fabric", file=sys.stderr, disable=None) as bar:

        def progress(_):
            bar.update()

        rows = list(compare(setting, progress=progress))
    trees = [row for row in rows if row["fabric"] not in CHEAP]
    return [
        row
        | {"on_front": _point(row) in _front(rows, row), "on_front_of_trees": _point(row) in _front(trees, row)}
        | _beside(row, rows)
        for row in rows
    ]


def _point(row: Mapping[str, Any]) -> tuple[float, float]:
    return row["network_cost_usd"], row["iteration_s"]


def _front(rows: Rows, of: Mapping[str, Any]) -> list[tuple[float, float]]:
    return front([_point(row) for row in rows if row["model"] == of["model"]])


def _beside(of: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    ours = [
        row["perf_per_dollar"]
        for row in rows
        if (row["model"], row["fabric"], row["nic_gbps"]) == (of["model"], "mfabric", of["nic_gbps"])
    ]
    return {"mfabric_per_dollar": ours[0] / of["perf_per_dollar"] if ours else None}


def table(rows: Rows) -> str:
    """The comparison, then what mFabric's dollars are worth beside those of every other fabric."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["fabric"] != "mfabric" and row["mfabric_per_dollar"] is not None:
            key = row["model"], row["fabric"]
            line = lines.setdefault(key, dict(zip(("model", "over that of"), key, strict=True)))
            line[f"{row['nic_gbps']:g}G"] = f"{row['mfabric_per_dollar']:.2f}"
    said = "performance per dollar of mFabric"
    return "\n\n".join([report.comparison(rows), *([said, report.plain(list(lines.values()))] if lines else [])])


def draw(rows: Rows, path: str | Path) -> Path:
    """Cost against time, a panel per model; returns the path written."""
    return compared_picture("pareto", rows, path)


def verdicts(rows: Rows) -> list[Verdict]:
    """Published ranges beside the least and most of the models with published times, and mFabric on the front."""
    found = []
    for (fabric, gbps), (low, high) in PER_DOLLAR.items():
        if ratios := [row["mfabric_per_dollar"] for row in _cells(rows, fabric, gbps)]:
            claim = f"per dollar over {fabric}, {gbps:g} Gbps"
            found.append(against(claim, ratios, low, high, allowed=ROUNDED / low))
    at_100 = {row["model"]: row["mfabric_per_dollar"] for row in _cells(rows, "fat-tree", 100.0)}
    if len(at_100) > 1:
        best = max(at_100, key=at_100.__getitem__)
        off = 0.0 if best == BEST_AT_100 or BEST_AT_100 not in at_100 else at_100[BEST_AT_100] / at_100[best] - 1
        found.append(Verdict("best model over the fat-tree, 100 Gbps", best, BEST_AT_100, off))
    ours = [row for row in rows if row["fabric"] == "mfabric"]
    fabrics = {row["fabric"] for row in rows}
    found.append(_on_front(ours, "on_front", f"models with mFabric on the front of {len(fabrics)} fabrics"))
    if fabrics & set(CHEAP):
        found.append(_on_front(ours, "on_front_of_trees", "the same without TopoOpt, rail-only"))
    return found


def _on_front(rows: Rows, key: str, said: str) -> Verdict:
    """At how many bandwidths, for every model."""
    at = {
        model: [f"{row['nic_gbps']:g}" for row in rows if row["model"] == model and row[key]]
        for model in dict.fromkeys(row["model"] for row in rows)
    }
    some = ",".join(sorted({gbps for found in at.values() for gbps in found}, key=float))
    whole = sum(bool(found) for found in at.values())
    return Verdict(said, f"{whole} of {len(at)}" + (f": {some}G" if some else ""))


def _cells(rows: Rows, fabric: str, gbps: float) -> list[Mapping[str, Any]]:
    """Of the models with published times."""
    cell = fabric, gbps
    known = [row for row in rows if row["model"] in PUBLISHED and row["mfabric_per_dollar"] is not None]
    return [row for row in known if (row["fabric"], row["nic_gbps"]) == cell]


SCRIPT = Script(
    name=NAME,
    question="Cost against iteration time: a row per model, fabric and bandwidth.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"models": ("mixtral-8x7b", "llama-moe"), "fabrics": ("fat-tree", "rail-optimized", "mfabric")},
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
