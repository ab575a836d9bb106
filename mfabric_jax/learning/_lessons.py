"""Lessons: demands to choose circuits for, the forecasts of them that a policy sees, and their regions, in batches."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax import policies
from mfabric_jax.fabric import Region
from mfabric_jax.learning.settings import Training
from mfabric_jax.policies._local_search import local_search
from mfabric_jax.policies._threshold import threshold
from mfabric_jax.traffic.demand_families import FAMILIES, drawn, misjudged

CERTAIN = 1 / 3  # of the forecasts are exact
FRESH = 1 / 2  # of the regions have no circuits yet


class Lesson(NamedTuple):
    """One all-to-all."""

    region: Region
    demand: Float[Array, "S S"]  # true
    forecast: Float[Array, "S S"]
    previous: Int[Array, "S S"]  # circuits in place; 0 where there are none


@functools.partial(jax.jit, static_argnames=("config", "servers"))
def lessons(key: PRNGKeyArray, pooled: Float[Array, "N S S"], config: Training, servers: int) -> Lesson:
    """A batch of them; those of one batch have regions alike or each its own."""
    return jax.vmap(lambda key: _lesson(key, pooled, config, servers))(jax.random.split(key, config.batch))


def _lesson(key: PRNGKeyArray, pooled, config: Training, servers: int) -> Lesson:
    keys = jax.random.split(key, 9)
    of_family = drawn(keys[0], jax.random.randint(keys[1], (), 0, len(FAMILIES)), servers)
    of_pool = pooled[jax.random.randint(keys[2], (), 0, len(pooled))]
    demand = jnp.where(_part(keys[3]) < config.pooled, of_pool, of_family)
    order = jax.random.permutation(keys[4], servers)
    demand = demand[order][:, order]
    sigma = config.noise * jnp.maximum((_part(keys[5]) - CERTAIN) / (1 - CERTAIN), 0)
    region = _region(keys[6], config.varied, servers)
    earlier, now = jax.random.split(keys[7])
    before = policies.greedy(misjudged(earlier, demand, sigma), region, rule="next").circuits.count
    before = jnp.where(_part(keys[8]) < FRESH, 0, before)
    return Lesson(region, demand, misjudged(now, demand, sigma), before)


def _region(key: PRNGKeyArray, varied: float, servers: int) -> Region:
    """6 + 2 NICs at efficiency 1; or 2 to 8 and 1 to 4, at efficiency 0.6 to 1, some servers with one OCS NIC less."""
    keys = jax.random.split(key, 5)
    other = _part(keys[0]) < varied
    lost = jax.random.bernoulli(keys[2], 0.1, (servers,)).astype(jnp.int32)
    degree = jax.random.randint(keys[1], (), 2, 9, jnp.int32) - lost
    electrical = jax.random.randint(keys[3], (), 1, 5).astype(jnp.float32)
    return Region(
        servers,
        jnp.ones((), jnp.float32),
        jnp.where(other, degree, 6),
        jnp.where(other, electrical, 2),
        relay_efficiency=jnp.where(other, 0.6 + 0.4 * _part(keys[4]), 1),
    )


def _part(key: PRNGKeyArray) -> Float[Array, ""]:
    return jax.random.uniform(key, (), jnp.float32)


@functools.partial(jax.jit, static_argnames=("teacher", "routing"))
def taught(batch: Lesson, teacher: str, routing: str) -> Int[Array, "B S S"]:
    """What the teacher, who knows the true demand, would choose. Under relay routing as for split routing."""
    routing = "split" if routing == "relay" else routing
    chooses = {
        "greedy": functools.partial(policies.greedy, rule="next"),
        "threshold": functools.partial(threshold, routing=routing),
        "local-search": functools.partial(local_search, routing=routing),
    }[teacher]
    return jax.vmap(lambda demand, region: chooses(demand, region).circuits.count)(batch.demand, batch.region)
