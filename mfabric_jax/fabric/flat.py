"""A flat optical fabric that is wired once (TopoOpt): all NICs on patch panels, servers forward for each other."""

import equinox as eqx
from jaxtyping import Array, Float, Int

from mfabric_jax import units
from mfabric_jax.checks import InputError, positive, whole

RING_NICS = 2  # of a server, for the all-reduce ring: one to each neighbour


class Flat(eqx.Module):
    """The servers of one expert-parallel group on a fabric without switches.

    - `servers` (static), `nic_gbps`: as in `Region`.   - `nics`: of a server.
    - `pipeline_nics`: NICs of a server that lead to neighbouring stages, one each.
    - `count` [S S]: circuits inside the group; `hops` [S*S H], `share` [S*S H]: which of them (row-major, -1 pads) the
      bytes of each pair of servers cross, and with which part. None until they are chosen for expected demand.

    Gradients go around the ring in both directions, so at twice the rate of a NIC. Source: Wang et al., NSDI 2023.
    """

    servers: int = eqx.field(static=True)
    nic_gbps: Float[Array, ""] | float
    nics: int = eqx.field(static=True, default=8)
    pipeline_nics: int = eqx.field(static=True, default=2)
    count: Int[Array, "S S"] | None = None
    hops: Int[Array, "N H"] | None = None
    share: Float[Array, "N H"] | None = None

    name = "topoopt"
    nic_use = "pooled"
    delay_s = 0.0
    latency_s = 0.0

    def __check_init__(self):
        whole("servers", self.servers)
        positive("nic_gbps", self.nic_gbps)
        whole("nics", self.nics)
        whole("pipeline_nics", self.pipeline_nics, at_least=0)
        if self.group_nics < RING_NICS:
            least = RING_NICS + self.pipeline_nics
            raise InputError(f"topoopt needs {least} NICs for its ring and pipeline neighbours, got nics {self.nics}.")

    @property
    def group_nics(self) -> int:
        """NICs of a server for circuits inside its group, its part of the ring among them."""
        return self.nics - self.pipeline_nics

    @property
    def nic_Bps(self):
        """Bytes per second of one NIC, and of one circuit in each direction."""
        return units.gbps(self.nic_gbps)

    @property
    def eps_Bps(self):
        """What one server sends around the all-reduce ring, both ways [bytes/s]."""
        return RING_NICS * self.nic_Bps

    @property
    def send_Bps(self):
        """What one server can send to its peer in the next pipeline stage [bytes/s]."""
        return self.nic_Bps
