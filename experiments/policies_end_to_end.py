"""How much of an iteration do better circuits and routes save, beside the paper's greedy with unsplit routing?

All models, measured, skewed and recorded traffic, computation calibrated to published fat-tree times. Circuits are
chosen for the exact demand of every block, and the first all-to-all of a block waits for them ("block", as the paper
simulates it) or they are set where that pays ("pays"); or once, for the iteration before ("static"). "5 + 3", "4 + 4":
NICs on circuits and on packet switches, in place of 6 + 2. qwen-moe has 32 expert-parallel ranks, the recording 16:
qwen-moe-ep16 stands for it there. Fat-trees are with a NIC for every GPU ("own") and with pooled NICs. Source: arXiv
2501.03905, evaluation.
"""

import dataclasses
from itertools import product
from typing import Any

from mfabric_jax.case import Cases
from mfabric_jax.checks import InputError
from mfabric_jax.report.figures.groups import Dots
from mfabric_jax.report.figures.panels import Axis, Picture

from .rows import Row, adding, ends, measured, pivots, then
from .script import FIRST, Found, Script, Sweep, check, compared
from .sensitivity import GBPS

MODELS = ("mixtral-8x22b", "mixtral-8x7b", "llama-moe", "qwen-moe", "deepseek-r1", "deepseek-v3")
RECORDED_MODEL = {"qwen-moe": "qwen-moe-ep16"}
TRAFFIC: dict[str, dict[str, Any]] = {"measured": {}, "skewed": {"traffic.generated.skew": 1.0}, "recorded": {}}
BASE = "greedy, unsplit"
NIC_USES = ("own", "pooled")
PARTS = ("ep_comm_s", "dp_comm_s", "reconfig_s")
RELAY, PAYS = {"circuits.routing": "relay"}, FIRST["pays"]
JOINT = {"circuits.policy": "joint"} | RELAY
WAYS: dict[str, dict[str, Any]] = {
    BASE: {},
    "threshold, unsplit": {"circuits.policy": "threshold"},
    "local search, unsplit": {"circuits.policy": "local-search"},
    "local search, split": {"circuits.policy": "local-search", "circuits.routing": "split"},
    "greedy, relay": {"circuits.policy": "greedy-next"} | RELAY,
    "learned, relay": {"circuits.policy": "learned"} | RELAY,
    "joint, relay": JOINT,
    "joint, relay, 5 + 3": JOINT | {"network.mfabric.optical_degree": 5},
    "joint, relay, 4 + 4": JOINT | {"network.mfabric.optical_degree": 4},
    "static, relay": {"circuits.policy": "sample-average", "circuits.span.length": "iteration"} | RELAY,
    "greedy, unsplit, pays": PAYS,
    "joint, relay, pays": JOINT | PAYS,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Sweep):
    """What to simulate."""

    models: tuple[str, ...] = MODELS  # Names of models.
    traffic: tuple[str, ...] = ("measured", "skewed")  # measured, skewed, recorded (needs trace).
    ways: tuple[str, ...] = tuple(WAYS)  # Policy and routing; the first one is what others are compared with.
    nic_gbps: tuple[float, ...] = (100.0, 400.0)  # Bandwidth of every NIC.
    trace: str | None = None  # Folder of the SmartMoE gate trace; adds recorded traffic.

    def __post_init__(self):
        check(self, known={"models": MODELS, "traffic": TRAFFIC, "ways": WAYS})
        if self.ways[0] != BASE:
            raise InputError(f"ways must begin with {BASE!r}, got {self.ways[0]!r}.")
        if "recorded" in self.traffic and self.trace is None:
            raise InputError("traffic 'recorded' needs trace, a folder of the SmartMoE gate trace.")
        for case in product(self.models, self.kinds(), self.ways):
            self.setting(*case)

    def kinds(self) -> tuple[str, ...]:
        """The kinds of traffic; with a trace recorded traffic too."""
        return tuple(dict.fromkeys((*self.traffic, *(["recorded"] if self.trace else []))))

    def setting(self, model: str, kind: str, way: str) -> Cases:
        """One model under one kind of traffic with one policy and routing, the fat-tree beside it."""
        later = "circuits.span.length" in WAYS[way]  # what is chosen on the past is timed on the next iteration
        fabrics = ("fat-tree", "mfabric") if way == BASE or later else ("mfabric",)
        if kind == "recorded":
            model = RECORDED_MODEL.get(model, model)
        trace = {"traffic.trace.path": self.trace} if kind == "recorded" else {}
        return self.case(model, fabrics, {"network.nic_use": NIC_USES} | trace | TRAFFIC[kind] | WAYS[way])


def run(config: Config) -> Found:
    """A row for each model, traffic, way and bandwidth: iteration time, over greedy's and over the fat-trees'.

    - `fat_tree_cost`: of the fat-tree's network, pooled NICs, over that of this one.
    - `ep_over_pooled`: its all-to-alls, waiting for the switch apart, over those of the fat-tree with pooled NICs.
    - `ep_comm_s`, `dp_comm_s`, `reconfig_s`: of the busiest stage.   - `beyond_ep_s`: what it takes longer than the
      pooled fat-tree but for all-to-alls and the switch: gradients, sends between stages, and their bubbles.
    """
    base: dict[tuple, Row] = {}
    for (_, kind, way), rows in compared(config, config.models, config.kinds(), config.ways):
        here = {(row["fabric"], row["nic_use"], row["nic_gbps"]): row for row in rows}
        if way == BASE:
            base = here
        for (name, _, gbps), row in here.items():
            if name == "mfabric":
                greedy = base[name, "pooled", gbps]
                own, pooled = ((base | here)["fat-tree", use, gbps] for use in NIC_USES)
                place = {"model": row["model"], "traffic": kind, "way": way, "nic_gbps": gbps}
                yield (
                    place
                    | {key: row[key] for key in ("iteration_s", *PARTS)}
                    | {
                        "over_greedy": row["iteration_s"] / greedy["iteration_s"],
                        "over_own": row["iteration_s"] / own["iteration_s"],
                        "over_pooled": row["iteration_s"] / pooled["iteration_s"],
                        "fat_tree_cost": pooled["network_cost_usd"] / row["network_cost_usd"],
                        "ep_over_pooled": row["ep_comm_s"] / pooled["ep_comm_s"],
                        "beyond_ep_s": _but_for_all_to_alls(row) - _but_for_all_to_alls(pooled),
                    }
                )


def _but_for_all_to_alls(row: Row) -> float:
    return row["iteration_s"] - row["ep_comm_s"] - row["reconfig_s"]


NAMES = {other: name for name, other in RECORDED_MODEL.items()}
short = adding(model=lambda row: NAMES.get(row["model"], row["model"]))  # qwen-moe-ep16 stands in qwen-moe's column
TITLES = {
    "over_greedy": f"iteration time over that of {BASE}",
    "over_own": "iteration time over the fat-tree's, a NIC for every GPU",
    "over_pooled": "iteration time over the fat-tree's, pooled NICs",
    "fat_tree_cost": "cost of that fat-tree's network over mFabric's",
    "ep_over_pooled": "all-to-alls over those of the fat-tree with pooled NICs",
    "beyond_ep_s": "seconds beyond that fat-tree but for all-to-alls and the switch",
}
table = then(short, pivots(("traffic", "way"), "{model} {nic_gbps:g}G", TITLES, ".3f"))

RATIO = Axis("over_greedy", f"time over that of\n{BASE}", lines=(1,))
PANEL = Dots(RATIO, Axis("way"), "nic_gbps", GBPS, title="{model}, {traffic}")
PICTURE = Picture((PANEL,), "traffic", "model", shown=short, width=2.5)


# what every way saves, over all models and bandwidths; nothing is published
SAVED = measured(("traffic", "way"), "time over greedy's, {way}, {traffic}", ends("over_greedy", ".3f"))
verdicts = then(lambda rows: [row for row in rows if row["way"] != BASE], SAVED)

SCRIPT = Script(
    Config,
    quick={"models": ("mixtral-8x7b",), "nic_gbps": (400.0,), "ways": (BASE, "threshold, unsplit", "greedy, relay")},
)
SCRIPT.start(__name__)
