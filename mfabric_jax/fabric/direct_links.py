"""The servers of expert-parallel groups joined by direct links, without switches: they forward for each other."""

from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float, Int

from mfabric_jax import units
from mfabric_jax.checks import not_negative, positive, whole
from mfabric_jax.fabric.electrical import Handover


class DirectLinks(eqx.Module):
    """Links between servers, and the links that every pair crosses.

    - `servers` (static), `nic_gbps`: as in `Region`.
    - `nics` (static): NICs of a server for links inside its group.
    - `ring_nics`, `stage_nics`: NICs with which a server sends gradients, and activations to the next stage; a part
      of one where several servers share a link.
    - `count` [W W]: links between the servers of the group, or of all W / S groups that share them and are busy at
      once; `hops` [N H], `share` [N H]: which of them (row-major, -1 pads) the bytes of each pair of servers cross, and
      with which part, N = S*S pairs of one group after the other. None until they are chosen for expected demand.
    """

    servers: int = eqx.field(static=True)
    nic_gbps: Float[Array, ""] | float
    nics: int = eqx.field(static=True, default=8)
    ring_nics: float = 2
    stage_nics: float = 1
    count: Int[Array, "W W"] | None = None
    hops: Int[Array, "N H"] | None = None
    share: Float[Array, "N H"] | None = None

    nic_use = "pooled"
    reconfigures = pxn = own_ports = False
    oversubscription = None
    forwards = True  # servers carry what others send
    delay_s = 0.0
    latency_s = 0.0
    handover: ClassVar[tuple[Handover, Handover]] = ("spread", "spread")

    def __check_init__(self):
        whole("servers", self.servers)
        positive("nic_gbps", self.nic_gbps)
        whole("nics", self.nics, at_least=0)
        not_negative("ring_nics", self.ring_nics)
        not_negative("stage_nics", self.stage_nics)

    @property
    def joined(self) -> bool:
        """Whether its links are chosen."""
        return self.count is not None

    @property
    def groups(self) -> int:
        """Expert-parallel groups that share the links."""
        return 1 if self.count is None else len(self.count) // self.servers

    @property
    def nic_Bps(self):
        """Bytes per second of one NIC, and of one link in each direction."""
        return units.gbps(self.nic_gbps)

    @property
    def eps_Bps(self):
        """What one server sends around the all-reduce ring, both ways [bytes/s]."""
        return self.ring_nics * self.nic_Bps

    @property
    def send_Bps(self):
        """What one server can send to its peer in the next pipeline stage [bytes/s]."""
        return self.stage_nics * self.nic_Bps
