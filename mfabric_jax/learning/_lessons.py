"""Lessons: demands to choose circuits for, the forecasts of them that a policy sees, and their regions, in batches."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mfabric_jax.fabric import Region
from mfabric_jax.learning.settings import Training
from mfabric_jax.traffic.demand_families import misjudged

CERTAIN = 1 / 5  # of the forecasts are exact


class Lesson(NamedTuple):
    """One all-to-all."""

    region: Region
    demand: Float[Array, "S S"]  # true
    forecast: Float[Array, "S S"]
    sigma: Float[Array, ""]  # of the forecast's errors


@functools.partial(jax.jit, static_argnames=("config", "servers"))
def lessons(key: PRNGKeyArray, pool: Float[Array, "N S S"], config: Training, servers: int) -> Lesson:
    """A batch of them, of demands of the pool with their servers in another order; each has a region of its own."""
    return jax.vmap(lambda key: _lesson(key, pool, config, servers))(jax.random.split(key, config.batch))


def _lesson(key: PRNGKeyArray, pool, config: Training, servers: int) -> Lesson:
    keys = jax.random.split(key, 5)
    order = jax.random.permutation(keys[0], servers)
    demand = pool[jax.random.randint(keys[1], (), 0, len(pool))][order][:, order]
    sigma = config.noise * jnp.maximum((_part(keys[2]) - CERTAIN) / (1 - CERTAIN), 0)
    return Lesson(_region(keys[3], config.varied, servers), demand, misjudged(keys[4], demand, sigma), sigma)


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
