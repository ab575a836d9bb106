"""What does the network of a cluster cost, by its size and the bandwidth of its NICs?

Every fabric that has a price, on switch trees of three tiers as published, and of two where one fits. Source: arXiv
2501.03905, networking cost against cluster size and bandwidth. Published: a fat-tree costs 1.524, 1.790, 2.289 and
2.331 times as much as mFabric at 100, 200, 400 and 800 Gbps.
"""

import dataclasses
from itertools import product
from typing import Any

from mfabric_jax.fabric import Prices, cluster_cost
from mfabric_jax.fabric.tree import Tree
from mfabric_jax.report import numerals

from .pictures import beside, lines
from .rows import Row, Rows, adding, picked, pivot, then, told
from .script import COMPARED, PRICED, Found, Script, Verdict, against, check

PUBLISHED_TIERS = 3
PUBLISHED = {100.0: 1.524, 200.0: 1.790, 400.0: 2.289, 800.0: 2.331}  # Gbps -> a fat-tree over mFabric
ROUNDED = 0.0005  # of ratios published with three decimals
WITHOUT_CHOICE = {"rail-only": (2,), "topoopt": (None,)}  # a rail is a tree of two tiers; a patch panel is none
RADIX, GPUS, NICS, OVERSUBSCRIPTION = 64, 8, 8, 3.0
ON_A_TREE = {"mfabric": 2, "rail-only": 1}  # of a server's NICs; each rail is a tree of its own


@dataclasses.dataclass(frozen=True)
class Config:
    """What to price."""

    fabrics: tuple[str, ...] = COMPARED  # Of those that have a price.
    servers: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)  # Cluster sizes, of 8 GPUs and 8 NICs each.
    nic_gbps: tuple[float, ...] = (100.0, 200.0, 400.0, 800.0)  # Bandwidth of every NIC.
    tiers: tuple[int, ...] = (3, 2)  # Tiers of the switch trees.

    def __post_init__(self):
        check(self, known={"fabrics": PRICED}, whole={1: "servers"})
        for gbps in self.nic_gbps:
            Prices().price_of("nic", gbps)
        for tiers in self.tiers:
            room(self.fabrics[0], tiers)


def room(fabric: str, tiers: int) -> int:
    """NICs that one tree has room for."""
    over = OVERSUBSCRIPTION if fabric == "oversub-fat-tree" else 1.0
    return Tree(1, radix=RADIX, tiers=tiers, oversubscription=over).most_hosts


def run(config: Config) -> Found:
    """A row for each fabric, number of tiers, bandwidth and size.

    - `nics_on_a_tree`: NICs that one tree has to join; on rail-only each rail is a tree of its own.
    - `fits`: the switch tree has room for its NICs; None where there is no tree.
    - `over_mfabric`: cost over that of mFabric on three tiers, of the same size and bandwidth.
    """
    for fabric, gbps, servers in product(config.fabrics, config.nic_gbps, config.servers):
        for tiers in WITHOUT_CHOICE.get(fabric, config.tiers):
            over = OVERSUBSCRIPTION if fabric == "oversub-fat-tree" else 1.0
            cost = _priced(fabric, servers, gbps, tiers=tiers or PUBLISHED_TIERS, oversubscription=over)
            mfabric = _priced("mfabric", servers, gbps)
            row = {"fabric": fabric, "tiers": tiers, "nic_gbps": gbps, "servers": servers, "gpus": servers * GPUS}
            row |= {"nics_on_a_tree": None, "fits": None}
            if tiers is not None:
                nics = servers * ON_A_TREE.get(fabric, NICS)
                row |= {"nics_on_a_tree": nics, "fits": nics <= room(fabric, tiers)}
            costs = {"network_cost_usd": cost, "usd_per_gpu": cost / (servers * GPUS), "over_mfabric": cost / mfabric}
            yield row | costs


def _priced(fabric: str, servers: int, gbps: float, **tree: Any) -> float:
    dollars = cluster_cost(fabric, servers, gbps, **tree)
    assert dollars is not None
    return dollars


WHO, millions = ("fabric", "tiers"), adding(**{"M$": lambda row: numerals.millions(row["network_cost_usd"])})
table = told(  # what no size changes comes last
    then(millions, pivot((*WHO, "servers", "fits"), "M$ {nic_gbps:g}G", "M$")),
    pivot(WHO, "$/GPU {nic_gbps:g}G", "usd_per_gpu"),
    pivot(WHO, "over mFabric {nic_gbps:g}G", "over_mfabric"),
)


def _drawn(rows: Rows) -> list[Row]:
    """Trees that have room; those of two tiers are named so where there is a choice."""
    fitting = [row for row in millions(rows) if row["fits"] is not False]
    return adding(
        design=lambda row: row["fabric"] + (", two tiers" if row["tiers"] == 2 and row["fabric"] != "rail-only" else "")
    )(fitting)


SERVERS, PANEL = ("servers", "servers"), {"by": "{design}", "panel": "{nic_gbps:g} Gbps"}
build = then(
    _drawn,
    beside(
        lines(SERVERS, ("M$", "network cost [M$]"), **PANEL),
        lines(SERVERS, ("over_mfabric", "cost over mFabric's (3 tiers)"), **PANEL),
    ),
)


def verdicts(rows: Rows) -> list[Verdict]:
    """The fat-tree over mFabric at every bandwidth, the same at all sizes."""
    tree = picked(rows, fabric="fat-tree", tiers=PUBLISHED_TIERS)
    found = {gbps: [row["over_mfabric"] for row in picked(tree, nic_gbps=gbps)] for gbps in PUBLISHED}
    return [
        against(f"cost of fat-tree over mFabric, {gbps:g} Gbps", found[gbps], ratio, form=".3f", allowed=ROUNDED)
        for gbps, ratio in PUBLISHED.items()
        if found[gbps]
    ]


SCRIPT = Script(Config)
SCRIPT.start(__name__)
