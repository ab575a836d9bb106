"""Policies that do not look at the demand: round-robin, random, for the mean demand, or whatever is there."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.circuits import round_robin
from mfabric_jax.policies._greedy import greedy
from mfabric_jax.routing import Plan


def uniform(demand, region: Region, *, previous=None, key=None) -> Plan:
    """Circuits spread evenly over all pairs: pairs differ by one circuit at most.

    Never changes, so it costs no reconfiguration. With odd servers and an odd degree one NIC has to stay idle. Where
    servers have unequal degrees, the t-th turn joins a pair only if both its ends have more than t NICs.
    """
    turns = _turns(region.servers)
    if not len(turns):
        return Plan(Circuits(jnp.zeros((region.servers,) * 2, jnp.int32)))
    degree = region.degrees
    both = jnp.minimum(degree[:, None], degree[None, :])
    turn = jnp.arange(len(turns), dtype=jnp.int32)[:, None, None]
    times = (both[None] - 1 - turn) // len(turns) + 1  # how often each turn is used [turns S S]
    return Plan(Circuits((times * jnp.asarray(turns)).sum(0, dtype=jnp.int32)))


def _turns(servers: int) -> np.ndarray:
    """Circuits that each further NIC of every server gets [turns S S]; all turns together join every pair once.

    Even: round-robin matchings. Odd: rings of servers at equal distance, two turns each: every other link of the
    ring, then the rest.
    """
    if servers % 2 == 0:
        return round_robin(servers)
    turns = np.zeros((servers - 1, servers, servers), np.int32)
    for distance in range(1, servers // 2 + 1):
        cycles = math.gcd(distance, servers)
        length = servers // cycles
        for start in range(cycles):
            for link in range(length):
                a, b = (start + link * distance) % servers, (start + (link + 1) * distance) % servers
                turn = 2 * (distance - 1) + (link % 2 or link == length - 1)
                turns[turn, a, b] = turns[turn, b, a] = 1
    return turns


def keep(demand, region: Region, *, previous: Plan | None = None, key=None) -> Plan:
    """The previous topology, whatever the demand; before there is one, the uniform topology."""
    return uniform(demand, region) if previous is None else previous


def static(demand, region: Region, *, previous=None, key=None, mean: Float[Array, "S S"] | None = None) -> Plan:
    """Circuits chosen once, for the `mean` demand [S S] bytes that is expected, whatever the demand turns out to be.

    They are those of greedy rule "next". `jax.tree_util.Partial(static, mean=mean)` fixes the expectation.
    """
    if mean is None:
        raise InputError("policy 'static' needs mean, the demand [S S] that its circuits are chosen for; got none.")
    return greedy(mean, region, rule="next")


def random_circuits(demand, region: Region, *, previous=None, key=None) -> Plan:
    """The uniform topology with servers allocated new places at random; `key` is needed."""
    if key is None:
        raise InputError("policy 'random' needs a key, got none.")
    place = jax.random.permutation(key, region.servers)
    allocated = dataclasses.replace(region, optical_degree=region.degrees[jnp.argsort(place)])
    return Plan(Circuits(uniform(demand, allocated).circuits.count[place][:, place]))
