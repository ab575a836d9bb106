"""Packet-switched fabrics: fat-trees, rails, Ethernet between scale-up domains."""

import equinox as eqx
from jaxtyping import Array, Float

from mfabric_jax import units
from mfabric_jax.checks import InputError, one_of, positive, whole

NIC_USES = ("own", "pooled")


class Electrical(eqx.Module):
    """A packet-switched fabric under ideal spraying, as the servers of one expert-parallel group see it.

    - `name` (static): fat-tree, oversub-fat-tree, rail-optimized, rail-only or nvl72 (Ethernet between its domains).
    - `nic_gbps`: bandwidth of every NIC, per direction.
    - `nics` (static): NICs of a server, one per GPU.
    - `oversubscription`: what the server under an edge switch can send over what the switch's uplinks carry; None is
      non-blocking. One server hangs on one edge switch (8 host ports, as in the radix-16 tree of 1,024 GPUs).
    - `nic_use` (static): "own": each GPU sends and receives through its own NIC; "pooled": all NICs of the server
      carry anything, as behind an NVSwitch that forwards.
    - `pxn` (static, own only): data leaves by the NIC whose rank in the server is the destination's, to which it
      crosses the NVSwitch; on rails it then never climbs above the rail switches. Rail-only fabrics need it.

    With ideal spraying every link between two tiers is pooled, so only the ports of NICs and of edge switches can
    limit. That makes a rail-optimised fabric (non-blocking, without forwarding over the NVSwitch) carry an
    all-to-all exactly as fast as a fat-tree. Defaults: arXiv 2501.03905.
    """

    name: str = eqx.field(static=True)
    nic_gbps: Float[Array, ""] | float
    nics: int = eqx.field(static=True, default=8)
    oversubscription: Float[Array, ""] | float | None = None
    nic_use: str = eqx.field(static=True, default="own")
    pxn: bool = eqx.field(static=True, default=False)

    delay_s = 0.0
    latency_s = 0.0

    def __check_init__(self):
        one_of("fabric", self.name, ELECTRICAL)
        positive("nic_gbps", self.nic_gbps)
        whole("nics", self.nics)
        if self.oversubscription is not None:
            positive("oversubscription", self.oversubscription)
        one_of("nic_use", self.nic_use, NIC_USES)
        if self.name == "rail-only" and not self.pxn:
            raise InputError("rail-only has no way between rails without pxn; pxn must be True, got False.")
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

    def check_gpus(self, gpus_per_server: int) -> None:
        """`own` needs a NIC for every GPU."""
        if self.nic_use == "own" and self.nics != gpus_per_server:
            raise InputError(
                f"nic_use 'own' gives each GPU its own NIC, but a server has {gpus_per_server} GPUs and "
                f"{self.nics} NICs; use nic_use 'pooled' or {gpus_per_server} NICs."
            )


ELECTRICAL = {  # name -> oversubscription
    "fat-tree": None,
    "oversub-fat-tree": 3.0,
    "rail-optimized": None,
    "rail-only": None,
    "nvl72": None,
}
