"""One region of an mFabric cluster: the servers of an expert-parallel group behind one optical switch."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, Int

from mfabric_jax import units
from mfabric_jax.checks import InputError, not_negative, one_of, part, positive, whole
from mfabric_jax.fabric.failures import ONE_PLANE, PLANES, Degraded, Hit
from mfabric_jax.fabric.nic_use import Handover

NO_RELAY = "no circuit leads to a server that could relay"
UNSPLIT = "what is relayed then is modelled for routing unsplit alone"


class Region(eqx.Module):
    """Servers whose NICs go partly to a regional optical circuit switch (OCS), partly to the electrical fabric (EPS).

    - `servers`: number of servers (static, since it sets all shapes).
    - `nic_gbps`: bandwidth of every NIC and circuit, per direction.
    - `optical_degree`: NICs of a server on the OCS, the most circuits it can have; one number or [S].
    - `electrical_nics`: NICs of a server on the EPS, which is non-blocking; one number or [S].
    - `delay_s`: reconfiguration delay, during which the OCS carries nothing.
    - `own_ports` (static): every GPU has circuits of its own, as with co-packaged optics.
    - `relay_efficiency`: under relay routing a forwarded byte counts 1 / efficiency on its second circuit.

    Non-static fields may be traced. A server's GPUs reach all its NICs through the NVSwitch (delegation). Unequal
    [S] ports describe servers that lost NICs. Defaults (6 + 2 NICs, 25 ms): arXiv 2501.03905.
    """

    servers: int = eqx.field(static=True)
    nic_gbps: Float[Array, ""] | float
    optical_degree: Int[Array, ""] | Int[Array, "S"] | int = 6
    electrical_nics: Float[Array, ""] | Float[Array, "S"] | float = 2
    delay_s: Float[Array, ""] | float = 0.025
    relay_efficiency: Float[Array, ""] | float = 1.0
    own_ports: bool = eqx.field(static=True, default=False)

    reconfigures = joined = True
    pxn = forwards = phases = False
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
        """The most circuits that each server can have."""
        return jnp.broadcast_to(jnp.asarray(self.optical_degree).astype(jnp.int32), (self.servers,))

    @property
    def eps_Bps(self):
        """What each server can send over the electrical fabric [bytes/s], () or [S]; the same to receive."""
        return self.electrical_nics * self.nic_Bps

    @property
    def handover(self) -> tuple[Handover, Handover]:
        """As in `Electrical`: a circuit ends at one GPU, so all GPUs gather to it and scatter from it equally."""
        return ("levelled" if self.own_ports else "spread"), "spread"

    @property
    def send_Bps(self):
        """What one server can send to its peer in the next pipeline stage [bytes/s], () or [S]."""
        return self.eps_Bps

    def lacks(self, routing: str) -> dict[str, str]:
        """Failures that are not modelled: {kind: reason}; `routing`: over circuits."""
        found = {"switch": "of its packet switches a link is modelled, no whole switch"} | dict.fromkeys(
            PLANES, ONE_PLANE
        )
        alone = self.servers < 2 or not int(self.optical_degree)
        if alone or routing != "unsplit":
            relayed = ("electrical-nics", "electrical-nic") if float(self.electrical_nics) < 2 else ("electrical-nics",)
            found |= dict.fromkeys(relayed, NO_RELAY if alone else UNSPLIT)
        return found

    def broken(self, hit: Hit) -> Degraded:
        """The group after a failure; EPS and OCS back each other up."""
        kind, server, nics = hit.kind, hit.server, float(self.electrical_nics)
        here = np.arange(self.servers) == server
        optical = np.full(self.servers, int(self.optical_degree))
        electrical = np.full(self.servers, nics)
        if kind == "electrical-nics" or (kind == "electrical-nic" and nics < 2):
            if self.servers < 2 or not int(self.optical_degree):
                raise InputError("failure 'electrical-nics' needs a peer that circuits reach; the region has none.")
            left = self._with_nics(optical, electrical * ~here)
            return Degraded("electrical-nics", left, server, relays=True, eps_left=0.5)
        if kind == "electrical-nic":
            return Degraded(kind, self._with_nics(optical, electrical - here), server, eps_left=(nics - 1) / nics)
        if kind == "link":
            part = hit.links_left()
            return Degraded(kind, self._with_nics(optical, electrical * part), server, eps_left=part)
        if kind == "gpu":
            spare = 1.0 if self.own_ports else nics
            left = self._with_nics(np.append(optical, 0), np.append(electrical, spare))
            on_eps = spare / nics if hit.attention_gpus > 1 else 0.0
            return Degraded(kind, left, server, moved=1 / hit.gpus_per_rank, tp_on_eps=on_eps)
        circuits = {
            "optical-nic": np.maximum(optical - here, 0),
            "server": optical * ~here,
            "optical-switch": 0 * optical,
            "controller": optical,
        }
        left = self._with_nics(circuits[one_of("failure", kind, circuits)], electrical)
        return Degraded(kind, left, server, stays=kind == "controller")

    def _with_nics(self, optical: np.ndarray, electrical: np.ndarray) -> "Region":
        nics = {"optical_degree": optical.astype(np.int32), "electrical_nics": electrical}
        return dataclasses.replace(self, servers=len(optical), **nics)


def _per_server(field: str, value, servers: int) -> None:
    if not isinstance(value, Tracer) and np.shape(value) not in ((), (servers,)):
        shape = list(np.shape(value))
        raise InputError(f"{field} must be a number or have the shape [S] = [{servers}], one per server, got {shape}.")


# ------------------------------------------------------------------------------------------------------------ circuits
class Circuits(eqx.Module):
    """How many circuits join each pair of servers in one region.

    - `count` [S S]: symmetric, zero diagonal, row sums at most the region's degree (a circuit takes one NIC at each
      end, for both directions). Integer when legal; real during a relaxation.
    """

    count: Int[Array, "S S"] | Float[Array, "S S"]

    def __init__(self, count: ArrayLike):
        self.count = jnp.asarray(count)
        if self.count.ndim != 2 or self.count.shape[0] != self.count.shape[1]:
            raise InputError(f"circuits join servers to servers: count must be [S S], got {list(self.count.shape)}.")

    def checked(self, degree: ArrayLike) -> "Circuits":
        """Self, or a runtime error (also under jit) naming the broken rule; `degree` () or [S]: optical NICs per
        server."""
        used = self.count.sum(axis=1)
        rules = {
            "not symmetric": jnp.any(self.count != self.count.T),
            "a server joined to itself": jnp.any(jnp.diagonal(self.count) != 0),
            "a negative count": jnp.any(self.count < 0),
            "more circuits at a server than its optical degree": jnp.any(used > jnp.asarray(degree, used.dtype)),
        }
        broken = jnp.stack([*rules.values()])
        return eqx.branched_error_if(self, broken.any(), jnp.argmax(broken), [f"circuits: {rule}" for rule in rules])


def round_robin(servers: int) -> np.ndarray:
    """The matchings of a round-robin tournament [rounds S S] (circle method): every pair of servers meets exactly once,
    in S - 1 rounds for even S, and in S rounds with one server resting in each for odd S."""
    seats = servers + servers % 2
    rounds = np.zeros((max(seats - 1, 0), servers, servers), np.int32)
    for turn in range(len(rounds)):
        ring = [seats - 1, *((turn + k) % (seats - 1) for k in range(seats - 1))]
        for a, b in zip(ring[: seats // 2], reversed(ring[seats // 2 :]), strict=True):
            if a < servers and b < servers:
                rounds[turn, a, b] = rounds[turn, b, a] = 1
    return rounds
