"""Where do schedules inside an all-to-all pay? By delay, bytes, demand and NICs: over circuits that stay, and a tree.

A server has 8 NICs of 400 Gbps: some on optical switches of a port each, the others on packet switches. Four ways to
carry an all-to-all, none of which relays:

- schedule: the best of some schedulers, all turns paid; joint is asked for delays of a hundredth to ten times the
  seconds of the bytes, and what it shows there is timed with the delay that there is;
- one set: circuits chosen for the demand (the best of several policies), one turn paid, packets split;
- static: circuits chosen once for the mean of all demands of the family, no turn, packets split;
- tree: a fat-tree whose NICs cost as much, in proportion (an estimate: a NIC is not divisible).

Time over bytes depends on the delay over the seconds of the bytes alone, so that each quotient is computed once.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import Region, all_to_all_time, policies
from mfabric_jax.circuit_schedules import CircuitSchedule, get
from mfabric_jax.circuit_schedules.ending import schedule_end_s
from mfabric_jax.circuit_schedules.families import moe, standard, uniform
from mfabric_jax.fabric.registry import cost_table
from mfabric_jax.flows import star_completion
from mfabric_jax.units import gigabytes, to_us

from .pictures import Row, Rows, beside, lines
from .rows import adding, duration, pivot, then, told
from .script import Found, Script, cells, check

FAMILIES = {
    "standard": standard,
    "MoE 0.4": moe,
    "MoE 0.8": lambda servers, seed: moe(servers, seed, skew=0.8),
    "uniform": uniform,
}
SCHEDULERS = ("spectra", "whole-pair", "solstice", "keep-or-reconfigure", "joint")
PLANNED = 0.01, 10.0  # delays that joint plans for, over seconds of the bytes
POLICIES = ("greedy", "uniform")
NIC_GBPS, NICS = 400.0, 8
PROGRAMMES = 30  # of joint, from each start
SEEN = 8  # demands whose mean static circuits are for


@dataclasses.dataclass(frozen=True)
class Config:
    """What to map."""

    families: tuple[str, ...] = tuple(FAMILIES)  # Of demand.
    packets: tuple[int, ...] = (1, 2, 4)  # NICs of a server on packet switches, of 8.
    gigabytes: tuple[float, ...] = (0.004, 0.04, 0.4, 4.0)  # Of the busiest server in one all-to-all.
    delays_s: tuple[float, ...] = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)  # Of a turn.
    servers: int = 16  # Of a region.
    draws: int = 1  # Of every family.

    def __post_init__(self):
        check(self, known={"families": FAMILIES}, positive="gigabytes", not_negative="delays_s", whole={1: "draws"})


def run(config: Config) -> Found:
    """A row for each point: seconds of each way, the best scheduler and its configurations, and gains."""
    for family, packets in cells(config, config.families, config.packets):
        demands = np.array([FAMILIES[family](config.servers, seed) for seed in range(SEEN)])
        still = _still(demands, packets, config.draws)
        known: dict[float, dict[str, Any]] = {}
        for size in config.gigabytes:
            whole_s = gigabytes(size) / (NICS * _nic_Bps())
            for delay_s in config.delays_s:
                quotient = float(f"{delay_s / whole_s:.9g}")
                if quotient not in known:
                    known[quotient] = _moving(demands[: config.draws], packets, quotient)
                yield _row(known[quotient] | still, whole_s, quotient) | {
                    "family": family,
                    "packets": packets,
                    "gigabytes": size,
                    "delay_s": delay_s,
                }


def _row(found: dict[str, Any], whole_s: float, quotient: float) -> dict[str, Any]:
    """Times of the ways in seconds, and what the best without a schedule takes over the schedule."""
    ways = {"schedule": found["schedule"], "one set": found["set"] + quotient, "static": found["static"]}
    ways["tree"] = found["tree"]
    best = min(ways, key=lambda way: ways[way])
    row = {f"{way.replace(' ', '_')}_s": seconds * whole_s for way, seconds in ways.items()}
    gains = {f"over_{way.replace(' ', '_')}": ways[way] / ways["schedule"] for way in ("one set", "static", "tree")}
    rest = {"best": best, "over_best": min(ways["one set"], ways["static"]) / ways["schedule"], "quotient": quotient}
    return row | gains | rest | {name: found[name] for name in ("scheduler", "configurations")}


def _nic_Bps() -> float:
    return float(_region(2, 1, 0.0, nic_gbps=NIC_GBPS).nic_Bps)


def _region(servers: int, packets: int, delay_s: float, nic_gbps: float = 8e-9 / NICS) -> Region:
    """Numbers as arrays: other ones are no other program. By default all NICs of a server carry 1 byte/s together."""
    nic, packet, delay = map(jnp.asarray, (nic_gbps, float(packets), delay_s))
    return Region(servers, nic, NICS - packets, packet, delay)


def _moving(demands: np.ndarray, packets: int, quotient: float) -> dict[str, Any]:
    """The best scheduler in the mean of the demands: seconds, name and configurations."""
    where = _region(demands.shape[1], packets, quotient)
    found = {}
    for name in SCHEDULERS:
        plans = [_planned(name, packets, quotient, demand.tobytes(), len(demand)) for demand in demands]
        times = [schedule_end_s(where, *pair) for pair in zip(plans, demands, strict=True)]
        found[name] = np.mean(times), np.mean([len(plan.seconds) for plan in plans])
    best = min(found, key=lambda name: found[name][0])
    return {"schedule": found[best][0], "scheduler": best, "configurations": found[best][1]}


@functools.cache
def _planned(name: str, packets: int, quotient: float, demand: bytes, servers: int) -> CircuitSchedule:
    if name == "joint" and quotient != (near := float(np.clip(quotient, *PLANNED))):
        return _planned(name, packets, near, demand, servers)
    settings: dict[str, Any] = {"programmes": PROGRAMMES} if name == "joint" else {}
    scheduler = get(name, switches=NICS - packets, **settings)
    return scheduler(np.frombuffer(demand).reshape(servers, servers), _region(servers, packets, quotient))


def _still(demands: np.ndarray, packets: int, draws: int) -> dict[str, Any]:
    """Seconds of circuits that stay, without their turn, and of the tree; means of the first demands."""
    servers = demands.shape[1]
    where = _region(servers, packets, 0.0)
    per_set = np.min([[_timed(where, name, one, one) for one in demands[:draws]] for name in POLICIES], axis=0)
    mean = demands.mean(0)
    static = [np.mean([_timed(where, name, mean, one) for one in demands[:draws]]) for name in POLICIES]
    port = np.full(servers, tree_nics(packets) / NICS)
    tree = [float(np.max(star_completion(one, port, port))) for one in demands[:draws]]
    return {"set": np.mean(per_set), "static": min(static), "tree": np.mean(tree)}


def _timed(where: Region, policy: str, seen: np.ndarray, demand: np.ndarray) -> float:
    return float(_split(policy)(where, seen, demand))


@functools.cache
def _split(policy: str):
    return jax.jit(
        lambda where, seen, demand: all_to_all_time(where, policies.get(policy)(seen, where), demand, routing="split")
    )


def tree_nics(packets: int) -> float:
    """NICs of a server on a three-tier fat-tree that cost as much as its optical and packet ones."""
    ours = cost_table("mfabric", NIC_GBPS, optical_degree=NICS - packets, electrical_nics=packets)
    tree = cost_table("fat-tree", NIC_GBPS, nics=NICS)
    return NICS * sum(row["usd"] for row in ours) / sum(row["usd"] for row in tree)


named = adding(
    delay=lambda row: duration(row["delay_s"]) if row["delay_s"] >= 1e-6 else f"{1000 * to_us(row['delay_s']):g} ns",
    size=lambda row: f"{1000 * row['gigabytes']:g} MB" if row["gigabytes"] < 1 else f"{row['gigabytes']:g} GB",
)
table = told(
    "best circuits that stay (one set, its turn paid, or static) over the schedule: above 1 the schedule pays",
    then(named, pivot(["family", "packets", "size"], "{delay}", "{over_best:.2f}")),
    "scheduler and configurations",
    then(named, pivot(["family", "packets", "size"], "{delay}", "{scheduler} {configurations:.0f}")),
    "the fat-tree of the same price over the schedule",
    then(named, pivot(["family", "packets", "size"], "{delay}", "{over_tree:.2f}")),
)


def once(rows: Rows) -> list[Row]:
    """One row for each quotient of delay and seconds of the bytes, on which all depends; without flat ends."""
    found = {(row["family"], row["packets"], row["quotient"]): row for row in rows}.values()
    return [row for row in found if 0.5e-4 < row["quotient"] < 200]


X = ("quotient", "delay of a turn over seconds of the bytes on all 8 NICs")
TITLE = "Where schedules inside an all-to-all pay: above 1"
NICS_ON = "{packets} of 8 NICs on packets"
STAY = lines(X, ("over_best", "best circuits that stay / schedule"), "{family}", panel=NICS_ON, title=TITLE)
TREE = lines(X, ("over_tree", "fat-tree of the same price / schedule"), "{family}", panel=NICS_ON)
build = then(once, beside(STAY, TREE, in_turn=True))


QUICK = {"families": ("MoE 0.8",), "packets": (2,), "draws": 1}
SCRIPT = Script(Config, quick=QUICK, dtype="float64")
SCRIPT.start(__name__)
