"""One region of an mFabric cluster: the servers of an expert-parallel group behind one optical switch."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from mfabric_jax import units
from mfabric_jax.checks import InputError, not_negative, part, positive, whole
from mfabric_jax.fabric.electrical import Handover


class Region(eqx.Module):
    """Servers whose NICs go partly to a regional optical circuit switch (OCS), partly to the electrical fabric (EPS).

    - `servers`: how many (static: it sets the shape of everything).
    - `nic_gbps`: bandwidth of every NIC and circuit, per direction.
    - `optical_degree`: NICs of a server on the OCS, the most circuits it can have; or [S], one number per server.
    - `electrical_nics`: NICs of a server on the EPS, which is non-blocking; or [S].
    - `delay_s`: reconfiguration delay; while it lasts the OCS carries nothing.
    - `own_ports` (static): every GPU has circuits of its own, as with co-packaged optics.
    - `relay_efficiency`: under relay routing a forwarded byte counts 1 / efficiency on its second circuit.

    All but `servers` and `own_ports` are traced: they may be arrays, `vmap` over them does not retrace. A server's
    NICs are
    pooled: its GPUs reach all of them through the NVSwitch (delegation). Unequal [S] ports are those of servers that
    lost NICs. Defaults (6 + 2 NICs, 25 ms): arXiv 2501.03905.
    """

    servers: int = eqx.field(static=True)
    nic_gbps: Float[Array, ""] | float
    optical_degree: Int[Array, ""] | Int[Array, "S"] | int = 6
    electrical_nics: Float[Array, ""] | Float[Array, "S"] | float = 2
    delay_s: Float[Array, ""] | float = 0.025
    relay_efficiency: Float[Array, ""] | float = 1.0
    own_ports: bool = eqx.field(static=True, default=False)

    reconfigures = joined = True
    pxn = forwards = False
    oversubscription = None
    nic_use = "pooled"
    latency_s = 0.0

    def __check_init__(self):
        whole("servers", self.servers)
        positive("nic_gbps", self.nic_gbps)
        not_negative("optical_degree", self.optical_degree)
        not_negative("electrical_nics", self.electrical_nics)
        for field in ("optical_degree", "electrical_nics"):
            _per_server(field, getattr(self, field), self.servers)
        not_negative("delay_s", self.delay_s)
        part("relay_efficiency", self.relay_efficiency)

    @property
    def nic_Bps(self):
        """Bytes per second of one NIC, and of one circuit in each direction."""
        return units.gbps(self.nic_gbps)

    @property
    def degrees(self) -> Int[Array, "S"]:
        """The most circuits of every server."""
        return jnp.broadcast_to(jnp.asarray(self.optical_degree).astype(jnp.int32), (self.servers,))

    @property
    def eps_Bps(self):
        """What each server can send over the electrical fabric [bytes/s], () or [S]; the same to receive."""
        return self.electrical_nics * self.nic_Bps

    @property
    def handover(self) -> tuple[Handover, Handover]:
        """As in `Electrical`: a circuit ends at one GPU, so bytes are gathered from and scattered to all alike."""
        return ("levelled" if self.own_ports else "spread"), "spread"

    @property
    def send_Bps(self):
        """What one server can send to one of the next pipeline stage [bytes/s], () or [S]."""
        return self.eps_Bps


def _per_server(field: str, value, servers: int) -> None:
    """One number for all servers, or one for each."""
    if not isinstance(value, Tracer) and np.shape(value) not in ((), (servers,)):
        shape = list(np.shape(value))
        raise InputError(f"{field} must be a number or have the shape [S] = [{servers}], one per server, got {shape}.")
