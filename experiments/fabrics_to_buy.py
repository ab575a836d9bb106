"""Which fabric should a cluster of today have? Every fabric for the same GPUs and jobs: time, dollars, energy, power.

Released models as their makers trained them, on H100 with one NIC a GPU. Beside the fabrics as they are: switch trees
with three ports down for one up; a plane of every split NIC down; mFabric with every optical switch of known delay, and
with circuits that never turn; and an own graph, eight planes of whole NICs on which one NIC in 128 and one link between
switches in 16 run at half rate. Prices are those of the package.
"""

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mfabric_jax.apps.failures import failures
from mfabric_jax.case import Case
from mfabric_jax.case.network import NAMES
from mfabric_jax.checks import Misfit
from mfabric_jax.evaluate import simulate
from mfabric_jax.fabric.graph import graph_text
from mfabric_jax.fabric.graphs.made import GraphNumbers, make_graph
from mfabric_jax.fabric.network import FabricGraph
from mfabric_jax.report.numerals import millions
from mfabric_jax.support.atomic import replacing

from .pictures import dots
from .rows import Rows, adding, listed, picked, then
from .script import Found, Script, Verdict, cells, check, spread

AS_IT_IS, OVER, PLANE, NEVER = "as it is", "3:1", "a plane down", "circuits never turn"
OWN = "own graph"
SWITCHES = ("polatis", "calient", "rotornet", "lightmatter", "epiphotonics", "telescent")
STILL = {"circuits.span.length": "run", "circuits.policy": "sample-average", "circuits.routing": "relay"}
PANELS = "telescent"  # a robot, which takes minutes: its circuits never turn
MODELS = ("deepseek-v3", "mixtral-8x22b")
GPU = "H100-SXM"
SLOW_NICS, SLOW_LINKS = 128, 16  # one in so many
COLUMNS = ("iteration_s", "usd_per_million_tokens", "network_cost_usd", "cluster_cost_usd", "network_kw", "cluster_kw")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The cluster, its jobs and its fabrics."""

    models: tuple[str, ...] = MODELS  # Models of the catalogue.
    fabrics: tuple[str, ...] = NAMES  # Fabrics.
    switches: tuple[str, ...] = SWITCHES  # Optical switches of mFabric.
    gpus: int = 2048  # Of the cluster.
    nic_gbps: float = 400.0  # Bandwidth of every NIC.

    def __post_init__(self):
        check(self, known={"fabrics": NAMES, "switches": SWITCHES}, positive="nic_gbps", whole={16: "gpus"})

    def case(self, model: str, changes: dict[str, Any]) -> Case:
        own = {"model.name": model, "gpu.name": GPU, "job.parallel.gpus": self.gpus, "network.nic_gbps": self.nic_gbps}
        own |= {"job.search": "recipe"}  # searches take an hour
        return Case().with_(own | changes)


def conditions(config: Config, graph: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What is compared: condition, fabric, and settings."""
    for fabric in config.fabrics:
        yield AS_IT_IS, fabric, {"network.fabric": fabric}
    yield AS_IT_IS, OWN, {"network.fabric": "graph", "network.graph": graph}
    for fabric in config.fabrics:
        yield OVER, fabric, {"network.fabric": fabric, "network.oversubscription": 3.0}
    if "multi-plane" in config.fabrics:
        yield PLANE, "multi-plane", {"network.fabric": "multi-plane", "failures.kinds": ("plane",)}
    if "mfabric" in config.fabrics:
        for ocs in config.switches:
            turns = {} if ocs != PANELS else STILL
            yield ocs, "mfabric", {"network.fabric": "mfabric", "circuits.ocs": ocs} | turns
        yield NEVER, "mfabric", {"network.fabric": "mfabric"} | STILL


def run(config: Config) -> Found:
    """A row for each model, condition and fabric: the columns of a comparison that a buyer reads."""
    with tempfile.TemporaryDirectory() as folder:
        graph = own_graph(config, Path(folder) / "own.json")
        for model, (condition, fabric, changes) in cells(config, config.models, [*conditions(config, graph)]):
            try:
                found = row_of(config.case(model, changes))
            except Misfit:  # such as no tree that could be oversubscribed
                if condition == AS_IT_IS:
                    raise
                continue
            yield {"model": model, "condition": condition, "fabric": fabric} | found


def row_of(case: Case) -> dict[str, Any]:
    """Columns of the case; of a failure the iteration after it, and dollars and joules as they grow with it."""
    (one,) = simulate(case).rows()
    slower = 1.0
    if case.failures.kinds:
        (broken,) = failures(case)
        slower = broken["failed_s"] / broken["healthy_s"]
    row = {name: one[name] for name in COLUMNS}
    for name in ("iteration_s", "usd_per_million_tokens"):
        row[name] = None if row[name] is None else row[name] * slower
    joules = one["joules_per_million_tokens"]
    return row | {"kj_per_million_tokens": None if joules is None else joules * slower / 1000}


def own_graph(config: Config, path: Path) -> str:
    """Writes the graph of the user's own cluster; its path."""
    network = make_graph("planes", GraphNumbers(gpus=config.gpus, planes=8, nic_gbps=config.nic_gbps))
    with replacing(path) as (part,):
        part.write_text(graph_text(slowed(network)), encoding="utf-8")
    return str(path)


def slowed(network: FabricGraph) -> FabricGraph:
    """With some links at half rate, both ways: every so many-th NIC, and link between switches."""
    capacity = network.capacity.copy()
    for kind, _ in network.links:
        every = SLOW_NICS if kind.startswith("nic") else 0 if kind.startswith("nvswitch") else SLOW_LINKS
        if every:
            capacity[network.run(kind)][every - 1 :: every] /= 2
    return dataclasses.replace(network, capacity=capacity)


table = then(
    adding(
        **{
            "network M$": lambda row: row["network_cost_usd"] and millions(row["network_cost_usd"]),
            "cluster M$": lambda row: row["cluster_cost_usd"] and millions(row["cluster_cost_usd"]),
        }
    ),
    listed(
        *("model", "condition", "fabric", ("iteration_s", "iteration [s]"), ("usd_per_million_tokens", "$/Mtok")),
        *(("kj_per_million_tokens", "kJ/Mtok"), "network M$", "cluster M$"),
        *(("network_kw", "network kW"), ("cluster_kw", "cluster kW")),
    ),
)

MEASURES = {"iteration_s": "iteration [s]", "usd_per_million_tokens": "$ a million tokens"}


def _each_measure(rows: Rows) -> list[dict[str, Any]]:
    """A row for each measure that is known; conditions other than `AS_IT_IS` only where they change something."""
    found = []
    for row in rows:
        usual = picked(rows, model=row["model"], fabric=row["fabric"], condition=AS_IT_IS)[0]
        for name, title in MEASURES.items():
            if row[name] is None or (row["condition"] != AS_IT_IS and row[name] == usual[name]):
                continue
            condition = f"mFabric, {row['condition']}" if row["fabric"] == "mfabric" else row["condition"]
            shown = AS_IT_IS if row["condition"] == AS_IT_IS else condition
            found.append(row | {"value": row[name], "panel": f"{row['model']}: {title}", "shown": shown})
    return found


TITLE = "Every fabric for the same GPUs and jobs"
build = then(_each_measure, dots(("value", ""), "{fabric}", "{shown}", panel="{panel}", title=TITLE))


def verdicts(rows: Rows) -> list[Verdict]:
    """What the cheapest and the fastest fabric are, and what the dearest costs over the cheapest."""
    found = []
    for model in dict.fromkeys(row["model"] for row in rows):
        here = [row for row in picked(rows, model=model, condition=AS_IT_IS) if row["usd_per_million_tokens"]]
        cheapest, dearest = (pick(here, key=lambda row: row["usd_per_million_tokens"]) for pick in (min, max))
        ratio = dearest["usd_per_million_tokens"] / cheapest["usd_per_million_tokens"]
        found.append(spread(f"dollars a token on {dearest['fabric']} over {cheapest['fabric']}, {model}", [ratio]))
    return found


SCRIPT = Script(
    Config,
    quick={
        "models": ("mixtral-8x7b",),
        "fabrics": ("fat-tree", "multi-plane", "mfabric"),
        "switches": ("polatis",),
        "gpus": 64,
    },
)
SCRIPT.start(__name__)
