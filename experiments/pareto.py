"""What does a dollar of network buy? Cost against iteration time of all fabrics that have a price, at four bandwidths.

Computation is calibrated to fat-tree times where these are published. Published: performance per dollar of mFabric
1.2-1.5 times the fat-tree's at 100 Gbps and 1.9-2.3 times at 400 over four models, best for Mixtral 8x7B at 100;
1.4-1.5 and 2.3-2.4 times that of a rail-optimised fabric. Source: arXiv 2501.03905, Pareto front.
"""

import dataclasses
from pathlib import Path

from mfabric_jax import report
from mfabric_jax.case import Cases
from mfabric_jax.evaluate.resolving.resolved import PUBLISHED
from mfabric_jax.report.figures import draw_comparison
from mfabric_jax.report.grid import front

from .iteration_time import per_dollar
from .rows import Row, Rows, adding, picked, pivot, values_of
from .script import COMPARED, PRICED, Found, Script, Sweep, Verdict, check, compared

BEST_AT_100 = "mixtral-8x7b"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Sweep):
    """What to compare."""

    models: tuple[str, ...] = (*PUBLISHED, "deepseek-r1")  # All of them on every fabric.
    fabrics: tuple[str, ...] = COMPARED  # Of those that have a price.
    nic_gbps: tuple[float, ...] = (100.0, 200.0, 400.0, 800.0)  # Bandwidth of every NIC.

    def __post_init__(self):
        check(self, known={"fabrics": PRICED}, cases="models")

    def setting(self, model: str) -> Cases:
        """All cells of a model."""
        return self.case(model, self.fabrics)


def run(config: Config) -> Found:
    """A row for each model, fabric and bandwidth, as `compare` gives it.

    - `on_front`: no other fabric or bandwidth is at most as dear and as slow.
    - `mfabric_per_dollar`: performance per dollar of mFabric over that of this fabric, at the same bandwidth.
    """
    for _, rows in compared(config, config.models):
        yield from beside(rows)


def beside(rows: Rows) -> list[Row]:
    """The rows of one model, with the columns that compare them."""
    best = front(list(map(_point, rows)))
    ours = {row["nic_gbps"]: row["perf_per_dollar"] for row in picked(rows, fabric="mfabric")}
    return adding(
        on_front=lambda row: _point(row) in best,
        mfabric_per_dollar=lambda row: ours[row["nic_gbps"]] / row["perf_per_dollar"] if ours else None,
    )(rows)


def _point(row: Row) -> tuple[float, float]:
    return row["network_cost_usd"], row["iteration_s"]


def table(rows: Rows) -> str:
    """The comparison, then what mFabric's dollars are worth beside those of every other fabric."""
    known = [row for row in rows if row["fabric"] != "mfabric" and row["mfabric_per_dollar"] is not None]
    others = [row | {"over that of": row["fabric"]} for row in known]
    ratios = pivot(("model", "over that of"), "{nic_gbps:g}G", "{mfabric_per_dollar:.2f}")(others)
    return "\n\n".join([report.comparison(rows), *(["performance per dollar of mFabric", ratios] if others else [])])


def verdicts(rows: Rows) -> list[Verdict]:
    """Published ranges beside the least and most of the models with published times, and mFabric on the front."""
    known = [row for row in rows if row["model"] in PUBLISHED and row["mfabric_per_dollar"] is not None]
    found = per_dollar(known, "per dollar over {fabric}, {gbps:g} Gbps")
    tree = picked(known, fabric="fat-tree", nic_gbps=100.0)
    at_100 = {row["model"]: row["mfabric_per_dollar"] for row in tree}
    if len(at_100) > 1:
        best = max(at_100, key=at_100.__getitem__)
        off = 0.0 if best == BEST_AT_100 or BEST_AT_100 not in at_100 else at_100[BEST_AT_100] / at_100[best] - 1
        found.append(Verdict("best model over the fat-tree, 100 Gbps", best, BEST_AT_100, off))
    return [*found, _on_front(rows)]


def _on_front(rows: Rows) -> Verdict:
    """For how many models mFabric is on the front of cost and time, and at which bandwidths."""
    ahead = picked(rows, fabric="mfabric", on_front=True)
    bandwidths = sorted({row["nic_gbps"] for row in ahead})
    where = ": " + ",".join(f"{gbps:g}" for gbps in bandwidths) + "G" if bandwidths else ""
    claim = f"models with mFabric on the front of {len(values_of(rows, 'fabric'))} fabrics"
    return Verdict(claim, f"{len(values_of(ahead, 'model'))} of {len(values_of(rows, 'model'))}{where}")


def draw(rows: Rows, path: str | Path) -> Path:
    """Cost against time; returns the path written."""
    return draw_comparison("pareto", rows, path)


QUICK = {"models": ("mixtral-8x7b", "llama-moe"), "fabrics": ("fat-tree", "rail-optimized", "mfabric")}
SCRIPT = Script(Config, quick=QUICK)
SCRIPT.start(__name__)
