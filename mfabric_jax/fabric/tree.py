"""Switch trees: one switch, two tiers (leaf-spine) or three (fat-tree), any radix, oversubscribed at a chosen tier.

Every edge switch links to every aggregation switch of its pod (two tiers: to every spine). Aggregation switch a of each
pod links to each of the cores of a. An aggregation switch a and a core c identify a shortest path. Source: Al-Fares et
al., SIGCOMM 2008.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mfabric_jax.checks import InputError, one_of, positive, whole

TIERS = (1, 2, 3)
UP, DOWN = 0, 1


@dataclass(frozen=True)
class Tree:
    """`parts` separate trees of one shape, with equal runs of hosts (one part: an ordinary tree).

    - `hosts`: ports for NICs, all parts together; `radix`: ports of every switch; `tiers`: 1 (one switch), 2 or 3.
    - `oversubscription`: ratio of down to up ports of the switches at the "edge" or the "aggregation"; others are 1:1.
    - `planes`: number of such trees that every NIC is split over; a link stands for one link of each.
    - `leaf_hosts`: hosts below an edge switch, with one uplink each, narrower than a NIC by the oversubscription. None:
      one host for each down port, and uplinks as wide as NICs.

    The last edge switch and the last pod may be partly empty; such a switch uses only the uplinks that its hosts need
    (`used_uplinks`). Ports that the ratio leaves over stay unused (3:1 of 10 ports: 6 down, 2 up).
    """

    hosts: int
    radix: int = 64
    tiers: int = 3
    oversubscription: float = 1.0
    oversubscribed_at: str = "edge"
    parts: int = 1
    planes: int = 1
    leaf_hosts: int | None = None

    def __post_init__(self):
        whole("hosts", self.hosts)
        whole("radix", self.radix, at_least=2)
        whole("parts", self.parts)
        positive("oversubscription", self.oversubscription)
        one_of("at", self.oversubscribed_at, ("edge", "aggregation"))
        if self.tiers not in TIERS:
            raise InputError(f"tiers must be 1, 2 or 3, got {self.tiers!r}.")
        check_ratio(self.tiers, self.oversubscription, self.oversubscribed_at)
        if self.leaf_hosts is not None:
            whole("leaf_hosts", self.leaf_hosts)
        if self.hosts % self.parts:
            raise InputError(f"parts must divide the {self.hosts} hosts, got {self.parts}.")
        if self.tiers > 1 and (self.edge_ports[UP] == 0 or self.pod_ports[UP] == 0):
            raise InputError(f"radix {self.radix} is too small for {self.oversubscription:g}:1.")
        if self.hosts_per_part > self.most_hosts:
            of = f"{self.tiers} tier{'s' * (self.tiers > 1)}"
            more = "a larger radix" if self.tiers == 3 else f"{self.tiers + 1} tiers or a larger radix"
            raise InputError(
                f"a tree of {of} and radix {self.radix} has room for {self.most_hosts} hosts, got "
                f"{self.hosts_per_part}; choose {more}."
            )

    def _ports(self, ratio: float) -> tuple[int, int]:
        exact = Fraction(ratio).limit_denominator(1000)
        steps = self.radix // (exact.numerator + exact.denominator)
        return steps * exact.denominator, steps * exact.numerator

    @property
    def edge_ports(self) -> tuple[int, int]:
        """(up, down) ports of an edge switch; with one tier it has no up ports."""
        if self.tiers == 1:
            return 0, self.radix
        if self.leaf_hosts is not None:
            return self.leaf_hosts, self.leaf_hosts
        return self._ports(self.oversubscription if self.oversubscribed_at == "edge" else 1.0)

    @property
    def width(self) -> float:
        """Bandwidth of links between switches, in NICs."""
        return 1.0 if self.leaf_hosts is None else 1 / self.oversubscription

    @property
    def pod_ports(self) -> tuple[int, int]:
        """(up, down) ports of an aggregation switch. Two tiers: (1, radix), of a spine; one tier: (1, 1)."""
        if self.tiers < 3:
            return 1, self.radix if self.tiers == 2 else 1
        return self._ports(self.oversubscription if self.oversubscribed_at == "aggregation" else 1.0)

    @property
    def most_hosts(self) -> int:
        pods = self.radix if self.tiers == 3 else 1
        return self.edge_ports[DOWN] * self.pod_ports[DOWN] * pods

    @property
    def hosts_per_part(self) -> int:
        return self.hosts // self.parts

    @property
    def edges_per_part(self) -> int:
        return self.edges_of(self.hosts) // self.parts

    def edges_of(self, hosts: int) -> int:
        """Return the edge switches for `hosts` hosts, all parts together, even if the tiers above lack room."""
        return self.parts * -(-(hosts // self.parts) // self.edge_ports[DOWN])

    @property
    def used_uplinks(self) -> np.ndarray:
        """Uplinks that the hosts of each edge switch need, at least 1 [edges of all parts]."""
        down = self.edge_ports[DOWN]
        hosts = np.minimum(down, self.hosts_per_part - down * np.arange(self.edges_per_part))
        used = np.maximum(1, needed_uplinks(hosts, self.edge_ports)).astype(np.int64)
        return np.tile(used, self.parts)

    @property
    def uplink_parts(self) -> np.ndarray:
        """Fraction of each uplink that its edge switch needs if it spreads its bytes over all of them [edges x up]."""
        up = self.edge_ports[UP]
        return np.repeat(self.used_uplinks / max(1, up), up)

    @property
    def core_parts(self) -> np.ndarray:
        """Fraction of each link above the aggregation that its pod needs if it spreads its bytes over all of them
        [pods x up x climb]."""
        up, (climb, down) = self.edge_ports[UP], self.pod_ports
        used = np.zeros(self._counts[1])
        np.add.at(used, self.pod_of(np.arange(self._counts[0])), self.used_uplinks)
        return np.repeat(used / (up * down), up * climb)

    @property
    def pods_per_part(self) -> int:
        return math.ceil(self.edges_per_part / self.pod_ports[DOWN])

    @property
    def _counts(self) -> tuple[int, int]:
        return self.parts * self.edges_per_part, self.parts * self.pods_per_part

    @property
    def switches(self) -> tuple[tuple[str, int], ...]:
        """(kind, number) of the switches of all parts."""
        up, climb = self.edge_ports[UP], self.pod_ports[UP]
        edges, pods = self._counts
        if self.tiers == 1:
            return (("edge", edges),)
        if self.tiers == 2:
            return ("edge", edges), ("spine", pods * up)
        return ("edge", edges), ("aggregation", pods * up), ("core", self.parts * up * climb)

    def edge_of(self, host: np.ndarray) -> np.ndarray:
        part, offset = np.divmod(host, self.hosts_per_part)
        return part * self.edges_per_part + offset // self.edge_ports[DOWN]

    def pod_of(self, edge: np.ndarray) -> np.ndarray:
        part, offset = np.divmod(edge, self.edges_per_part)
        return part * self.pods_per_part + offset // self.pod_ports[DOWN]

    def part_of(self, host: np.ndarray) -> np.ndarray:
        return host // self.hosts_per_part

    def host_in(self, part: np.ndarray, host: np.ndarray) -> np.ndarray:
        """Return the host that is in `part` where `host` is in its own."""
        return part * self.hosts_per_part + host % self.hosts_per_part

    def switch_links(self, first: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Return the links between switches as (kind, tail, head).

        Switches are numbered from `first` in the order of `switches`. Runs of up and down links alternate: edge up
        [edge a], edge down, aggregation up [pod a c], ...
        """
        if self.tiers == 1:
            return []
        up, climb = self.edge_ports[UP], self.pod_ports[UP]
        counts = [count for _, count in self.switches]
        edge, a = (x.ravel() for x in np.mgrid[: counts[0], :up])
        low, high = first + edge, first + counts[0] + self.pod_of(edge) * up + a
        links = [("edge up", low, high), ("edge down", high, low)]
        if self.tiers == 3:
            pod, a, c = (x.ravel() for x in np.mgrid[: counts[1] // up, :up, :climb])
            low = first + counts[0] + pod * up + a
            high = first + counts[0] + counts[1] + (pod // self.pods_per_part * up + a) * climb + c
            links += [("aggregation up", low, high), ("aggregation down", high, low)]
        return links

    def means_above(self, hosts: np.ndarray) -> dict[str, np.ndarray]:
        """Return the mean of a number of `hosts` below each link between switches, in the order of `switch_links`."""
        up, climb = self.edge_ports[UP], self.pod_ports[UP]
        edge = self.edge_of(np.arange(self.hosts))
        below = {"edge": (edge, up), "aggregation": (self.pod_of(edge), up * climb)}
        return {
            kind: np.repeat(np.bincount(switch, hosts) / np.bincount(switch), links)
            for kind, (switch, links) in below.items()
        }

    @property
    def paths(self) -> int:
        """Number of shortest paths between hosts of different pods (two tiers: edge switches); 1 for one switch."""
        return max(1, self.edge_ports[UP]) * self.pod_ports[UP]

    def climbs(self, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whether flows between two hosts leave their edge switch [F], and whether they leave their pod [F]."""
        from_edge, to_edge = self.edge_of(src), self.edge_of(dst)
        return from_edge != to_edge, self.pod_of(from_edge) != self.pod_of(to_edge)

    def hops(self, src, dst, a, c) -> np.ndarray:
        """Return the links [F 4] of the path over aggregation switch `a` and core `c`, numbered as in `switch_links`.

        They are edge up, aggregation up, aggregation down, edge down; -1 for tiers that the path does not reach. `a` is
        taken modulo the number of uplinks that both edge switches use.
        """
        up, climb = self.edge_ports[UP], self.pod_ports[UP]
        edges, pods = self._counts
        ends = np.stack([self.edge_of(src), self.edge_of(dst)])
        leaves, beyond = self.climbs(src, dst)
        a = a % self.used_uplinks[ends].min(axis=0)
        at_edge = ends * up + a
        at_pod = (self.pod_of(ends) * up + a) * climb + c + 2 * edges * up
        table = np.stack([at_edge[0], at_pod[0], at_pod[1] + pods * up * climb, at_edge[1] + edges * up], axis=1)
        return np.where(np.stack([leaves, beyond, beyond, leaves], axis=1), table, -1)

    def pool(self) -> np.ndarray:
        """Return the pool of each switch link under spraying; links and pools are numbered from 0.

        All uplinks of an edge switch form one pool, and all links from a pod to the cores; downlinks likewise.
        """
        up, climb = self.edge_ports[UP], self.pod_ports[UP]
        edges, pods = self._counts
        at_edge = np.repeat(np.arange(2 * edges), up)
        if self.tiers < 3:
            return at_edge
        return np.concatenate([at_edge, 2 * edges + np.repeat(np.arange(2 * pods), up * climb)])

    def merged_nodes(self) -> tuple[np.ndarray, tuple[tuple[str, int], ...]]:
        """Return the merged node of each switch under spraying, and the kinds of merged nodes.

        The aggregation switches of a pod form one node, and the cores of a part.
        """
        up, climb = self.edge_ports[UP], self.pod_ports[UP]
        edges, pods = self._counts
        node = [np.arange(edges), edges + np.repeat(np.arange(pods), up)]
        if self.tiers == 1:
            return node[0], (("edge", edges),)
        if self.tiers == 2:
            return np.concatenate(node), (("edge", edges), ("spines", pods))
        node.append(edges + pods + np.repeat(np.arange(self.parts), up * climb))
        return np.concatenate(node), (("edge", edges), ("pod", pods), ("cores", self.parts))

    def sprayed_hops(self, src, dst) -> np.ndarray:
        """Return the pools that a sprayed flow crosses [F 4], numbered from 0; -1 for tiers that it does not reach."""
        edges, pods = self._counts
        ends = np.stack([self.edge_of(src), self.edge_of(dst)])
        leaves, beyond = self.climbs(src, dst)
        pod = self.pod_of(ends) + 2 * edges
        table = np.stack([ends[0], pod[0], pod[1] + pods, ends[1] + edges], axis=1)
        return np.where(np.stack([leaves, beyond, beyond, leaves], axis=1), table, -1)


def needed_uplinks(hosts: Any, ports: tuple[int, int]) -> Any:
    """Return the uplinks that `hosts` (maybe an array) need: full switches with (up, down) `ports`, and a last one."""
    up, down = ports
    full, others = np.divmod(hosts, down)
    return full * up + np.ceil(others * up / down)


def check_ratio(tiers: int, oversubscription: float, oversubscribed_at: str) -> None:
    """Raise `InputError` if a tree of these tiers cannot be oversubscribed in this way."""
    if tiers == 1 and oversubscription != 1:
        raise InputError(f"a tree of 1 tier has no links up and cannot be oversubscribed, got {oversubscription:g}:1.")
    if tiers < 3 and oversubscribed_at != "edge":
        raise InputError(
            f"a tree of {tiers} tier{'s' * (tiers > 1)} can only be oversubscribed at the edge, got at "
            f"{oversubscribed_at!r}."
        )


def roomy_radix(least: int, servers: int, nics: int) -> int:
    """Return the least radix `least` * 2^k whose trees hold all NICs (two tiers: one NIC per server)."""
    radix = least
    while radix**3 < 4 * servers * nics or radix**2 < 2 * servers:
        radix *= 2
    return radix
