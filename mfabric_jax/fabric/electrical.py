"""The servers of one expert-parallel group on packet switches: a star of ports."""

from typing import Literal, get_args

import equinox as eqx
from jaxtyping import Array, Float

from mfabric_jax import units
from mfabric_jax.checks import InputError, one_of, positive, whole

NicUse = Literal["own", "pooled"]
NIC_USES: tuple[str, ...] = get_args(NicUse)
Handover = Literal[
    "none", "to the rail", "levelled", "spread"
]  # over the NVSwitch of a server; see `routing.delegated`


class Electrical(eqx.Module):
    """Packet switches under ideal spraying, as the servers of one expert-parallel group see them.

    - `nic_gbps`: bandwidth of every NIC, per direction.
    - `nics` (static): NICs of a server, one per GPU.
    - `oversubscription`: what the server under an edge switch can send over what the switch's uplinks carry; None is
      non-blocking. One server hangs on one edge switch (8 host ports, as in the radix-16 tree of 1,024 GPUs).
    - `nic_use` (static): "own": each GPU sends and receives through its own NIC; "pooled": all NICs of the server
      carry anything, as behind an NVSwitch that forwards.
    - `pxn` (static, own only): data leaves by the NIC whose rank in the server is the destination's, to which it
      crosses the NVSwitch; on rails it then never climbs above the rail switches.

    With ideal spraying every link between two tiers is pooled, so only the ports of NICs and of edge switches can
    limit. That makes a rail-optimised fabric (non-blocking, without forwarding over the NVSwitch) carry an
    all-to-all exactly as fast as a fat-tree. Defaults: arXiv 2501.03905.
    """

    nic_gbps: Float[Array, ""] | float
    nics: int = eqx.field(static=True, default=8)
    oversubscription: Float[Array, ""] | float | None = None
    nic_use: str = eqx.field(static=True, default="own")
    pxn: bool = eqx.field(static=True, default=False)

    reconfigures = own_ports = forwards = False
    joined = True
    delay_s = 0.0
    latency_s = 0.0

    def __check_init__(self):
        positive("nic_gbps", self.nic_gbps)
        whole("nics", self.nics)
        if self.oversubscription is not None:
            positive("oversubscription", self.oversubscription)
        one_of("nic_use", self.nic_use, NIC_USES)
        if self.pxn and self.nic_use != "own":
            raise InputError(f"pxn uses the NIC of the destination's rank; nic_use must be own, got {self.nic_use!r}.")

    @property
    def nic_Bps(self):
        """Bytes per second of one NIC."""
        return units.gbps(self.nic_gbps)

    @property
    def send_Bps(self):
        """What one server can send to one of the next pipeline stage [bytes/s]."""
        return self.eps_Bps

    @property
    def eps_Bps(self):
        """What one server can send beyond its edge switch [bytes/s]; the same to receive."""
        everything = self.nics * self.nic_Bps
        return everything if self.oversubscription is None else everything / self.oversubscription

    @property
    def handover(self) -> tuple[Handover, Handover]:
        """How bytes reach the NICs that send them, and leave those that receive them."""
        if self.nic_use == "own":
            return ("to the rail" if self.pxn else "none"), "none"
        return "levelled", "levelled"
