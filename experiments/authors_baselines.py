"""Do the authors' baselines come out: rail-optimised and TopoOpt as their readers rebuilt them, beside packet level?

Everything is under preset "released", with the matrix that stands in the authors' code ("authors"), with uniform
("balanced") and with measured traffic; computation is calibrated on the fat-tree for each. Two kinds of numbers stand
beside what comes out: all-to-alls of packet-level runs (of a rebuilt simulator of the same family, at 100 Gbps: with
the whole cluster busy for rails and rings, of one group for mFabric), and the published iterations and dollars of arXiv
2501.03905. Nothing here was tuned to either.
"""

import dataclasses
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from mfabric_jax.apps.recordings.calibrate import calibrate
from mfabric_jax.case import Cases
from mfabric_jax.evaluate import rows_of
from mfabric_jax.evaluate.resolving.resolved import BANDWIDTHS, PUBLISHED
from mfabric_jax.timing.passes import places

from .iteration_time import CLOSE, FASTER_THAN_TOPOOPT, ROUNDED, per_dollar
from .pictures import dots
from .rows import Row, Rows, adding, group_rows, of, picked, pivots, then, told
from .script import PRESETS, Found, Script, Simulated, Verdict, against, cells, check, grid, only

TREE, MFABRIC, RAILS = "fat-tree", "mfabric", "rail-optimized"
RINGS, MATCHINGS, TOTIENT = (f"topoopt, {wiring}" for wiring in ("rings", "demand", "totient-perms"))
ALWAYS, APART = "mfabric, waits always", "mfabric, a circuit a flow"
DESIGNS: dict[str, dict[str, Any]] = {
    TREE: {},
    MFABRIC: {},
    ALWAYS: {"circuits.reconfigure": "always"},
    APART: {"network.ecmp.circuits": "single"},
    RAILS: {},
    MATCHINGS: {"network.topoopt.wiring": "demand"},
    RINGS: {"network.topoopt.wiring": "rings"},
    TOTIENT: {"network.topoopt.wiring": "totient-perms"},
}
TRAFFIC = {
    "authors": {"traffic.source": "authors"},
    "balanced": {"traffic.knobs": "balanced"},
    "measured": {"traffic.source": "shares"},
}
MODELS = tuple(PUBLISHED)
# All-to-alls over the fat-tree's at packet level; how they were run: the first docstring.
PACKETS: dict[tuple[str, str], Mapping[str, float]] = {
    (RAILS, "authors"): dict(zip(MODELS, (0.69, 0.76, 1.57, 1.17), strict=True)),
    (RINGS, "authors"): dict(zip(MODELS, (1.9, 2.2, 3.3, 1.7), strict=True)),
    (MFABRIC, "authors"): dict(zip(MODELS, (0.80, 0.88, 0.54, 0.55), strict=True)),
    (MFABRIC, "balanced"): {"mixtral-8x22b": 2.13, "llama-moe": 0.80, "qwen-moe": 0.93},
}
DRAWS = 0.16  # what flow level was off on a fat-tree with one path a flow, other paths drawn


@dataclasses.dataclass(frozen=True)
class Config:
    """What to simulate."""

    models: tuple[str, ...] = MODELS  # Of those with published times.
    traffic: tuple[str, ...] = tuple(TRAFFIC)  # authors, balanced, measured.
    nic_gbps: tuple[float, ...] = BANDWIDTHS  # Published are 100, 200, 400, 800.
    seed: int = 0  # Of paths and traffic.

    def __post_init__(self):
        check(self, known={"models": PUBLISHED, "traffic": TRAFFIC}, cases="traffic models")

    def setting(self, traffic: str, model: str, design: str = TREE, changes: Mapping[str, Any] = {}) -> Cases:
        """One model on one design."""
        where = {"model.name": model, "network.fabric": design.split(",")[0], "network.nic_gbps": self.nic_gbps}
        given = PRESETS["released"] | DESIGNS[design] | TRAFFIC[traffic] | {"run.seed": self.seed}
        return grid(where | given | dict(changes))


def run(config: Config) -> Found:
    """A row for each traffic, model, design and bandwidth: compare's, and one all-to-all's `all_to_all_s`."""
    for model, traffic in cells(config, config.models, config.traffic):
        fitted = calibrate(next(iter(config.setting(traffic, model))), (model,))[model].efficiency
        rows = []
        for design in DESIGNS:
            simulated = only(config.setting(traffic, model, design, {"compute.efficiency": fitted}))
            same = {"design": design, "shares": traffic, "efficiency": fitted}
            rows += [same | _all_to_all(simulated, row) for row in rows_of(simulated.problem)]
        yield from (row | ratios_of(row, rows) for row in rows)


def _all_to_all(simulated: Simulated, row: Row) -> Row:
    """The row with the seconds of its median all-to-all between servers, of tokens to experts."""
    moe = places(simulated.problem.workload).layer >= 0
    load = np.asarray(simulated.exchanges.load)[..., moe, :]
    return row | {"all_to_all_s": float(np.median(load)) / simulated.problem.rates(row["nic_gbps"]).nic_Bps}


def ratios_of(row: Row, rows: Rows) -> dict[str, Any]:
    """Over the fat-tree, mFabric over it, and what packet level says."""
    at = {"nic_gbps": row["nic_gbps"]}
    (tree,), (best,) = picked(rows, design=TREE, **at), picked(rows, design=MFABRIC, **at)
    packets = PACKETS.get((row["design"], row["shares"]), {}) if row["nic_gbps"] == BANDWIDTHS[0] else {}
    return {
        "over_fat_tree": row["iteration_s"] / tree["iteration_s"],
        "all_to_all_over_tree": row["all_to_all_s"] / tree["all_to_all_s"],
        "at_packet_level": packets.get(row["model"]),
        "mfabric_faster": row["iteration_s"] / best["iteration_s"],
        "mfabric_per_dollar": best["perf_per_dollar"] / row["perf_per_dollar"],
        "per_dollar_over_tree": row["perf_per_dollar"] / tree["perf_per_dollar"],
    }


def _first_bandwidth(rows: Rows) -> list[Row]:
    """All-to-alls scale with the bandwidth alike."""
    return [row for row in rows if row["nic_gbps"] == rows[0]["nic_gbps"] and row["design"] not in (TREE, ALWAYS)]


DOWN = ("shares", "design")
table = told(
    then(_first_bandwidth, pivots(DOWN, "{model}", {"all_to_all_over_tree": "all-to-all over the fat-tree's"}, ".2f")),
    *(
        pivots(("shares", "design", "model"), "{nic_gbps:g}G", {key: title}, ".2f")
        for key, title in {
            "over_fat_tree": "iteration over the fat-tree's",
            "mfabric_faster": "mFabric's speed over it",
            "mfabric_per_dollar": "mFabric's performance per dollar over it",
            "per_dollar_over_tree": "its performance per dollar over the fat-tree's",
        }.items()
    ),
)

OVER = "all_to_all_over_tree", "all-to-all over the fat-tree's"
build = then(_first_bandwidth, dots(OVER, "{design}", "{model}", panel="{shares}"))


def verdicts(rows: Rows) -> list[Verdict]:
    """Packet-level all-to-alls, then published performance per dollar and speed over TopoOpt, of every traffic."""
    found = [
        against(
            f"all-to-all over fat-tree's, {row['design']}, {row['model']}, {row['shares']}, packet level",
            row["all_to_all_over_tree"],
            row["at_packet_level"],
            allowed=DRAWS,
        )
        for row in rows
        if row["at_packet_level"] is not None
    ]
    for (traffic,), here in group_rows(rows, "shares").items():
        found += per_dollar(here, f"perf/$ over {{fabric}}, {{gbps:g}} Gbps, {traffic}", by="design")
        for design in (ALWAYS, APART):
            over_tree = adding(design=lambda row: TREE, mfabric_per_dollar="per_dollar_over_tree")
            claim = f"perf/$ of {design} over {{fabric}}, {{gbps:g}} Gbps, {traffic}"
            found += per_dollar(over_tree(picked(here, design=design)), claim, by="design")
        for design, row in product((MFABRIC, ALWAYS, APART), picked(here, nic_gbps=400.0)):
            if row["design"] == design and row["model"] in CLOSE:
                claim = f"time of {design} over fat-tree, {row['model']}, 400 Gbps, {traffic}"
                found.append(against(claim, row["over_fat_tree"], None, CLOSE[row["model"]]))
        for (model, mean), design in product(FASTER_THAN_TOPOOPT.items(), (MATCHINGS, RINGS, TOTIENT)):
            if there := picked(here, design=design, model=model):
                claim = f"speed over {design}, mean, {model}, {traffic}"
                found.append(against(claim, of("mfabric_faster")(there), mean, allowed=ROUNDED / mean))
    return found


SCRIPT = Script(Config, quick={"models": ("llama-moe",), "traffic": ("authors",), "nic_gbps": (100.0, 400.0)})
SCRIPT.start(__name__)
