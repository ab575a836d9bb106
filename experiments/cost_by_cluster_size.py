"""What does the network of a cluster cost, by its size and the bandwidth of its NICs?

Every fabric that has a price, on switch trees of three tiers as published, and of two where one fits. Source: arXiv
2501.03905, networking cost against cluster size and bandwidth. Published: a fat-tree costs 1.524, 1.790, 2.289 and
2.331 times as much as mFabric at 100, 200, 400 and 800 Gbps.
"""

import dataclasses
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import NAMES as FABRICS
from mfabric_jax.fabric import Prices, cluster_cost
from mfabric_jax.fabric.registry import no_price
from mfabric_jax.fabric.tree import Tree
from mfabric_jax.report import numerals, style

from .pictures import Axis, Lines, Picture
from .rows import Row, Rows, adding, picked, pivot, then, told
from .script import COMPARED, Found, Script, Verdict, against, check

PUBLISHED_TIERS = 3
PUBLISHED = {100.0: 1.524, 200.0: 1.790, 400.0: 2.289, 800.0: 2.331}  # Gbps -> a fat-tree over mFabric
ROUNDED = 0.0005  # of ratios published with three decimals
WITHOUT_CHOICE = {"rail-only": (2,), "topoopt": (None,)}  # a rail is a tree of two tiers; a patch panel is none


@dataclasses.dataclass(frozen=True)
class Config:
    """What to price."""

    fabrics: tuple[str, ...] = COMPARED  # Also nvl72 and mfabric-cpo, with prices of your own.
    servers: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)  # Cluster sizes.
    nic_gbps: tuple[float, ...] = (100.0, 200.0, 400.0, 800.0)  # Bandwidth of every NIC.
    tiers: tuple[int, ...] = (3, 2)  # Tiers of the switch trees.
    radix: int = 64  # Ports of a switch: they bound how many NICs a tree has room for.
    gpus: int = 8  # GPUs of a server.
    nics: int = 8  # NICs of a server, on all fabrics but mfabric.
    optical_degree: int = 6  # mfabric: NICs of a server on the optical switch.
    electrical_nics: int = 2  # mfabric: NICs of a server on the switch tree.
    oversubscription: float = 3.0  # Of oversub-fat-tree, at the edge.
    prices: str | None = None  # A .toml or .json file of your own prices.

    def __post_init__(self):
        whole = {1: "gpus nics servers", 0: "optical_degree electrical_nics"}
        check(self, distinct="servers nic_gbps tiers", known={"fabrics": FABRICS}, whole=whole)
        if self.optical_degree + self.electrical_nics == 0:
            raise InputError("optical_degree and electrical_nics must not both be 0.")
        for gbps in self.nic_gbps:
            self.price_table.at("nic", gbps)
        for place in product(self.fabrics, self.tiers):
            self.room(*place)

    @cached_property
    def price_table(self) -> Prices:
        """The prices in force."""
        return Prices() if self.prices is None else Prices.read(self.prices)

    def over(self, fabric: str) -> float:
        """Oversubscription of a fabric's tree."""
        return self.oversubscription if fabric == "oversub-fat-tree" else 1.0

    def room(self, fabric: str, tiers: int) -> int:
        """NICs that one tree has room for."""
        return Tree(1, radix=self.radix, tiers=tiers, oversubscription=self.over(fabric)).most_hosts

    def cost(self, fabric: str, tiers: int | None, gbps: float, servers: int) -> Any:
        """Dollars, None without a price."""
        own = {field: getattr(self, field) for field in ("gpus", "nics", "optical_degree", "electrical_nics")}
        own |= {"tiers": tiers or PUBLISHED_TIERS, "oversubscription": self.over(fabric)}
        return cluster_cost(fabric, servers, gbps, self.price_table, **own)


def run(config: Config) -> Found:
    """A row for each fabric, number of tiers, bandwidth and size.

    - `nics_on_a_tree`: NICs that one tree has to join; on rail-only each rail is a tree of its own.
    - `fits`: the switch tree has room for its NICs; None where there is no tree.
    - `over_mfabric`: cost over that of mFabric on three tiers, of the same size and bandwidth.
    """
    joined = {"mfabric": config.electrical_nics, "rail-only": 1}
    for fabric, gbps, servers in product(config.fabrics, config.nic_gbps, config.servers):
        mfabric = config.cost("mfabric", PUBLISHED_TIERS, gbps, servers)
        for tiers in WITHOUT_CHOICE.get(fabric, config.tiers):
            cost, gpus = config.cost(fabric, tiers, gbps, servers), servers * config.gpus
            place = {"fabric": fabric, "tiers": tiers, "nic_gbps": gbps, "servers": servers, "gpus": gpus}
            nics = None if tiers is None else servers * joined.get(fabric, config.nics)
            place |= {"nics_on_a_tree": nics, "fits": None if tiers is None else nics <= config.room(fabric, tiers)}
            costs = (None,) * 3 if cost is None else (cost, cost / gpus, cost / mfabric)
            yield place | dict(zip(("network_cost_usd", "usd_per_gpu", "over_mfabric"), costs, strict=True))


def _millions(row: Any) -> float | None:
    return None if row["network_cost_usd"] is None else numerals.millions(row["network_cost_usd"])


WHO, millions = ("fabric", "tiers"), adding(**{"M$": _millions})
table = told(  # what no size changes comes last
    then(millions, pivot((*WHO, "servers", "fits"), "M$ {nic_gbps:g}G", "M$")),
    pivot(WHO, "$/GPU {nic_gbps:g}G", "usd_per_gpu"),
    pivot(WHO, "over mFabric {nic_gbps:g}G", "over_mfabric"),
)


def _drawn(rows: Rows) -> list[Row]:
    """What has a price and whose tree has room."""
    known = [row for row in rows if row["network_cost_usd"] is not None and row["fits"] is not False]
    return adding(two_tiers=lambda row: row["tiers"] == 2 and row["fabric"] not in WITHOUT_CHOICE)(millions(known))


def _unpriced(rows: Rows) -> str:
    fabrics = sorted({row["fabric"] for row in rows if row["network_cost_usd"] is None})
    names = ", ".join(style.fabric(fabric).label for fabric in fabrics)
    return f"Without a public price, left out: {names}." if names else ""


SERVERS, TWO = Axis("servers", "servers", log=True, ticks=str), "on two tiers; lines end where a tree is full"
SAME = {"by": "fabric", "looks": style.FABRICS, "under": "fat-tree", "dashed": ("two_tiers", TWO)}
COST = Lines(SERVERS, Axis("M$", "network cost [M$]", log=True), title="{nic_gbps:g} Gbps", **SAME)
RATIO = Lines(SERVERS, Axis("over_mfabric", f"cost over mFabric's ({PUBLISHED_TIERS} tiers)", low=0), **SAME)
NEEDS = "fabrics with a price"
PICTURE = Picture((COST, RATIO), "", "nic_gbps", shown=_drawn, heading=_unpriced, needs=NEEDS, share_y="row")


def verdicts(rows: Rows) -> list[Verdict]:
    """The fat-tree over mFabric at every bandwidth, the same at all sizes."""
    tree = picked(rows, fabric="fat-tree", tiers=PUBLISHED_TIERS)
    found = {gbps: [row["over_mfabric"] for row in picked(tree, nic_gbps=gbps)] for gbps in PUBLISHED}
    return [
        against(f"cost of fat-tree over mFabric, {gbps:g} Gbps", found[gbps], ratio, form=".3f", allowed=ROUNDED)
        for gbps, ratio in PUBLISHED.items()
        if found[gbps]
    ]


def without_price(config: Config, folder: Path) -> str:
    """A sentence for every fabric that has none."""
    return "\n\n".join(why for fabric in config.fabrics if (why := no_price(fabric, config.price_table)))


SCRIPT = Script(
    Config, more=without_price, resolved=lambda config: {"price_table": dataclasses.asdict(config.price_table)}
)
SCRIPT.start(__name__)
