"""Rings of the NICs of each rail in an expert-parallel group; their ports also serve other phases."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Float

from mfabric_jax.fabric.direct_links import DirectLinks, Mesh, mesh_of
from mfabric_jax.fabric.failures import NO_PACKETS, ONE_PLANE, PLANES, Degraded, Failure
from mfabric_jax.fabric.grids import ring_circuits
from mfabric_jax.fabric.nic_use import Handover

NO_RECONFIGURATION = "circuits of other phases need it, so the job waits for the repair"
ONE_RAIL = "no other rail could carry its bytes, so the job waits for the repair"


class RailRings(DirectLinks):
    """One ring for every rail: its `mesh` links servers by ports of half a NIC (`nics`: number of rails).

    - `delay_s`: time to reconfigure for another phase; circuits carry nothing meanwhile.
    """

    delay_s: Any = 0.0

    nic_use = "own"
    phases = pxn = True
    handover: ClassVar[tuple[Handover, Handover]] = ("to the rail", "none")

    def lacks(self, routing: str) -> dict[str, str]:
        """Return the failures that cannot happen here: {kind: reason}."""
        reasons: dict[str, str] = dict.fromkeys(("electrical-nic", "electrical-nics", "switch", "spine"), NO_PACKETS)
        return reasons | dict.fromkeys(PLANES, ONE_PLANE)

    def after_failure(self, hit: Failure) -> Degraded:
        """Return the group after a failure on the first rail; a spare on the same switches takes a server's circuits.

        A NIC with one link left is not used: its rail would be a line, no faster than the rail without that NIC.
        """
        if hit.kind in ("gpu", "server"):
            return Degraded(hit.kind, self, hit.server, spare=True)
        if hit.kind == "controller" or self.nics < 2:
            return Degraded(
                hit.kind,
                self,
                hit.server,
                waits=NO_RECONFIGURATION if hit.kind == "controller" else ONE_RAIL,
            )
        left = RailsLeft(self, *_first_left(self, hit), _shares_by_rail(self, hit))
        everywhere = hit.kind == "optical-switch"  # all servers of all stages are on it
        return Degraded(hit.kind, left, hit.server, eps_left=1 - 1 / self.nics, everywhere=everywhere)


class RailsLeft(eqx.Module):
    """Rails after a failure on the first of them.

    - `ring`: every other rail; `first`: what is left of the first rail, which links the servers `joined_to`.
    - `carried` [N g S S]: fraction of the bytes between servers that each of N rails carries, for each of g ranks.
    """

    ring: RailRings
    first: RailRings
    joined_to: tuple[int, ...] = eqx.field(static=True)
    carried: Float[np.ndarray, "N g S S"]

    has_paths = True


def ring_of(servers: int) -> Mesh:
    """Return the links of a ring, in both directions; if there are two servers, both ports link them."""
    return mesh_of(ring_circuits(servers, [1]))


def _first_left(group: RailRings, hit: Failure) -> tuple[RailRings, tuple[int, ...]]:
    """The first rail and its servers; its ring skips the server whose NIC or link is gone."""
    every = tuple(range(group.servers))
    if group.servers == 1 or hit.kind == "optical-switch":
        return group, every
    others = tuple(server for server in every if server != hit.server)
    return dataclasses.replace(group, servers=len(others), mesh=ring_of(len(others)), hops=None, share=None), others


def _shares_by_rail(group: RailRings, hit: Failure) -> np.ndarray:
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
