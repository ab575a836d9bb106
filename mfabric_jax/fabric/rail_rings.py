"""Rings of the NICs of each rail in an expert-parallel group, with circuits that also serve other phases."""

from typing import Any, ClassVar

from mfabric_jax.checks import InputError
from mfabric_jax.fabric.direct_links import DirectLinks, Mesh, mesh_of
from mfabric_jax.fabric.failures import KINDS, Degraded, Hit
from mfabric_jax.fabric.nic_use import Handover
from mfabric_jax.fabric.topoopt import ring_circuits

ELSEWHERE = "circuits around what failed are not modelled"


class RailRings(DirectLinks):
    """One ring for every rail: its `mesh` joins servers by ports of half a NIC (`nics`: rails).

    - `delay_s`: of a turn to the circuits of another phase, during which they carry nothing.
    """

    delay_s: Any = 0.0

    nic_use = "own"
    phases = pxn = True
    handover: ClassVar[tuple[Handover, Handover]] = ("to the rail", "none")

    def lacks(self, routing: str) -> dict[str, str]:
        """Failures that cannot happen here or are not modelled: {kind: reason}."""
        return {kind: ELSEWHERE for kind in KINDS if kind != "nvswitch"}

    def broken(self, hit: Hit) -> Degraded:
        """None: `lacks` names all failures of links. Raises `InputError`."""
        raise InputError(f"failure {hit.kind!r} is not simulated on rings of rails: {ELSEWHERE}.")


def ring_of(servers: int) -> Mesh:
    """Links of a ring, in both directions; two servers are joined by both ports."""
    return mesh_of(ring_circuits(servers, [1]))
