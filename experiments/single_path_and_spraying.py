"""Do single paths per flow, well chosen, come close to packet spraying?

Collectives of training on full switch trees of 128 GPUs, a leaf-spine (non-blocking and oversubscribed) and a fat-tree
of three tiers. Every flow takes one shortest path, by a hash (ECMP) or the least loaded in falling order of size; or it
is split into equal parts first, each with a path of its own. Figure of merit: the collective's time over that under
spraying, flows sharing links max-min fairly. Source: arXiv 2407.00550: single paths with minimal splitting congest
leaf-spine fabrics no more than spraying does. The paths here are chosen in one pass, which does not find the paths
without conflict that permutations have on the non-blocking trees.
"""

import dataclasses
import textwrap
from functools import cached_property
from itertools import product
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Cluster, cluster
from mfabric_jax.flows import FlowProblem, Outcome, completion_times
from mfabric_jax.report import style
from mfabric_jax.report.figures.groups import Dots
from mfabric_jax.report.figures.panels import Axis, Picture
from mfabric_jax.routing import cluster_routes, links_of
from mfabric_jax.routing.transfers import link_bytes
from mfabric_jax.traffic import Flows, collectives

from .rows import Row, Rows, adding, grouped, listed, measured, of, pivot, summed, then, told
from .script import Found, Script, check

GPUS = 8  # of a server, a NIC each
NIC_GBPS = 400.0  # of every link of the trees: no ratio depends on it
BYTES = 1e8  # of a GPU: no ratio depends on it either
FABRICS = {"leaf-spine": "Leaf-spine", "oversub-leaf-spine": "Leaf-spine", "fat-tree": "Fat-tree, three tiers"}
OVER = {"leaf-spine": 1.0, "oversub-leaf-spine": 3.0, "fat-tree": 1.0}  # oversubscription
SINGLE = ("ecmp", "least-loaded")
LOOKS = {
    ("ecmp", False): style.Look("Hashed ECMP", "#D55E00"),
    ("ecmp", True): style.Look("Hashed ECMP, {} parts", "#E69F00"),
    ("least-loaded", False): style.Look("Least loaded", "#0072B2"),
    ("least-loaded", True): style.Look("Least loaded, {} parts", "#56B4E9"),
}
TRAFFIC = {
    "all-to-all": "All-to-alls",
    "skewed-all-to-all": "Skewed all-to-alls",
    "ring-all-reduce": "Ring all-reduces",
    "hierarchical-all-reduce": "Hierarchical all-reduce",
    "permutation": "Permutation",
    "scattered-jobs": "Scattered jobs",
}
GROUP = ("fabric", "traffic", "routing", "parts")
CLOSE = 0.05  # what counts as close to spraying


@dataclasses.dataclass(frozen=True)
class Config:
    """Which collectives, on which trees."""

    fabrics: tuple[str, ...] = tuple(FABRICS)
    traffic: tuple[str, ...] = tuple(TRAFFIC)
    """all-to-all, skewed-all-to-all, ring-all-reduce, hierarchical-all-reduce, permutation, scattered-jobs."""
    seeds: int = 20  # Draws of the hash, and of what is random in the traffic.
    parts: tuple[int, ...] = (1, 4)  # Into how many parts of equal size flows are split.
    servers: int = 16  # Servers of 8 GPUs with a NIC each.
    radix: int = 16  # Ports of a switch of the leaf-spines.
    fat_tree_radix: int = 8  # Ports of a switch of the fat-tree.
    group: int = 16  # GPUs of an all-to-all, and of a scattered job.
    rings: int = 4  # Rings of ring-all-reduce side by side: GPUs of equal rank modulo that many.

    def __post_init__(self):
        known, whole = {"fabrics": FABRICS, "traffic": TRAFFIC}, {2: "servers", 1: "parts seeds group rings"}
        check(self, known=known, distinct="parts", whole=whole)
        for field in ("group", "rings"):
            if self.gpus % getattr(self, field):
                raise InputError(f"{field} must divide the {self.gpus} GPUs, got {getattr(self, field)}.")
        if self.rings == self.gpus:
            raise InputError(f"rings must leave several GPUs to a ring, got {self.rings} of {self.gpus} GPUs.")
        if self.group <= GPUS:
            raise InputError(f"group must be more GPUs than the {GPUS} of a server, got {self.group}.")
        _ = self.clusters

    @property
    def gpus(self) -> int:
        return self.servers * GPUS

    @cached_property
    def clusters(self) -> dict[str, Cluster]:
        """The cluster of every fabric, without propagation."""
        trees = {fabric: {"tiers": 2, "radix": self.radix} for fabric in FABRICS}
        trees["fat-tree"] = {"tiers": 3, "radix": self.fat_tree_radix}
        return {
            name: cluster(
                "fat-tree", self.servers, NIC_GBPS, **trees[name], oversubscription=OVER[name], link_delay_s=0.0
            )
            for name in self.fabrics
        }


def flows_of(config: Config, traffic: str, seed: int) -> Flows:
    """The flows between servers of one draw. Those inside a server use its NVSwitch alone, and end long before."""
    flows = _collective(config, traffic, np.random.default_rng(seed))
    between = flows.src // GPUS != flows.dst // GPUS
    return Flows(*(column[between] for column in flows[:5]), flows.labels)


def _collective(config: Config, traffic: str, rng: np.random.Generator) -> Flows:
    gpus = np.arange(config.gpus)
    neighbours, each = gpus.reshape(-1, config.group), BYTES / config.group
    match traffic:
        case "all-to-all":  # of every run of neighbouring GPUs at once, all pairs alike
            return collectives.all_to_all(neighbours, each)
        case "skewed-all-to-all":  # the same, but that receivers are popular in a random order
            share = 1 / np.arange(1, config.group + 1.0)  # the n-th most popular receives in proportion to 1 / n
            share = rng.permuted(np.broadcast_to(share / share.sum(), neighbours.shape), axis=1)
            return collectives.all_to_all(
                neighbours, np.broadcast_to(BYTES * share[:, None], (*neighbours.shape, config.group))
            )
        case "ring-all-reduce":  # through all GPUs of equal rank modulo `rings`, for each rank
            return collectives.ring_all_reduce(gpus.reshape(-1, config.rings).T, BYTES)
        case "hierarchical-all-reduce":
            return collectives.hierarchical_all_reduce(gpus.reshape(-1, GPUS), BYTES)
        case "permutation":  # every GPU sends to one GPU, and receives from one
            return collectives.point_to_point(gpus, rng.permutation(config.gpus), BYTES)
        case _:  # jobs on GPUs drawn from the whole cluster: rings and all-to-alls in turn
            jobs = rng.permutation(config.gpus).reshape(-1, config.group)
            rings = collectives.ring_all_reduce(jobs[::2], BYTES / 2)
            return collectives.together(rings, collectives.all_to_all(jobs[1::2], each)) if len(jobs) > 1 else rings


def run(config: Config) -> Found:
    """A row for each fabric, traffic, seed, routing and number of parts.

    - `time_s`: the last flow ends; `busiest_s`: bytes of the busiest link over what it carries in a second.
    - `over_spray`, `busiest_over_spray`: over those under spraying of the same flows.
    """
    solver = _Solver(config)
    for fabric, traffic, seed in product(config.fabrics, config.traffic, range(config.seeds)):
        flows = flows_of(config, traffic, seed)
        place = {"fabric": fabric, "oversubscription": OVER[fabric], "traffic": traffic, "seed": seed}
        spray = solver(fabric, flows, "spray", seed)
        for routing, parts in (("spray", 1), *product(SINGLE, config.parts)):
            time, busiest = spray if routing == "spray" else solver(fabric, split(flows, parts), routing, seed)
            times = {"routing": routing, "parts": parts, "time_s": time, "busiest_s": busiest}
            yield place | times | {"over_spray": time / spray[0], "busiest_over_spray": busiest / spray[1]}


def split(flows: Flows, parts: int) -> Flows:
    """Every flow as so many of equal size."""
    several = Flows(*(np.repeat(column, parts) for column in flows[:5]), flows.labels)
    return several._replace(size=several.size / parts)


class _Solver:
    """Completion times on tables of one shape, so that one program solves all."""

    def __init__(self, config: Config):
        self.clusters = config.clusters
        draws = product(config.traffic, range(config.seeds))
        flows = max(len(flows_of(config, *draw).src) for draw in draws) * max(config.parts)
        networks = [links_of(one, routing) for one in self.clusters.values() for routing in ("spray", "ecmp")]
        self.links = max(len(network.capacity) for network in networks)
        self.table = flows, 2 * max(one.tree.tiers for one in self.clusters.values())

    def __call__(self, fabric: str, flows: Flows, routing: str, seed: int) -> tuple[float, float]:
        """When the last flow ends, and the busiest link's bytes over its capacity [s].

        Rows behind the flows cross nothing and have no bytes.
        """
        where, network = self.clusters[fabric], links_of(self.clusters[fabric], routing)
        routes = cluster_routes(where, flows.src, flows.dst, routing=routing, seed=seed, size=flows.size)
        share, capacity = np.where(routes.hops >= 0, routes.share, 1), _padded(network.capacity, (self.links,), 1)
        hops = _padded(routes.hops, self.table, -1)
        problem = FlowProblem(capacity.astype("float32"), hops, _padded(share, self.table, 1).astype("float32"))
        end = _completion(problem, _padded(flows.size, self.table[:1], 0).astype("float32"))
        if end.outcome != Outcome.solved:
            raise InputError(f"the flows cannot all end: {Outcome[end.outcome]}")
        return float(end.finish.max()), float((link_bytes(network, routes, flows.size) / network.capacity).max())


_completion = eqx.filter_jit(completion_times)


def _padded(array: np.ndarray, shape: tuple[int, ...], fill: float) -> Any:
    added = [(0, size - own) for size, own in zip(shape, array.shape, strict=True)]
    return jnp.asarray(np.pad(array, added, constant_values=fill))


named = adding(
    paths=lambda row: LOOKS[row["routing"], row["parts"] > 1].label.format(row["parts"]),
    column=lambda row: row["routing"] if row["parts"] == 1 else f"{row['routing']} x{row['parts']}",
    where=lambda row: f"{FABRICS[row['fabric']]} {row['oversubscription']:g}:1",
    collective=lambda row: TRAFFIC[row["traffic"]],
)


def single(rows: Rows) -> list[Row]:
    """What does not spray, with labels."""
    return named([row for row in rows if row["routing"] != "spray"])


# what single paths took over spraying: median and worst of the seeds, a line per case and way
TIMES = {"median": of("over_spray", np.median), "worst": of("over_spray", max)}
medians = then(single, summed((*GROUP, "paths", "column"), **TIMES))


def summary(rows: Rows) -> list[Row]:
    """How close each way to choose single paths comes: in how many cases, and how far the farthest medians are."""
    lines = []
    for (paths,), here in grouped(medians(rows), "paths").items():
        farthest = max(here, key=lambda line: line["median"])
        line = {"paths": paths, "close": sum(line["median"] <= 1 + CLOSE for line in here), "cases": len(here)}
        line |= {"largest median": farthest["median"], "worst": max(line["worst"] for line in here)}
        lines.append(line | {"on": f"{farthest['traffic']}, {farthest['fabric']}"})
    return lines


def verdict(rows: Rows) -> str:
    """How close single paths come to spraying, as a sentence."""
    lines = summary(rows)
    ways = "; ".join(f"{line['paths']} {line['close']} (up to {line['largest median']:.2f} times)" for line in lines)
    of = f"Of {lines[0]['cases']} cases, single paths take at most {CLOSE:.0%} longer than spraying (median): {ways}."
    return textwrap.fill(of, 100)


HEAD = "time over spraying's: median of the seeds (worst); xN: flows in N parts"
CASES = pivot(("fabric", "traffic"), "{column}", "{median:.2f} ({worst:.2f})")
WAYS = listed("paths", ("close", f"within {CLOSE:.0%}"), "cases", "largest median", "on", "worst")
table = told(HEAD, then(medians, CASES), then(summary, WAYS), verdict)

MEDIAN = {"middle": np.median, "head": "median", "title": "{where}", "each": 0.19}
RATIO = Axis("over_spray", "time over that of spraying", lines=(1,))
PANEL = Dots(RATIO, Axis("paths"), "paths", block="collective", blocks_named=True, **MEDIAN)
PICTURE = Picture((PANEL,), across="where", shown=single, width=3.6)


# published in words: "close to it"
CLAIM = f"{{paths}}: medians within {CLOSE:.0%} of spraying"
FOUND = adding(found="{close} of {cases}, up to {largest median:.2f}")
verdicts = then(summary, FOUND, measured(["paths"], CLAIM, lambda lines: lines[0]["found"]))

SCRIPT = Script(Config, quick={"seeds": 3})
SCRIPT.start(__name__)
