"""How far from the best circuits there are is each policy, when it knows the demand?

Five families of drawn demand; circuits chosen for unsplit and split routing; times of paced flows (what the exact
programmes minimise) over the proved optimum, and of flows that share ports max-min fairly beside them.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import report
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import RULES, exact_circuits, greedy, local_search, matching, threshold
from mfabric_jax.report import style
from mfabric_jax.report.figures.groups import Dots
from mfabric_jax.report.figures.panels import Axis, Picture
from mfabric_jax.routing import all_to_all_time, degree_bound, fluid_lower_bound

from .script import Row, Rows, Script, Verdict, check, measured, of, p90, summed

ROUTINGS, GROUP = ("unsplit", "split"), ("servers", "routing", "policy")
FAMILIES = ("zipf", "hot", "sparse", "block", "dense")
BYTES = 1e8  # of a middling pair
PROVED = 1e-5  # relative gap between the best circuits and the bound
BEST = "best heuristic"  # the better of `HEURISTICS`
HEURISTICS = ("threshold", "local-search")
LOOKS = {
    **{f"greedy, {rule}": style.Look(f"Greedy, {rule}", "#D55E00") for rule in RULES},
    "matching": style.Look("Matching", "#CC79A7"),
    "threshold": style.Look("Threshold", "#E69F00"),
    "local-search": style.Look("Local search", "#009E73"),
    BEST: style.Look("Best heuristic", "#0072B2"),
}


@dataclasses.dataclass(frozen=True)
class Config:
    """What to draw, and the region."""

    servers: tuple[int, ...] = (8, 12, 16)  # Sizes of the region.
    seeds: int = 12  # Instances of each family.
    routings: tuple[str, ...] = ROUTINGS  # What circuits are chosen for: unsplit, split.
    families: tuple[str, ...] = FAMILIES  # Kinds of demand.
    seconds: float = 60.0  # Limit on the search for one optimum.
    nic_gbps: float = 400.0  # Bandwidth of every NIC.
    optical_degree: int = 6  # NICs of a server on the optical switch.
    electrical_nics: int = 2  # NICs of a server on the electrical fabric.

    def __post_init__(self):
        known, whole = {"routings": ROUTINGS, "families": FAMILIES}, {4: "servers", 1: "seeds", 0: "optical_degree"}
        check(self, known=known, distinct="servers", whole=whole)
        check(self, positive="seconds nic_gbps", not_negative="electrical_nics")

    def region(self, servers: int) -> Region:
        """So many servers."""
        gbps, electrical = (jnp.asarray(number, float) for number in (self.nic_gbps, self.electrical_nics))
        return Region(servers, gbps, jnp.asarray(self.optical_degree), electrical)


def demand_of(family: str, seed: int, servers: int) -> np.ndarray:
    """One drawn all-to-all [S S], bytes, its diagonal 0."""
    demand = BYTES * _drawn(family, np.random.default_rng([seed, servers]), servers)
    np.fill_diagonal(demand, 0)
    return demand


def _drawn(family: str, rng: np.random.Generator, servers: int) -> np.ndarray:
    demand, everybody = np.zeros((servers, servers)), np.arange(servers)
    match family:
        case "zipf":  # the n-th largest ordered pair sends in proportion to n^-1.2
            ranks = np.arange(1, servers * (servers - 1) + 1)
            demand[~np.eye(servers, dtype=bool)] = 10 * rng.permutation(ranks**-1.2)
        case "hot":  # receivers are popular in proportion to 1/n, senders nearly agree on them
            demand = rng.permutation(1 / (everybody + 1)) * rng.lognormal(0, 0.3, demand.shape)
        case "sparse":  # every server sends to three others, lognormal bytes
            for sender in everybody:
                sent = rng.lognormal(0, 1, 3)
                demand[sender, rng.choice(np.delete(everybody, sender), 3, replace=False)] = sent
        case "block":  # groups of four servers send each other ten times as much as others
            group = everybody // 4
            demand = rng.lognormal(0, 0.5, demand.shape) * np.where(group[:, None] == group, 1, 0.1)
        case _:  # dense: lognormal bytes between all
            demand = rng.lognormal(0, 0.5, demand.shape)
    return demand


def policies(routing: str) -> dict[str, Callable]:
    """Those compared, by name."""
    greedies = {f"greedy, {rule}": functools.partial(greedy, rule=rule) for rule in RULES}
    searches = {"threshold": threshold, "local-search": local_search}
    tuned = {name: functools.partial(policy, routing=routing) for name, policy in searches.items()}
    return {**greedies, "matching": matching, **tuned}


def run(config: Config) -> Iterator[Row]:
    """A row for each size, routing, instance and policy; those of an instance are told when it is done.

    - `time_s`, `max_min_s`: paced and max-min fair.
    - `optimum_s`, `bound_s`: of the best circuits found, and below what no circuits are; equal if `proved`.
    - `over`, `max_min_over`: over `bound_s`.
    """
    instances = product(config.servers, config.routings, config.families, range(config.seeds))
    for servers, routing, family, seed in instances:
        demand = demand_of(family, seed, servers)
        place = {"servers": servers, "routing": routing, "family": family, "seed": seed}
        rows = [place | row for row in _rows(config, config.region(servers), demand, routing)]
        print(_told(rows[-1]), file=sys.stderr, flush=True)
        yield from rows


def _rows(config: Config, where: Region, demand, routing: str) -> Iterator[Row]:
    found, degree_bound = _chosen(where, demand, routing)
    times = {name: tuple(map(float, found[name][1:])) for name in LOOKS if name in found}
    leader = min(HEURISTICS, key=lambda name: times[name])
    start = Circuits(found[leader][0])
    _, optimum, bound = exact_circuits(where, demand, routing=routing, seconds=config.seconds, start=start)
    optima = {"optimum_s": optimum, "bound_s": bound, "proved": optimum <= bound * (1 + PROVED)}
    for name, (paced, max_min) in {**times, BEST: times[leader]}.items():
        times_row = {"time_s": paced, "max_min_s": max_min, "degree_bound_s": float(degree_bound)}
        yield {"policy": name} | times_row | optima | {"over": paced / bound, "max_min_over": max_min / bound}


@eqx.filter_jit
def _chosen(where: Region, demand, routing: str) -> tuple[dict[str, tuple[jax.Array, ...]], jax.Array]:
    """Circuits, paced and max-min fair time by policy; the degree bound."""
    found = {}
    for name, policy in policies(routing).items():
        circuits = policy(demand, where).circuits
        times = (judge(where, circuits, demand, routing=routing) for judge in (fluid_lower_bound, all_to_all_time))
        found[name] = circuits.count, *times
    return found, degree_bound(where, demand)


def _told(row: Row) -> str:
    place = ", ".join(str(row[field]) for field in ("servers", "routing", "family", "seed"))
    proof = "proved" if row["proved"] else f"not proved, bound {row['bound_s']:.4g} s"
    return f"{place}: optimum {row['optimum_s']:.4g} s ({proof}), {row['policy']} {row['over']:.4f} times that"


def summary(rows: Rows) -> list[Row]:
    """Time over the optimum: a line per size, routing and policy."""
    over = {"mean": of("over"), "p90": of("over", p90), "worst": of("over", max), "max-min mean": of("max_min_over")}
    return summed(rows, GROUP, **over, instances=len, proved=lambda here: sum(bool(row["proved"]) for row in here))


def table(rows: Rows) -> str:
    """A line per size, routing and policy."""
    return report.plain(summary(rows))


def _labelled(rows: Rows) -> list[Row]:
    return [dict(row) | {"label": LOOKS[row["policy"]].label} for row in rows]


MEAN: dict[str, Any] = {"middle": np.mean, "beside": "{:.3f}   {:.3f}", "head": "mean    p90"}
RATIO = Axis("over", "time over the best there is", log=True)
PANEL = Dots(RATIO, Axis("label"), "policy", LOOKS, title="{routing}, {servers} servers", **MEAN)
PICTURE = Picture((PANEL,), "routing", "servers", shown=_labelled, width=4.4, key=False)


def verdicts(rows: Rows) -> list[Verdict]:
    """The paper's greedy and the best heuristic over proved optima; nothing is published."""
    proved = [row for row in rows if row["proved"] and row["policy"] in ("greedy, printed", BEST)]
    mean_and_worst = lambda here: f"mean {of('over')(here):.3f}, worst {of('over', max)(here):.2f}"  # noqa: E731
    return measured(proved, GROUP, "over the optimum, {policy}, {routing}, {servers} servers", "{}", mean_and_worst)


SCRIPT = Script(Config, quick={"servers": (8,), "seeds": 2}, dtype="float64")
SCRIPT.start(__name__)
