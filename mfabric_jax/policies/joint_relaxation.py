"""Circuits and relay shares relaxed together, so that relayed bytes end early; and what no circuits can beat."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mfabric_jax.fabric import Region
from mfabric_jax.policies._soft_circuits import annealed, drawn_to_whole, soft_circuits
from mfabric_jax.policies.normalised_demand import normalised
from mfabric_jax.routing import degree_bound
from mfabric_jax.routing.region import between_servers
from mfabric_jax.routing.relay import is_path
from mfabric_jax.routing.split import joined

DIRECT, ELECTRICAL = 3.0, 1.5  # first logits of these paths; of those through a third server 0
INACTIVE = 1e-3  # circuits that a pair without any is taken to have: finite times


@functools.partial(jax.jit, static_argnames="steps")
def relaxed_jointly(
    demand: Float[Array, "S S"], region: Region, logits: Float[Array, "S S"], steps: int
) -> Float[Array, "S S"]:
    """Real-valued circuits [S S], mostly near whole numbers, from first `logits` of them (`soft_circuits`).

    The busiest link's time under shares of every pair's bytes over (via server k, direct circuits, EPS), softened by a
    log-sum-exp, falls by `annealed` steps in the logits of circuits and shares together. The shares of the relaxation
    are dropped: those of the rounded circuits are other ones. Works for one start; `vmap` over `logits` for more:
    about 10 S^3 floats each.
    """
    (demand, ports, efficiency), degrees = normalised(demand, region), region.degrees
    path = _paths(degrees, ports)
    demand = jnp.where(path.any(2), demand, 0)
    room = jnp.where(ports > 0, ports, 1)
    first = jnp.zeros(path.shape, demand.dtype).at[..., -2].set(DIRECT).at[..., -1].set(ELECTRICAL)
    lowest = jnp.finfo(demand.dtype).min / 2

    def latest(parameters, temperature, strength):
        logits, sent = parameters
        width = drawn_to_whole(soft_circuits(logits, degrees), strength) + INACTIVE
        shares = jnp.where(path, jax.nn.softmax(jnp.where(path, sent, lowest), axis=2), 0) * demand[..., None]
        via, direct, eps = shares[..., :-2], shares[..., -2], shares[..., -1]
        over = (via.sum(1) + via.sum(0).T / efficiency + direct) / width
        times = jnp.concatenate([over.reshape(-1), eps.sum(1) / room, eps.sum(0) / room])
        return temperature * jax.nn.logsumexp(times / temperature)

    return soft_circuits(annealed(latest, (logits, first), steps)[0], degrees)


def _paths(degrees: Int[Array, "S"], ports: Float[Array, "S"]):
    """[S S S+2] Paths that some circuits would open, and the EPS where both ends have it."""
    active = degrees > 0
    both = active[:, None] & active[None, :]
    via = both[..., None] & active[None, None, :]
    return jnp.concatenate([via, both[..., None], joined(ports)[..., None]], axis=2) & is_path(len(degrees))


@jax.jit
def relay_limit(region: Region, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    """A bound from below on the time of one all-to-all under relay routing, whatever the circuits [s].

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored.

    At least the degree bound (`degree_bound`), and that at efficiency 1. Of what a server receives, the bytes K of its
    `degree` largest senders can take circuits directly; the EPS carries what its E ports can, and the rest is relayed:
    K + (all - K - E B T) / efficiency <= degree B T.
    """
    demand = between_servers(region, demand)
    dtype, servers = demand.dtype, region.servers
    place = jnp.arange(servers, dtype=jnp.int32)
    senders = jnp.sort(demand, axis=0, descending=True)  # of every receiver: column
    near = jnp.where(place[:, None] < region.degrees[None], senders, 0).sum(0)
    far = jnp.maximum(demand.sum(0) - near, 0)
    efficiency = jnp.asarray(region.relay_efficiency, dtype)
    ports = jnp.broadcast_to(jnp.asarray(region.electrical_nics, dtype), servers)
    speed = (region.degrees.astype(dtype) + ports / efficiency) * jnp.asarray(region.nic_Bps, dtype)
    seconds = jnp.where(speed > 0, (near + far / efficiency) / jnp.where(speed > 0, speed, 1), 0)
    return jnp.maximum(degree_bound(region, demand), seconds.max(initial=0))
