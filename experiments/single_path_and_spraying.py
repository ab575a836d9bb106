"""Do single paths per flow, well chosen, come close to packet spraying?

Collectives of training on full switch trees of 128 GPUs, a leaf-spine (non-blocking and oversubscribed) and a fat-tree
of three tiers. Every flow takes one shortest path, by a hash (ECMP) or the least loaded in falling order of size; or it
is split into parts of equal size first, each with a path of its own. Figure of merit: the collective's time over that
under spraying, flows sharing links max-min fairly. Source: "Challenging the NormalisedDemand for Packet Spraying in
Large-Scale
Distributed Training", arXiv 2407.00550: single paths with minimal splitting of flows congest leaf-spine fabrics no more
than spraying does, and come close to it in evaluation. The paths here are chosen with all flows known, in one pass:
permutations have paths without conflict on the non-blocking trees, which one pass does not find.

    python -m experiments.single_path_and_spraying --out results
"""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from mfabric_jax import report
from mfabric_jax.checks import InputError, distinct, not_negative, one_of, positive, whole
from mfabric_jax.fabric import Cluster, cluster
from mfabric_jax.flows import FlowProblem, Outcome, completion_times
from mfabric_jax.report import style
from mfabric_jax.routing import Routes, cluster_routes, link_bytes, links_of
from mfabric_jax.traffic.collectives import (
    Flows,
    all_to_all,
    hierarchical_all_reduce,
    point_to_point,
    ring_all_reduce,
    together,
)

from .script import Rows, Script, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "single_path_and_spraying"
GPUS = 8  # of a server, a NIC each
NIC_GBPS = 400.0  # of every link of the trees: no ratio depends on it
BYTES = 1e8  # of a GPU: no ratio depends on it either
FABRICS = {"leaf-spine": "Leaf-spine", "oversub-leaf-spine": "Leaf-spine", "fat-tree": "Fat-tree, three tiers"}
SINGLE = ("ecmp", "least-loaded")
LOOKS = {
    ("ecmp", False): style.Look("Hashed ECMP", "#D55E00"),
    ("ecmp", True): style.Look("Hashed ECMP, {} parts", "#E69F00"),
    ("least-loaded", False): style.Look("Least loaded", "#0072B2"),
    ("least-loaded", True): style.Look("Least loaded, {} parts", "#56B4E9"),
}
GROUP = ("fabric", "traffic", "routing", "parts")
CLOSE = 0.05  # what counts as close to spraying


@dataclasses.dataclass(frozen=True)
class Config:
    """Which collectives, on which trees."""

    fabrics: tuple[str, ...] = tuple(FABRICS)
    traffic: tuple[str, ...] = (
        "all-to-all",
        "skewed-all-to-all",
        "ring-all-reduce",
        "hierarchical-all-reduce",
        "permutation",
        "scattered-jobs",
    )
    """all-to-all, skewed-all-to-all, ring-all-reduce, hierarchical-all-reduce, permutation, scattered-jobs."""
    seeds: int = 20
    """Draws of the hash, and of what is random in the traffic."""
    parts: tuple[int, ...] = (1, 4)
    """Into how many parts of equal size flows are split."""
    servers: int = 16
    """Servers of 8 GPUs with a NIC each."""
    radix: int = 16
    """Ports of a switch of the leaf-spines."""
    fat_tree_radix: int = 8
    """Ports of a switch of the fat-tree."""
    oversubscription: float = 3.0
    """Of oversub-leaf-spine."""
    group: int = 16
    """GPUs of an all-to-all, and of a scattered job."""
    rings: int = 4
    """Rings of ring-all-reduce side by side: GPUs of equal rank modulo that many."""
    exponent: float = 1.0
    """Skew: the n-th most popular GPU of a group receives in proportion to 1 / n^exponent."""

    def __post_init__(self):
        for field in ("fabrics", "traffic", "parts"):
            distinct(field, getattr(self, field))
        for fabric in self.fabrics:
            one_of("fabric", fabric, FABRICS)
        for name in self.traffic:
            one_of("traffic", name, TRAFFIC)
        for parts in self.parts:
            whole("parts", parts)
        whole("seeds", self.seeds)
        whole("servers", self.servers, at_least=2)
        not_negative("exponent", self.exponent)
        positive("oversubscription", self.oversubscription)
        for field in ("group", "rings"):
            if self.gpus % whole(field, getattr(self, field)):
                raise InputError(f"{field} must divide the {self.gpus} GPUs, got {getattr(self, field)}.")
        if self.rings == self.gpus:
            raise InputError(f"rings must leave several GPUs to a ring, got {self.rings} of {self.gpus} GPUs.")
        if self.group <= GPUS:
            raise InputError(f"group must be more GPUs than the {GPUS} of a server, got {self.group}.")
        for fabric in self.fabrics:
            self.cluster(fabric)

    @property
    def gpus(self) -> int:
        return self.servers * GPUS

    def over(self, fabric: str) -> float:
        """Oversubscription of a fabric."""
        return self.oversubscription if fabric == "oversub-leaf-spine" else 1.0

    def cluster(self, fabric: str) -> Cluster:
        """The cluster of a fabric, without propagation."""
        tiers, radix = (3, self.fat_tree_radix) if fabric == "fat-tree" else (2, self.radix)
        over = self.over(fabric)
        return cluster(
            "fat-tree", self.servers, NIC_GBPS, tiers=tiers, radix=radix, oversubscription=over, link_delay_s=0.0
        )

    @cached_property
    def clusters(self) -> dict[str, Cluster]:
        """The cluster of every fabric."""
        return {fabric: self.cluster(fabric) for fabric in self.fabrics}


def _neighbours(config: Config) -> np.ndarray:
    return np.arange(config.gpus).reshape(-1, config.group)


def _all_to_all(config: Config, rng: np.random.Generator) -> Flows:
    """Of every run of neighbouring GPUs at once, all pairs alike."""
    return all_to_all(_neighbours(config), BYTES / config.group)


def _skewed(config: Config, rng: np.random.Generator) -> Flows:
    """The same, but that receivers are popular in a random order."""
    members = _neighbours(config)
    share = np.arange(1, config.group + 1.0) ** -config.exponent
    share = rng.permuted(np.broadcast_to(share / share.sum(), members.shape), axis=1)
    return all_to_all(members, np.broadcast_to(BYTES * share[:, None], (*members.shape, config.group)))


def _rings(config: Config, rng: np.random.Generator) -> Flows:
    """A ring through all GPUs of equal rank modulo `rings`, for each rank."""
    return ring_all_reduce(np.arange(config.gpus).reshape(-1, config.rings).T, BYTES)


def _hierarchical(config: Config, rng: np.random.Generator) -> Flows:
    """Of all GPUs."""
    return hierarchical_all_reduce(np.arange(config.gpus).reshape(-1, GPUS), BYTES)


def _permutation(config: Config, rng: np.random.Generator) -> Flows:
    """Every GPU sends to one GPU, and receives from one."""
    return point_to_point(np.arange(config.gpus), rng.permutation(config.gpus), BYTES)


def _scattered(config: Config, rng: np.random.Generator) -> Flows:
    """Jobs on GPUs drawn from the whole cluster: rings and all-to-alls in turn."""
    jobs = rng.permutation(config.gpus).reshape(-1, config.group)
    rings = ring_all_reduce(jobs[::2], BYTES / 2)
    return together(rings, all_to_all(jobs[1::2], BYTES / config.group)) if len(jobs) > 1 else rings


TRAFFIC = {
    "all-to-all": (_all_to_all, "All-to-alls"),
    "skewed-all-to-all": (_skewed, "Skewed all-to-alls"),
    "ring-all-reduce": (_rings, "Ring all-reduces"),
    "hierarchical-all-reduce": (_hierarchical, "Hierarchical all-reduce"),
    "permutation": (_permutation, "Permutation"),
    "scattered-jobs": (_scattered, "Scattered jobs"),
}


def flows_of(config: Config, traffic: str, seed: int) -> Flows:
    """The flows between servers of one draw. Those inside a server use its NVSwitch alone, and end long before."""
    flows = TRAFFIC[traffic][0](config, np.random.default_rng(seed))
    between = flows.src // GPUS != flows.dst // GPUS
    return Flows(*(column[between] for column in flows[:5]), flows.labels)


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each fabric, traffic, seed, routing and number of parts.

    - `time_s`: the last flow ends; `busiest_s`: bytes of the busiest link over what it carries in a second.
    - `over_spray`, `busiest_over_spray`: over those under spraying of the same flows.
    """
    solver = _Solver(config)
    cells = product(config.fabrics, config.traffic, range(config.seeds))
    return [row for fabric, traffic, seed in cells for row in _rows(config, solver, fabric, traffic, seed)]


def _rows(config: Config, solver: _Solver, fabric: str, traffic: str, seed: int) -> Iterator[dict[str, Any]]:
    flows = flows_of(config, traffic, seed)
    place = {"fabric": fabric, "oversubscription": config.over(fabric), "traffic": traffic, "seed": seed}
    spray_s, spray_busiest_s = solver(fabric, flows, "spray", seed)
    yield place | _ends("spray", 1, spray_s, spray_busiest_s, spray_s, spray_busiest_s)
    for routing, parts in product(SINGLE, config.parts):
        ends = solver(fabric, split(flows, parts), routing, seed)
        yield place | _ends(routing, parts, *ends, spray_s, spray_busiest_s)


def _ends(routing: str, parts: int, time_s: float, busiest_s: float, spray_s: float, spray_busiest_s: float) -> dict:
    return {
        "routing": routing,
        "parts": parts,
        "time_s": time_s,
        "busiest_s": busiest_s,
        "over_spray": time_s / spray_s,
        "busiest_over_spray": busiest_s / spray_busiest_s,
    }


def split(flows: Flows, parts: int) -> Flows:
    """Every flow as so many of equal size."""
    several = Flows(*(np.repeat(column, parts) for column in flows[:5]), flows.labels)
    return several._replace(size=several.size / parts)


class _Solver:
    """Completion times on tables of one shape, so that one program solves all."""

    def __init__(self, config: Config):
        self.clusters = config.clusters
        draws = product(config.traffic, range(config.seeds))
        self.flows = max(len(flows_of(config, *draw).src) for draw in draws) * max(config.parts)
        networks = [links_of(one, routing) for one in self.clusters.values() for routing in ("spray", "ecmp")]
        self.links = max(len(network.capacity) for network in networks)
        self.hops = 2 * max(one.tree.tiers for one in self.clusters.values())

    def __call__(self, fabric: str, flows: Flows, routing: str, seed: int) -> tuple[float, float]:
        """When the last flow ends, and the busiest link's bytes over its capacity [s]."""
        where = self.clusters[fabric]
        routes = cluster_routes(where, flows.src, flows.dst, routing=routing, seed=seed, size=flows.size)
        capacity = links_of(where, routing).capacity
        end = _completion(self._problem(capacity, routes), jnp.asarray(_padded(flows.size, (self.flows,)), "float32"))
        if end.outcome != Outcome.solved:
            raise InputError(f"the flows cannot all end: {Outcome[end.outcome]}")
        busiest = link_bytes(links_of(where, routing), routes, flows.size) / capacity
        return float(end.finish.max()), float(busiest.max())

    def _problem(self, capacity: np.ndarray, routes: Routes) -> FlowProblem:
        """The flows in a table of the common shape; rows behind them cross nothing and have no bytes."""
        table = self.flows, self.hops
        share = np.where(routes.hops >= 0, routes.share, 1)
        return FlowProblem(
            jnp.asarray(_padded(capacity, (self.links,), 1), "float32"),
            jnp.asarray(_padded(routes.hops, table, -1)),
            jnp.asarray(_padded(share, table, 1), "float32"),
        )


_completion = eqx.filter_jit(completion_times)


def _padded(array: np.ndarray, shape: tuple[int, ...], fill: float = 0) -> np.ndarray:
    added = [(0, size - own) for size, own in zip(shape, array.shape, strict=True)]
    return np.pad(array, added, constant_values=fill)


def groups(rows: Rows, key: str = "over_spray") -> dict[tuple, list[float]]:
    """What single paths took over spraying by (fabric, traffic, routing, parts), in the order of the rows."""
    found: dict[tuple, list[float]] = {}
    for row in rows:
        if row["routing"] != "spray":
            found.setdefault(tuple(row[field] for field in GROUP), []).append(row[key])
    return found


def _column(routing: str, parts: int) -> str:
    return routing if parts == 1 else f"{routing} x{parts}"


def table(rows: Rows) -> str:
    """Median and worst of the seeds, a line per fabric and collective; how close that is; the verdict."""
    lines: dict[tuple, dict[str, Any]] = {}
    for (fabric, traffic, routing, parts), over in groups(rows).items():
        line = lines.setdefault((fabric, traffic), {"fabric": fabric, "traffic": traffic})
        line[_column(routing, parts)] = f"{np.median(over):.2f} ({max(over):.2f})"
    head = "time over spraying's: median of the seeds (worst); xN: flows in N parts"
    columns = ["paths", report.Column("close", f"within {CLOSE:.0%}"), "cases", "largest median", "on", "worst"]
    tables = report.plain(list(lines.values())), report.plain(summary(rows), columns)
    return "\n\n".join([head, *tables, verdict(rows)])


def summary(rows: Rows) -> list[dict[str, Any]]:
    """How close each way to choose single paths comes: in how many cases, and how far the farthest medians are."""
    found, lines = groups(rows), []
    for way in dict.fromkeys(group[2:] for group in found):
        here = {group[:2]: over for group, over in found.items() if group[2:] == way}
        medians = {case: float(np.median(over)) for case, over in here.items()}
        close = sum(median <= 1 + CLOSE for median in medians.values())
        farthest = max(medians, key=lambda case: medians[case])
        lines.append(
            {"paths": _label(*way), "close": close, "cases": len(here), "largest median": medians[farthest]}
            | {"worst": max(map(max, here.values())), "on": f"{farthest[1]}, {farthest[0]}"}
        )
    return lines


def verdict(rows: Rows) -> str:
    """How close single paths come to spraying, as a sentence."""
    lines = summary(rows)
    told = "; ".join(f"{line['paths']} {line['close']} (up to {line['largest median']:.2f} times)" for line in lines)
    of = f"Of {lines[0]['cases']} cases, single paths take at most {CLOSE:.0%} longer than spraying (median): {told}."
    return textwrap.fill(of, 100)


def _label(routing: str, parts: int) -> str:
    return LOOKS[routing, parts > 1].label.format(parts)


def draw(rows: Rows, path: str | Path) -> Path:
    """Time over that of spraying by collective and routing, a panel per fabric; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: a dot per seed, a stroke and a number at the median."""
    found = groups(rows)
    fabrics, traffic, ways = (list(dict.fromkeys(group[part] for group in found)) for part in (0, 1, slice(2, 4)))
    figure = style.blank(2.6 + 3.4 * len(fabrics), 1.6 + len(traffic) * (0.2 + 0.19 * len(ways)))
    axes = figure.subplots(1, len(fabrics), sharex=True, sharey=True, squeeze=False)[0]
    for panel, fabric in zip(axes, fabrics, strict=True):
        _panel(panel, {group[1:]: over for group, over in found.items() if group[0] == fabric}, traffic, ways)
        over = next(row["oversubscription"] for row in rows if row["fabric"] == fabric)
        panel.set_title(f"{FABRICS[fabric]} {over:g}:1", loc="left")
    values = [value for over in found.values() for value in over]
    margin = 0.05 * (max(values) - min(values)) + 0.02
    axes[0].set_xlim(min(values) - margin, max(values) + margin)
    figure.legend(handles=_key(ways), loc="outside lower center", ncols=min(len(ways), 2 * len(fabrics)))
    return figure


def _panel(axes: Axes, found: Mapping[tuple, Sequence[float]], traffic: Sequence[str], ways: Sequence[tuple]) -> None:
    """A block of lines per collective, a line per routing."""
    rng, block = np.random.default_rng(0), len(ways) + 1
    beside = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": style.FONT - 1.5}
    for (name, *way), over in found.items():
        place = traffic.index(name) * block + ways.index(tuple(way))
        colour, middle = LOOKS[way[0], way[1] > 1].colour, float(np.median(over))
        axes.plot(over, place + rng.uniform(-0.25, 0.25, len(over)), ".", color=colour, markersize=4, alpha=0.6)
        axes.plot([middle, middle], [place - 0.4, place + 0.4], color=colour, linewidth=2.4)
        axes.annotate(f"{middle:.2f}", (1.02, place), **beside)
    axes.annotate("median", (1.02, -1), color=style.FAINT, annotation_clip=False, **beside)
    axes.axvline(1, color=style.INK, linewidth=0.8, zorder=0)
    for edge in range(1, len(traffic)):
        axes.axhline(edge * block - 1, color=style.FAINT, linewidth=0.5)
    middles = [(len(ways) - 1) / 2 + block * place for place in range(len(traffic))]
    axes.set_yticks(middles, [TRAFFIC[name][1] for name in traffic])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(traffic) * block - 1, -1)
    axes.set_xlabel("time over that of spraying")
    axes.grid(axis="x")


def _key(ways: Sequence[tuple[str, int]]) -> list:
    """Handles of the legend."""
    from matplotlib.lines import Line2D

    colours = [LOOKS[routing, parts > 1].colour for routing, parts in ways]
    names = [_label(*way) for way in ways]
    marks = {"marker": ".", "markersize": 8, "linewidth": 2.4}
    return [Line2D([], [], color=colour, label=name, **marks) for colour, name in zip(colours, names, strict=True)]


def verdicts(rows: Rows) -> list[Verdict]:
    """In how many cases the median of single paths is close to spraying; published in words: "close to it"."""
    return [
        Verdict(
            f"{line['paths']}: medians within {CLOSE:.0%} of spraying",
            f"{line['close']} of {line['cases']}, up to {line['largest median']:.2f}",
        )
        for line in summary(rows)
    ]


SCRIPT = Script(
    name=NAME,
    question="Single paths against packet spraying: a row per fabric, collective, seed, routing and number of parts.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"seeds": 3},
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
