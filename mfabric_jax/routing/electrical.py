"""All-to-all on packet-switched fabrics under ideal spraying, and inside servers on the NVSwitch."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from mfabric_jax.fabric import Region
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.flows import star_completion
from mfabric_jax.traffic.demand import by_server, server_bytes


@functools.partial(jax.jit, static_argnames="ranks_per_server")
def spray_time(fabric: Electrical, demand: Float[Array, "R R"], ranks_per_server: int) -> Float[Array, ""]:
    """Exact fluid completion of one all-to-all between ranks of different servers [s].

    - `demand` [R R]: bytes from rank to rank; pairs inside a server are ignored (`inside_time` has them).

    Every rank owns the NICs of its GPUs (a tensor-parallel group's slices are equal, so its NICs pool exactly), or a
    server's ranks pool all of its NICs. An edge switch's uplinks and downlinks are shared by its server's ranks. With
    pxn the NICs of a server send what its ranks have for their rank elsewhere, as one message per destination.
    """
    ranks = demand.shape[0]
    servers = ranks // ranks_per_server
    between = away_from_server(demand, ranks_per_server)
    edge = jnp.broadcast_to(jnp.asarray(fabric.eps_Bps, demand.dtype), servers)
    if fabric.nic_use == "pooled":
        return star_completion(server_bytes(between, ranks_per_server), edge, edge).max(initial=0)
    own = fabric.nics / ranks_per_server * fabric.nic_Bps
    port = jnp.broadcast_to(jnp.asarray(own, demand.dtype), ranks)
    behind = () if fabric.oversubscription is None else (edge, edge)
    if fabric.pxn:
        between = by_rail(between, ranks_per_server)
    return star_completion(between, port, port, *behind).max(initial=0)


def away_from_server(demand: Float[Array, "R R"], ranks_per_server: int) -> Float[Array, "R R"]:
    """The demand, 0 between ranks of one server."""
    server = jnp.arange(demand.shape[0]) // ranks_per_server
    return jnp.where(server[:, None] == server[None, :], 0, demand)


def by_rail(between: Float[Array, "R R"], ranks_per_server: int) -> Float[Array, "R R"]:
    """What the NICs send each other with pxn: all bytes of a server for rank g elsewhere leave by its own g-th NICs."""
    rail = jnp.eye(ranks_per_server, dtype=between.dtype)
    return jnp.einsum("stg,hg->shtg", by_server(between, ranks_per_server).sum(1), rail).reshape(between.shape)


@functools.partial(jax.jit, static_argnames="ranks_per_server")
def delegated(
    fabric: Electrical | Region | DirectLinks, demand: Float[Array, "R R"], ranks_per_server: int
) -> Float[Array, "S g g"]:
    """Bytes that cross the NVSwitch of each server on their way to or from the NICs that carry them [S g g].

    By the group's `handover`: "none": GPUs use their own NICs; "to the rail": bytes go to the rank of the destination;
    "levelled": NICs carry all alike and reach every other, so only what a rank has above its part moves; "spread": a
    circuit ends at one GPU, so bytes go to (or come from) all ranks alike. Moves between the GPUs of one rank are left
    out.
    """
    blocks = by_server(away_from_server(demand, ranks_per_server), ranks_per_server)
    gather, scatter = fabric.handover
    if gather in ("none", "to the rail"):
        moved = blocks.sum(2)  # from rank g of a server to rank h elsewhere
        return moved if gather == "to the rail" else jnp.zeros_like(moved)
    move = {"levelled": _levelled, "spread": _spread}
    return move[gather](blocks.sum((2, 3))) + move[scatter](blocks.sum((0, 1))).swapaxes(1, 2)


def _spread(load: Float[Array, "S g"]) -> Float[Array, "S g g"]:
    """Every rank's bytes to all ranks of its server alike."""
    return jnp.broadcast_to(load[:, :, None] / load.shape[1], (*load.shape, load.shape[1]))


def _levelled(load: Float[Array, "S g"]) -> Float[Array, "S g g"]:
    """What ranks above the mean of their server hand to those below it."""
    above = load - load.mean(axis=1, keepdims=True)
    over, under = jnp.maximum(above, 0), jnp.maximum(-above, 0)
    total = under.sum(axis=1)[:, None, None]
    part = over[:, :, None] * under[:, None, :]
    return jnp.where(total > 0, part / jnp.where(total > 0, total, 1), 0)


@jax.jit
def inside_time(demand: Float[Array, "S G G"], gpu_Bps) -> Float[Array, ""]:
    """The all-to-alls inside each server on its NVSwitch, side by side: the slowest [s].

    - `demand` [S G G]: bytes between the G ranks of each server.   - `gpu_Bps`: a rank's NVSwitch rate [bytes/s].
    """
    rate = lax.optimization_barrier(jnp.asarray(gpu_Bps, demand.dtype))  # else XLA folds every copy of a constant
    port = jnp.broadcast_to(rate, demand.shape[1])
    other = jnp.where(jnp.eye(demand.shape[1], dtype=bool), 0, 1).astype(demand.dtype)
    finish = jax.vmap(lambda one: star_completion(one * other, port, port))(demand)
    return finish.max(initial=0)
