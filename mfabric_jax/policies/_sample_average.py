import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies._greedy import greedy
from mfabric_jax.policies._soft_circuits import rounded, soft_circuits
from mfabric_jax.policies._static import uniform
from mfabric_jax.policies.relay_search import best_start, bettered
from mfabric_jax.policies.samples import Samples, samples_of, tail_of

FLOOR = 0.1
POWERS = (1.0, 0.5, 0.25)
APART = 0.12


def starts(samples: Samples, region: Region) -> Int[Array, "C S S"]:
    mean, degrees = samples.mean, samples.degrees
    pairs = jnp.maximum(mean, mean.T)
    floor = FLOOR * pairs.mean() + jnp.finfo(pairs.dtype).tiny
    scaled = [soft_circuits(power * jnp.log(pairs + floor), degrees) for power in POWERS]
    load = jnp.maximum(mean.sum(0), mean.sum(1))
    load = load / jnp.maximum(load.max(), jnp.finfo(load.dtype).tiny)
    scaled.append(soft_circuits(jnp.log(APART + (load[:, None] - load[None]) ** 2), degrees))
    made = jax.vmap(lambda soft: rounded(soft, degrees))(jnp.stack(scaled))
    plain = greedy(mean, region, rule="next").circuits.count, uniform(mean, region).circuits.count
    return jnp.concatenate([jnp.stack(plain), made])


@functools.partial(jax.jit, static_argnames=("rounds", "many", "tail"))
def found_for(demand, region, weights, key, rounds, many, tail):
    samples = samples_of(demand, region, weights)
    first = best_start(samples, starts(samples, region), tail, False)
    return first, bettered(samples, first, key, rounds, many, tail)
