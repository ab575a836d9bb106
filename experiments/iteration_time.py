"""Do published iteration times come out: calibrated on the fat-tree, predicted on every other fabric?

One number per model, the rate at which it computes, is fitted to three published ratios of fat-tree times; mFabric,
rail-optimised and TopoOpt are then simulated, and performance per dollar is compared with the published ranges. Under
preset "paper" (the text) and "released" (what the authors' simulator does beyond it), each calibrated under its own
assumptions. Source: arXiv 2501.03905, evaluation.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from mfabric_jax.apps.recordings.calibrate import calibrate
from mfabric_jax.case import Cases
from mfabric_jax.evaluate import simulate
from mfabric_jax.evaluate.resolving.resolved import BANDWIDTHS, PUBLISHED

from .pictures import lines
from .rows import Row, Rows, adding, group_rows, listed, of, picked, pivot, then, told
from .script import PRESETS, Found, Script, Verdict, against, cells, check, grid

FABRICS = ("fat-tree", "oversub-fat-tree", "rail-optimized", "topoopt", "mfabric")
PER_DOLLAR = {  # mFabric's performance per dollar over that of a fabric, over four models
    ("fat-tree", 100.0): (1.2, 1.5),
    ("fat-tree", 400.0): (1.9, 2.3),
    ("rail-optimized", 100.0): (1.4, 1.5),
    ("rail-optimized", 400.0): (2.3, 2.4),
}
FASTER = {"topoopt": 2.5, "oversub-fat-tree": 1.6}  # mFabric's speed over theirs, at most
FASTER_THAN_TOPOOPT = {"mixtral-8x22b": 1.5, "mixtral-8x7b": 1.4, "qwen-moe": 1.5}  # mean over bandwidths
CLOSE = {"mixtral-8x22b": 1.03, "mixtral-8x7b": 1.03}  # mFabric's time over the fat-tree's, 400 Gbps
ROUNDED = 0.05  # ranges are published with one decimal


@dataclasses.dataclass(frozen=True)
class Config:
    """What to simulate."""

    models: tuple[str, ...] = tuple(PUBLISHED)  # Of those with published times.
    presets: tuple[str, ...] = tuple(PRESETS)  # Sets of assumptions.
    iterations: int = 1  # Averaged.
    seed: int = 0  # Of the traffic.

    def __post_init__(self):
        check(self, known={"models": PUBLISHED, "presets": PRESETS}, cases="presets models")

    def setting(self, preset: str, model: str, changes: Mapping[str, Any] = {}) -> Cases:
        """One model on all fabrics."""
        own = {"model.name": model, "network.fabric": FABRICS, "network.nic_gbps": BANDWIDTHS}
        own |= {"run.iterations": self.iterations, "run.seed": self.seed}
        return grid(own | PRESETS[preset] | dict(changes))


def run(config: Config) -> Found:
    """A row for each preset, model, fabric and bandwidth, with the fitted `efficiency` and what is published."""
    for preset, model in cells(config, config.presets, config.models):
        fitted = calibrate(next(iter(config.setting(preset, model))), (model,))[model].efficiency
        calibrated = config.setting(preset, model, {"compute.efficiency": fitted})
        rows = [{"preset": preset, "efficiency": fitted} | row for row in simulate(calibrated).rows()]
        yield from (row | ratios_of(row, rows) for row in rows)


def ratios_of(row: Row, rows: Rows) -> dict[str, Any]:
    """Its time over that of the fat-tree and at 800 Gbps, and mFabric's over its own."""

    def cell(fabric: str, gbps: float) -> Row:
        return picked(rows, preset=row["preset"], model=row["model"], fabric=fabric, nic_gbps=gbps)[0]

    tree, here = cell("fat-tree", row["nic_gbps"]), cell("mfabric", row["nic_gbps"])
    published = PUBLISHED[row["model"]]
    place = BANDWIDTHS.index(row["nic_gbps"])
    return {
        "over_800": row["iteration_s"] / cell(row["fabric"], BANDWIDTHS[-1])["iteration_s"],
        "over_fat_tree": row["iteration_s"] / tree["iteration_s"],
        "mfabric_faster": row["iteration_s"] / here["iteration_s"],
        "mfabric_per_dollar": here["perf_per_dollar"] / row["perf_per_dollar"],
        "published_over_800": published[place] / published[-1] if row["fabric"] == "fat-tree" else None,
    }


def _calibrated(rows: Rows) -> list[Row]:
    """The cells to which rates are fitted."""
    fitted = [row for row in picked(rows, fabric="fat-tree") if row["nic_gbps"] < BANDWIDTHS[-1]]
    return adding(off=lambda row: row["over_800"] / row["published_over_800"] - 1)(fitted)


FITTED = ("efficiency", "over A100 peak"), ("over_800", "fitted"), ("published_over_800", "published")
table = told(
    "fat-tree time over that at 800 Gbps, one rate a model fitted",
    then(_calibrated, listed("preset", "model", "nic_gbps", *FITTED, ("off", None, True))),
    "iteration time [s]; over the fat-tree's in brackets",
    pivot(("preset", "model", "fabric"), "{nic_gbps:g}G", "{iteration_s:.2f} ({over_fat_tree:.2f})"),
)


def _over_fat_tree_at_800(rows: Rows) -> list[Row]:
    """Times over that of the fat-tree at 800 Gbps; what is published of the fat-tree is a curve of its own."""
    tree = group_rows(picked(rows, fabric="fat-tree", nic_gbps=BANDWIDTHS[-1]), "preset", "model")
    seconds = {place: here[0]["iteration_s"] for place, here in tree.items()}
    published = adding(fabric=lambda row: "published, fat-tree", over_tree="published_over_800")
    return [
        *adding(over_tree=lambda row: row["iteration_s"] / seconds[row["preset"], row["model"]])(rows),
        *published([row for row in rows if row["published_over_800"]]),
    ]


GBPS, TIME = ("nic_gbps", "NIC bandwidth [Gbps]"), ("over_tree", "time over the fat-tree's at 800")
build = then(_over_fat_tree_at_800, lines(GBPS, TIME, "{fabric}", panel="{model}, {preset}"))


def verdicts(rows: Rows) -> list[Verdict]:
    """Of every preset: the calibrated cells, performance per dollar over all models, and speed."""
    return [line for (preset,), here in group_rows(rows, "preset").items() for line in _verdicts(here, preset)]


def per_dollar(rows: Rows, claim: str, form: str = ".2f", by: str = "fabric") -> list[Verdict]:
    """What is published of mFabric's performance per dollar, over all models; the column `by` names fabrics."""
    found = []
    for (fabric, gbps), (low, high) in PER_DOLLAR.items():
        if ratios := [row["mfabric_per_dollar"] for row in picked(rows, **{by: fabric}, nic_gbps=gbps)]:
            named = claim.format(fabric=fabric, gbps=gbps)
            found.append(against(named, ratios, low, high, form=form, allowed=ROUNDED / low))
    return found


def _verdicts(rows: Rows, preset: str) -> list[Verdict]:
    fitted = [row["over_800"] / row["published_over_800"] for row in rows if row["published_over_800"]]
    found = [against(f"fat-tree cells, fitted over published, {preset}", fitted, 1.0, allowed=0.02)]
    found += per_dollar(rows, f"perf/$ over {{fabric}}, {{gbps:g}} Gbps, {preset}", ".1f")
    for fabric, most in FASTER.items():
        fastest = max(row["mfabric_faster"] for row in picked(rows, fabric=fabric))
        claim = f"speed over {fabric} at most, {preset}"
        found.append(against(claim, fastest, most, form=".1f", allowed=ROUNDED / most))
    for model, mean in FASTER_THAN_TOPOOPT.items():
        if here := picked(rows, fabric="topoopt", model=model):
            claim = f"speed over topoopt, mean, {model}, {preset}"
            found.append(against(claim, of("mfabric_faster")(here), mean, allowed=ROUNDED / mean))
    for row in picked(rows, fabric="mfabric", nic_gbps=400.0):
        if row["model"] in CLOSE:
            claim = f"time over fat-tree, {row['model']}, 400 Gbps, {preset}"
            found.append(against(claim, row["over_fat_tree"], None, CLOSE[row["model"]]))
    return found


SCRIPT = Script(Config, quick={"presets": ("paper",)})
SCRIPT.start(__name__)
