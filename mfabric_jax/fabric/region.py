"""One region of an mFabric cluster: the servers of an expert-parallel group behind one optical switch."""

import equinox as eqx
from jaxtyping import Array, Float, Int

from mfabric_jax import units
from mfabric_jax.checks import not_negative, positive, whole


class Region(eqx.Module):
    """Servers whose NICs go partly to a regional optical circuit switch (OCS), partly to the electrical fabric (EPS).

    - `servers`: how many (static: it sets the shape of everything).
    - `nic_gbps`: bandwidth of every NIC and circuit, per direction.
    - `optical_degree`: NICs of a server on the OCS: the most circuits it can have.
    - `electrical_nics`: NICs of a server on the EPS, which is non-blocking.
    - `delay_s`: reconfiguration delay; while it lasts the OCS carries nothing.

    All but `servers` are traced: they may be arrays, `vmap` over them does not retrace. Defaults: PAPER section 2
    (6 + 2 NICs, 25 ms). A server's NICs are pooled: its GPUs reach all of them through the NVSwitch (delegation).
    """

    servers: int = eqx.field(static=True)
    nic_gbps: Float[Array, ""] | float
    optical_degree: Int[Array, ""] | int = 6
    electrical_nics: Float[Array, ""] | float = 2
    delay_s: Float[Array, ""] | float = 0.025

    name = "mfabric"
    nic_use = "pooled"

    def __check_init__(self):
        whole("servers", self.servers)
        positive("nic_gbps", self.nic_gbps)
        not_negative("optical_degree", self.optical_degree)
        not_negative("electrical_nics", self.electrical_nics)
        not_negative("delay_s", self.delay_s)

    @property
    def nic_Bps(self):
        """Bytes per second of one NIC, and of one circuit in each direction."""
        return units.gbps(self.nic_gbps)

    @property
    def eps_Bps(self):
        """What one server can send over the electrical fabric [bytes/s]; the same to receive."""
        return self.electrical_nics * self.nic_Bps
