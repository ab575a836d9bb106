"""One cluster with several sets of circuits: one network that has the links of all, and paths over each."""

import dataclasses
from functools import cached_property

import numpy as np

from mfabric_jax.fabric import Cluster, Network
from mfabric_jax.routing import cluster_routes, links_of
from mfabric_jax.routing.routes import Routes, stacked

CIRCUIT = "circuit"


@dataclasses.dataclass(frozen=True)
class Wirings:
    """`clusters` differ in their circuits alone, whose links come last; `paths`: how flows use equal paths, drawn by
    `seed`."""

    clusters: tuple[Cluster, ...]
    paths: str
    seed: int

    @cached_property
    def _networks(self) -> list[Network]:
        return [links_of(cluster, self.paths) for cluster in self.clusters]

    @cached_property
    def _first(self) -> list[int]:
        """Where the circuits of each are in the common network."""
        counts = [len(cluster.circuits.src) for cluster in self.clusters]
        fixed = len(self._networks[0].tail) - counts[0]
        return (fixed + np.cumsum([0, *counts[:-1]])).tolist()

    @cached_property
    def network(self) -> Network:
        """The links that all share, then the circuits of one set after the other."""
        if len(self.clusters) == 1:
            return self._networks[0]
        shared, most = self._first[0], max(self._networks, key=lambda network: network.size)
        of_all = {}
        for field in ("tail", "head", "capacity", "delay_s"):
            every = [getattr(network, field) for network in self._networks]
            of_all[field] = np.concatenate([every[0][:shared], *(links[shared:] for links in every)])
        links = tuple(run for run in self._networks[0].links if run[0] != CIRCUIT)
        circuits = len(of_all["tail"]) - shared
        return Network(**of_all, nodes=most.nodes, links=(*links, (CIRCUIT, circuits)) if circuits else links)

    def direct(self, wiring: np.ndarray, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """[F] mask: whether two servers [F] are joined by a circuit of the set `wiring` [F]."""
        found = np.zeros(len(wiring), bool)
        for one in np.unique(wiring).tolist():
            mine = wiring == one
            found[mine] = self.clusters[one].circuits.find(src[mine], dst[mine]) >= 0
        return found

    def routes(self, wiring: np.ndarray, src: np.ndarray, dst: np.ndarray, size: np.ndarray) -> Routes:
        """Links of the network that flows between GPUs [F] cross, each over its set of circuits."""
        parts, shared = [], self._first[0]
        for one in np.unique(wiring).tolist():
            mine = np.flatnonzero(wiring == one)
            rest = {"routing": self.paths, "seed": self.seed, "size": size[mine]}
            found = cluster_routes(self.clusters[one], src[mine], dst[mine], **rest)
            hops = np.where(found.hops >= shared, found.hops + self._first[one] - shared, found.hops)
            parts.append((mine, Routes(hops, found.share)))
        return stacked(parts, len(wiring))
