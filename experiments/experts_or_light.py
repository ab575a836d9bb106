"""Move the experts or the light? Circuits, placement, both or neither, over skew and drift, at one price of a network.

Eight MoE blocks of DeepSeek-R1 on one pipeline stage: 64 ranks of 8 servers, 4 experts a rank, 16 replicas, 1,024 H800
at half their peak. Without circuits: a fat-tree at 200 Gbps, servers pooling their NICs; with circuits: mFabric at 400
Gbps, which costs about as much (both in the rows): "circuits" are joint ones under relay routing, turned where it pays;
"circuits that turn" the paper's, greedy and unsplit, chosen for every block. Experts compute what they receive.
Placement knows the iteration before the run's first alone and serves all of them, so drift makes it stale; moving
experts is paid. Copies are one more slot a rank, a quarter more memory of experts.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import report, traffic
from mfabric_jax.case import Case
from mfabric_jax.evaluate import resolve, rows_of
from mfabric_jax.evaluate.problem import problem_of
from mfabric_jax.traffic import Tokens, placement_policy, tokens_by_slot

from .pictures import lines
from .rows import Row, Rows, group_rows, picked, pivot, then, told
from .script import FIRST, Found, Script, cells, check, grid, of_gpu

BEST: dict[str, Any] = {"circuits.policy": "joint", "circuits.routing": "relay"} | FIRST["pays"]
TURNING: dict[str, Any] = {"circuits.policy": "greedy", "circuits.routing": "unsplit"} | FIRST["block"]
JOB = {"model.blocks": 11, "job.batch.micro_batches": 2}
JOB |= {f"job.parallel.{name}": degree for name, degree in {"tp": 1, "pp": 1, "ep": 64, "dp": 16}.items()}


class Design(NamedTuple):
    """How circuits are chosen and used (None: none), how experts are placed, and whether there are copies."""

    circuits: dict[str, Any] | None
    placement: str = "contiguous"
    copies: bool = False


DESIGNS = {
    "neither": Design(None),
    "circuits": Design(BEST),
    "circuits that turn": Design(TURNING),
    "placement": Design(None, "hierarchical"),
    "placement, copies": Design(None, "hierarchical", True),
    "both": Design(BEST, "hierarchical"),
    "both, copies": Design(BEST, "hierarchical", True),
    "chosen together, copies": Design(BEST, "with-circuits", True),
}
BASE, LIGHT, EXPERTS = "neither", "circuits", ("placement", "placement, copies")


@dataclasses.dataclass(frozen=True)
class Config:
    """What to vary, and the job."""

    skews: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8)  # Popularity rank to the power -skew.
    drifts: tuple[float, ...] = (0.0, 0.1, 0.3)
    """Of popularity from iteration to iteration, deviation of its logarithm."""
    designs: tuple[str, ...] = tuple(DESIGNS)  # Which, neither first.
    iterations: int = 4  # Timed; experts are placed again as often.
    seed: int = 0  # Of the traffic.

    def __post_init__(self):
        whole = {1: "iterations", 0: "seed"}
        check(self, known={"designs": DESIGNS}, not_negative="skews drifts", whole=whole)
        self.setting(DESIGNS[BASE])

    def setting(self, design: Design) -> Case:
        """One design."""
        changes = JOB | of_gpu("H800-SXM") | {"model.name": "deepseek-r1", "compute.efficiency": 0.5}
        changes |= {"compute.experts": "received", "traffic.drawn": 1, "run.seed": self.seed}
        changes |= {"run.iterations": self.iterations, "placement.rule": design.placement}
        if design.placement != "contiguous":
            copies = JOB["job.parallel.ep"] if design.copies else 0
            settings = {"every": self.iterations, "redundant_experts": copies}
            changes |= {f"placement.{design.placement}.{name}": value for name, value in settings.items()}
        if design.circuits is None:
            changes |= {"network.fabric": "fat-tree", "network.nic_use": "pooled"}
        gbps = 200.0 if design.circuits is None else 400.0
        (case,) = grid(changes | (design.circuits or {}) | {"network.nic_gbps": gbps})
        return case


def run(config: Config) -> Found:
    """A row for each drift, skew and design, as `compare` gives it, and `over_neither`: its time over that design's."""
    for drift, skew in cells(config, config.drifts, config.skews):
        job = resolve(config.setting(DESIGNS[BASE])).job
        drawn = {"iterations": config.iterations + 1, "micro_batches": 1, "seed": config.seed, "drift": drift}
        tokens = traffic.generated_tokens(job, skew, **drawn).after_the_first()
        base = None
        for name in config.designs:
            row = timed(config, DESIGNS[name], tokens)
            base = base or row["iteration_s"]
            yield {"drift": drift, "skew": skew, "design": name, "over_neither": row["iteration_s"] / base} | row


def timed(config: Config, design: Design, tokens: Tokens) -> Row:
    """The row of a design."""
    setting = resolve(config.setting(design))
    if design.placement != "contiguous":
        layout = setting.layout(setting.job)
        tokens = tokens_by_slot(
            tokens, layout, placement_policy(design.placement), every=setting.case.placement.rule.every
        )
    one = problem_of(setting, (setting.case.network.nic_gbps,), traffic=(tokens,))
    (row,) = rows_of(one)
    return row


def borders(rows: Rows) -> list[Row]:
    """For each drift the skew from which on placing experts (fat-tree) ends iterations sooner than circuits alone do;
    None: nowhere, 0: everywhere. Between the skews that were tried, on a straight line."""
    return [
        {"drift": drift} | {name: _border(here, name) for name in EXPERTS if picked(here, design=name)}
        for (drift,), here in group_rows(rows, "drift").items()
    ]


def _border(rows: Rows, name: str) -> float | None:
    skews = [row["skew"] for row in picked(rows, design=LIGHT)]
    light, experts = ([row["iteration_s"] for row in picked(rows, design=which)] for which in (LIGHT, name))
    return crossing(skews, np.subtract(experts, light).tolist())


def crossing(places: Sequence[float], over: Sequence[float]) -> float | None:
    """The place from which on `over` stays below 0; None: it does not end below."""
    if over[-1] >= 0:
        return None
    last = next((at for at in reversed(range(len(over))) if over[at] >= 0), None)
    if last is None:
        return 0.0
    part = over[last] / (over[last] - over[last + 1])
    return places[last] + part * (places[last + 1] - places[last])


def _turns(row: Row) -> str:
    return "-" if row["reconfigurations"] is None else f"{row['reconfigurations']:.0f}"


table = told(
    "iteration time over that of neither",
    pivot(("drift", "skew"), "{design}", "{over_neither:.2f}"),
    "how often the busiest switch turns in an iteration",
    pivot(("drift", "skew"), "{design}", _turns),
    "busiest rank over the mean",
    pivot(("drift", "skew"), "{design}", "{rank_load_over_mean:.2f}"),
    "the skew from which on placing experts beats circuits alone",
    then(borders, report.plain),
)
AXES = ("skew", "skew of expert popularity"), ("over_neither", "iteration time over neither's")
build = lines(*AXES, "{design}", panel="drift {drift:g}", title="Move the experts or the light")


SCRIPT = Script(Config, quick={"skews": (0.0, 0.6), "drifts": (0.1,), "iterations": 2})
SCRIPT.start(__name__)
