"""TopoOpt-like circuits: computed once from expected demand. A ring for all-reduce, matchings for the rest.

Source: Wang et al., NSDI 2023, topology finder: rings for all-reduce groups, then for every further interface a
maximum-weight matching of the remaining demand, which is halved where a pair is served. Deviations: circuits join both
directions; the matching is the greedy one (at least half of the maximum weight); interfaces for the ring are given, not
in proportion to demand.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.rings import RING_NICS
from mfabric_jax.routing import Plan
from mfabric_jax.routing.region import as_demand


def topoopt(demand: Float[Array, "S S"], region: Region, *, previous=None, key=None) -> Plan:
    """A chain of neighbouring servers (their part of the all-reduce ring, which joins the whole stage), then
    matchings of `demand` [S S] bytes with the NICs that are left. Never looks at `previous`."""
    demand, servers = as_demand(demand), region.servers
    if demand.shape != (servers, servers):
        raise InputError(f"demand must be [S S] with S = {servers} servers, got {list(demand.shape)}.")
    return Plan(Circuits(_wired(demand, region.degrees)))


@jax.jit
def _wired(demand: Float[Array, "S S"], degree) -> Array:
    servers = len(demand)
    place = jnp.arange(servers)
    chain = jnp.abs(place[:, None] - place[None, :]) == 1
    chain = jnp.where((degree[:, None] >= RING_NICS) & (degree[None, :] >= RING_NICS) & chain, 1, 0).astype(jnp.int32)
    return chain + matchings(demand, jnp.maximum(degree - RING_NICS, 0))


@jax.jit
def matchings(demand: Float[Array, "S S"], free: Int[Array, "S"]) -> Int[Array, "S S"]:
    """Circuits [S S]: matchings of demand, both directions added, until no two servers with demand have NICs `free`.

    What a pair has left is halved with each of its circuits.
    """
    total = jnp.triu(demand + demand.T, 1)
    total = total + total.T

    def more(state):
        _, free, left = state
        spare = free > 0
        return ((left > 0) & spare[:, None] & spare[None, :]).any()

    def match(state):
        count, free, left = state
        taken = _matching(left, free > 0)
        return count + taken, free - taken.sum(axis=1, dtype=jnp.int32), jnp.where(taken > 0, left / 2, left)

    nothing = jnp.zeros(total.shape, jnp.int32)
    return lax.while_loop(more, match, (nothing, jnp.asarray(free), total))[0]


def _matching(weight: Float[Array, "S S"], willing) -> Array:
    """Heaviest pair first, among servers that are willing and not yet taken [S S] of 0 and 1."""
    servers = weight.shape[0]

    def step(_, state):
        taken, willing = state
        open_ = jnp.where(willing[:, None] & willing[None, :] & (weight > 0), jnp.triu(weight, 1), 0)  # no NaN
        i, j = jnp.divmod(jnp.argmax(open_), servers)
        found = (open_[i, j] > 0).astype(jnp.int32)
        taken = taken.at[i, j].add(found).at[j, i].add(found)
        closed = found > 0
        willing = willing.at[i].set(willing[i] & ~closed).at[j].set(willing[j] & ~closed)
        return taken, willing

    nobody = jnp.zeros((servers, servers), jnp.int32)
    return lax.fori_loop(0, servers // 2, step, (nobody, willing))[0]
