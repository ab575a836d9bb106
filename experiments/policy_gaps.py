"""How far from the best circuits there are is each policy, when it knows the demand?

Five families of drawn demand; circuits chosen for unsplit and split routing; times of paced flows (what the exact
programmes minimise) over the proved optimum, and of flows that share ports max-min fairly beside them.
"""

import dataclasses
import sys
from itertools import product

import equinox as eqx
import numpy as np

from mfabric_jax import report
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import RULES, exact_circuits, greedy, local_search, matching, threshold
from mfabric_jax.report import style
from mfabric_jax.report.figures.groups import Dots
from mfabric_jax.report.figures.panels import Axis, Picture
from mfabric_jax.routing import all_to_all_time, degree_bound, fluid_lower_bound

from .rows import Row, Rows, adding, measured, of, p90, summed, then
from .script import Found, Ports, Script, Verdict, check

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
class Config(Ports):
    """What to draw, and the region."""

    servers: tuple[int, ...] = (8, 12, 16)  # Sizes of the region.
    seeds: int = 12  # Instances of each family.
    routings: tuple[str, ...] = ROUTINGS  # What circuits are chosen for: unsplit, split.
    families: tuple[str, ...] = FAMILIES  # Kinds of demand.
    seconds: float = 60.0  # Limit on the search for one optimum.

    def __post_init__(self):
        known, whole = {"routings": ROUTINGS, "families": FAMILIES}, {4: "servers", 1: "seeds", 0: "optical_degree"}
        check(self, known=known, distinct="servers", whole=whole)
        check(self, positive="seconds nic_gbps", not_negative="electrical_nics")


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


def run(config: Config) -> Found:
    """A row for each size, routing, instance and policy; those of an instance are told when it is done.

    - `time_s`, `max_min_s`: paced and max-min fair.
    - `optimum_s`, `bound_s`: of the best circuits found, and below what no circuits are; equal if `proved`.
    - `over`, `max_min_over`: over `bound_s`.
    """
    instances = product(config.servers, config.routings, config.families, range(config.seeds))
    for servers, routing, family, seed in instances:
        place = {"servers": servers, "routing": routing, "family": family, "seed": seed}
        rows = [place | row for row in _rows(config, config.region(servers), demand_of(family, seed, servers), routing)]
        proof = "proved" if rows[0]["proved"] else f"not proved, bound {rows[0]['bound_s']:.4g} s"
        told = f"optimum {rows[0]['optimum_s']:.4g} s ({proof}), {BEST} {rows[-1]['over']:.4f} times that"
        print(f"{servers}, {routing}, {family}, {seed}: {told}", file=sys.stderr, flush=True)
        yield from rows


def _rows(config: Config, where: Region, demand, routing: str) -> list[Row]:
    circuits = _chosen(where, demand, routing)
    times = {name: tuple(map(float, _seconds(where, circuits[name], demand, routing))) for name in circuits}
    leader = min(HEURISTICS, key=lambda name: times[name])
    _, optimum, bound = exact_circuits(where, demand, routing=routing, seconds=config.seconds, start=circuits[leader])
    optima = {"optimum_s": optimum, "bound_s": bound, "proved": optimum <= bound * (1 + PROVED)}
    least = {"degree_bound_s": float(degree_bound(where, demand))}
    return [
        {"policy": name, "time_s": paced, "max_min_s": max_min}
        | least
        | optima
        | {"over": paced / bound, "max_min_over": max_min / bound}
        for name in LOOKS
        for paced, max_min in [times.get(name, times[leader])]
    ]


@eqx.filter_jit
def _seconds(where: Region, circuits: Circuits, demand, routing: str) -> tuple:
    """When an all-to-all ends [s]: if its flows are paced to end together, and if they share links max-min fairly."""
    return tuple(time(where, circuits, demand, routing=routing) for time in (fluid_lower_bound, all_to_all_time))


@eqx.filter_jit
def _chosen(where: Region, demand, routing: str) -> dict[str, Circuits]:
    """Circuits by policy."""
    chosen = {f"greedy, {rule}": greedy(demand, where, rule=rule) for rule in RULES}
    chosen |= {"matching": matching(demand, where), "threshold": threshold(demand, where, routing=routing)}
    chosen |= {"local-search": local_search(demand, where, routing=routing)}
    return {name: plan.circuits for name, plan in chosen.items()}


OVER = {"mean": of("over"), "p90": of("over", p90), "worst": of("over", max), "max-min mean": of("max_min_over")}
summary = summed(GROUP, **OVER, instances=len, proved=lambda here: sum(bool(row["proved"]) for row in here))
table = then(summary, report.plain)

MEAN = {"middle": np.mean, "beside": "{:.3f}   {:.3f}", "head": "mean    p90"}
RATIO = Axis("over", "time over the best there is", log=True)
PANEL = Dots(RATIO, Axis("label"), "policy", LOOKS, title="{routing}, {servers} servers", **MEAN)
PICTURE = Picture(
    (PANEL,), "routing", "servers", shown=adding(label=lambda row: LOOKS[row["policy"]].label), width=4.4, key=False
)


def verdicts(rows: Rows) -> list[Verdict]:
    """The paper's greedy and the best heuristic over proved optima; nothing is published."""
    proved = [row for row in rows if row["proved"] and row["policy"] in ("greedy, printed", BEST)]
    mean_and_worst = adding(found="mean {mean:.3f}, worst {worst:.2f}")
    claim = "over the optimum, {policy}, {routing}, {servers} servers"
    return measured(GROUP, claim, lambda here: here[0]["found"])(mean_and_worst(summary(proved)))


SCRIPT = Script(Config, quick={"servers": (8,), "seeds": 2}, dtype="float64")
SCRIPT.start(__name__)
