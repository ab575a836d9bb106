"""Rings of the NICs of each rail in an expert-parallel group, with circuits that also serve other phases."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Float

from mfabric_jax.fabric.direct_links import DirectLinks, Mesh, mesh_of
from mfabric_jax.fabric.failures import NO_PACKETS, ONE_PLANE, PLANES, Degraded, Hit
from mfabric_jax.fabric.grids import ring_circuits
from mfabric_jax.fabric.nic_use import Handover

NO_TURNS = "only the present phase has circuits until it is repaired, so the job waits"
ONE_RAIL = "no other rail could carry, so the job waits for the repair"


class RailRings(DirectLinks):
    """One ring for every rail: its `mesh` joins servers by ports of half a NIC (`nics`: rails).

    - `delay_s`: of a turn to the circuits of another phase, during which they carry nothing.
    """

    delay_s: Any = 0.0

    nic_use = "own"
    phases = pxn = True
    handover: ClassVar[tuple[Handover, Handover]] = ("to the rail", "none")

    def lacks(self, routing: str) -> dict[str, str]:
        """Failures that cannot happen here: {kind: reason}."""
        found: dict[str, str] = dict.fromkeys(("electrical-nic", "electrical-nics", "switch", "spine"), NO_PACKETS)
        return found | dict.fromkeys(PLANES, ONE_PLANE)

    def broken(self, hit: Hit) -> Degraded:
        """The group after a failure on the first rail; a spare on the same switches takes all circuits of a server.

        A NIC with one link left would make its rail a line, which is as slow or slower than the rail without it.
        """
        if hit.kind in ("gpu", "server"):
            return Degraded(hit.kind, self, hit.server, spare=True)
        if hit.kind == "controller" or self.nics < 2:
            return Degraded(hit.kind, self, hit.server, waits=NO_TURNS if hit.kind == "controller" else ONE_RAIL)
        left = RailsLeft(self, *_first_left(self, hit), _carried(self, hit))
        everywhere = hit.kind == "optical-switch"  # all servers of all stages are on it
        return Degraded(hit.kind, left, hit.server, eps_left=1 - 1 / self.nics, everywhere=everywhere)


class RailsLeft(eqx.Module):
    """Rails after a failure on the first of them.

    - `ring`: of the other rails; `first`: what is left of the first rail, between the servers `joined_to` it.
    - `carried` [N g S S]: fraction of the bytes from server to server for each rank of a server, by rail.
    """

    ring: RailRings
    first: RailRings
    joined_to: tuple[int, ...] = eqx.field(static=True)
    carried: Float[np.ndarray, "N g S S"]

    joined = True


def ring_of(servers: int) -> Mesh:
    """Links of a ring, in both directions; two servers are joined by both ports."""
    return mesh_of(ring_circuits(servers, [1]))


def _first_left(group: RailRings, hit: Hit) -> tuple[RailRings, tuple[int, ...]]:
    """The first rail and its servers: its ring closes around the server whose NIC or link is gone."""
    every = tuple(range(group.servers))
    if group.servers == 1 or hit.kind == "optical-switch":
        return group, every
    others = tuple(one for one in every if one != hit.server)
    return dataclasses.replace(group, servers=len(others), mesh=ring_of(len(others)), hops=None, share=None), others


def _carried(group: RailRings, hit: Hit) -> np.ndarray:
    """Bytes that the first rail cannot carry go over the other rails of their rank, else over the next rank's."""
    ranks, each = hit.ranks_per_server, group.nics // hit.ranks_per_server
    of_rank = np.arange(group.nics) // each
    carried = np.zeros((group.nics, ranks, group.servers, group.servers))
    for rank in range(ranks):
        carried[of_rank == rank, rank] = 1 / each
    here = (np.arange(group.servers) == hit.server) | (hit.kind == "optical-switch")
    lost = here[:, None] | here
    heirs = np.arange(1, max(2, each))
    carried[heirs, 0] += np.where(lost, carried[0, 0] / len(heirs), 0)
    carried[0, 0, lost] = 0
    return carried
