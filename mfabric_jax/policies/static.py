"""Policies that do not adapt circuits to each demand: uniform, previous, static, random, TopoOpt."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Num

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.nic_use import RING_NICS
from mfabric_jax.fabric.region import round_robin
from mfabric_jax.policies.arguments import demand_of, unless_nan
from mfabric_jax.policies.greedy import greedy
from mfabric_jax.routing import Plan
from mfabric_jax.support.array_module import Array, array_module


def uniform(demand: Array, region: Region, *, previous: Plan | None = None, key: Array | None = None) -> Plan:
    """Return circuits spread evenly over all pairs, which differ by at most one circuit.

    One NIC stays idle if the number of servers and the degree are odd. Round t of the spreading gives circuits only to
    servers with more than t NICs.
    """
    return Plan(Circuits(uniform_circuits(region.degrees)))


def uniform_circuits(degree: Int[Array, "S"]) -> Int[Array, "S S"]:
    """Return the circuits of `uniform`, as a NumPy array if `degree` is one."""
    rounds = _rounds(len(degree))
    if not len(rounds):
        return np.zeros((len(degree),) * 2, np.int32)
    xp = array_module(degree)
    both = xp.minimum(degree[:, None], degree[None, :])
    number = np.arange(len(rounds), dtype=np.int32)[:, None, None]
    times = (both[None] - 1 - number) // len(rounds) + 1  # how often each round is used [rounds S S]
    return (times * rounds).sum(0, dtype=np.int32)


def _rounds(servers: int) -> np.ndarray:
    """Return the circuits of each round [rounds S S], one per server; all rounds together join every pair once.

    The rounds of an odd number of servers come from rings of servers at equal distance, two rounds each.
    """
    if servers % 2 == 0:
        return round_robin(servers)
    rounds = np.zeros((servers - 1, servers, servers), np.int32)
    for distance in range(1, servers // 2 + 1):
        cycles = math.gcd(distance, servers)
        length = servers // cycles
        for start in range(cycles):
            for link in range(length):
                a, b = (start + link * distance) % servers, (start + (link + 1) * distance) % servers
                number = 2 * (distance - 1) + (link % 2 or link == length - 1)
                rounds[number, a, b] = rounds[number, b, a] = 1
    return rounds


def keep(demand: Array, region: Region, *, previous: Plan | None = None, key: Array | None = None) -> Plan:
    return uniform(demand, region) if previous is None else previous


def static(
    demand: Array,
    region: Region,
    *,
    previous: Plan | None = None,
    key: Array | None = None,
    mean: Float[Array, "S S"] | None = None,
) -> Plan:
    """Return the circuits of `greedy_next` for the `mean` demand [S S] bytes; `Partial(static, mean=mean)` fixes it."""
    if mean is None:
        raise InputError("policy 'static' needs mean, the demand [S S] that its circuits are chosen for; got none.")
    return greedy(demand_of(mean, region, "mean"), region, rule="next")


def static_for(mean: Array) -> jax.tree_util.Partial:
    """Return `static` with its mean demand, as a pytree."""
    return jax.tree_util.Partial(static, mean=mean)


def random_circuits(demand: Array, region: Region, *, previous: Plan | None = None, key: Array | None = None) -> Plan:
    """Return random circuits between free NICs, as many as the degrees allow; `key` is required.

    Circuits are drawn one after the other. All pairs of free NICs at two servers are equally likely (the configuration
    model without loops). All further circuits go to a server once it has as many free NICs as all others together, so
    that it leaves no usable NIC idle.
    """
    if key is None:
        raise InputError("policy 'random' needs a key, got none.")
    return Plan(Circuits(_draw_circuits(key, region.degrees)))


@jax.jit
def _draw_circuits(key: Array, degree: Int[Array, "S"]) -> Int[Array, "S S"]:
    servers = len(degree)

    def joinable(free: Array):
        """Return the log probability of each pair (upper triangle); minus infinity if it must not be next."""
        total = free.sum(dtype=free.dtype)
        must = 2 * free >= total - 1  # as many as all others together, or one fewer
        own = jnp.where(free > 0, jnp.log(jnp.maximum(free, 1).astype(jnp.float32)), -jnp.inf)
        ends = must[:, None].astype(jnp.int32) + must[None, :].astype(jnp.int32)
        pairs = jnp.where(np.triu(np.ones((servers, servers), bool), 1), own[:, None] + own[None, :], -jnp.inf)
        most = jnp.where(pairs > -jnp.inf, ends, 0).max(initial=0)
        return jnp.where(ends >= most, pairs, -jnp.inf)

    def more(state: tuple[Any, ...]):
        return (state[2] > -jnp.inf).any()

    def join(state: tuple[Any, ...]):
        count, free, pairs, key = state
        key, now = jax.random.split(key)
        i, j = jnp.divmod(jnp.argmax(pairs + jax.random.gumbel(now, pairs.shape, pairs.dtype)), servers)
        free = free.at[i].add(-1).at[j].add(-1)
        return count.at[i, j].add(1).at[j, i].add(1), free, joinable(free), key

    nothing = jnp.zeros((servers, servers), jnp.int32)
    return lax.while_loop(more, join, (nothing, degree, joinable(degree), key))[0]  # ends when no NIC is free


def topoopt(
    demand: Num[ArrayLike, "S S"], region: Region, *, previous: Plan | None = None, key: Array | None = None
) -> Plan:
    """Return a chain of neighbouring servers (part of the all-reduce ring), plus matchings of `demand` [S S] bytes.

    Source: Wang et al., NSDI 2023, topology finder. Deviations: circuits join both directions; the matching is greedy
    (at least half of the maximum weight); the ring's number of interfaces is fixed, not proportional to demand.
    """
    demand = demand_of(demand, region)
    return Plan(Circuits(unless_nan(_wire_topoopt(demand, region.degrees), demand)))


@jax.jit
def _wire_topoopt(demand: Float[Array, "S S"], degree: Array) -> Array:
    servers = len(demand)
    server = jnp.arange(servers)
    chain = jnp.abs(server[:, None] - server[None, :]) == 1
    chain = jnp.where((degree[:, None] >= RING_NICS) & (degree[None, :] >= RING_NICS) & chain, 1, 0).astype(jnp.int32)
    return chain + matchings(demand, jnp.maximum(degree - RING_NICS, 0))


@jax.jit
def matchings(demand: Float[Array, "S S"], free: Int[Array, "S"]) -> Int[Array, "S S"]:
    """Return circuits [S S] by repeated matchings within the `free` NICs; each circuit halves its pair's demand."""
    total = jnp.triu(demand + demand.T, 1)
    total = total + total.T

    def more(state: tuple[Any, ...]):
        _, free, left = state
        spare = free > 0
        return ((left > 0) & spare[:, None] & spare[None, :]).any()

    def match(state: tuple[Any, ...]):
        count, free, left = state
        taken = _matching(left, free > 0)
        return count + taken, free - taken.sum(axis=1, dtype=jnp.int32), jnp.where(taken > 0, left / 2, left)

    nothing = jnp.zeros(total.shape, jnp.int32)
    return lax.while_loop(more, match, (nothing, jnp.asarray(free), total))[0]


def _matching(weight: Float[Array, "S S"], willing: Array) -> Array:
    servers = weight.shape[0]

    def step(_, state: tuple[Any, ...]):
        taken, willing = state
        open_ = jnp.where(willing[:, None] & willing[None, :] & (weight > 0), jnp.triu(weight, 1), 0)  # no NaN
        i, j = jnp.divmod(jnp.argmax(open_), servers)
        added = (open_[i, j] > 0).astype(jnp.int32)
        taken = taken.at[i, j].add(added).at[j, i].add(added)
        closed = added > 0
        willing = willing.at[i].set(willing[i] & ~closed).at[j].set(willing[j] & ~closed)
        return taken, willing

    nobody = jnp.zeros((servers, servers), jnp.int32)
    return lax.fori_loop(0, servers // 2, step, (nobody, willing))[0]
