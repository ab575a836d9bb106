"""Decide, by times and the delay, whether to keep the circuits, spread them evenly, or take proposed ones."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Num

from mfabric_jax.fabric import Region
from mfabric_jax.policies.circuit_search import ENOUGH
from mfabric_jax.policies.samples import Samples, samples_of
from mfabric_jax.policies.static import uniform_circuits
from mfabric_jax.routing import degree_bound
from mfabric_jax.routing.potentials import minimise
from mfabric_jax.support.array_module import Array
from mfabric_jax.traffic.scenarios import likely_demands

SCENARIOS = 2  # demands that time the candidates, with opposite noise
DESCENT = 24  # gradient steps towards the relay shares of each demand
RESTING = 0.002  # degree bounds that other circuits must save in addition to the delay
DOUBT = 0.1  # degree bounds per variance of errors that a proposal must save over even circuits
MOST_DOUBT = 0.02  # limit of this, in degree bounds


@functools.partial(jax.jit, static_argnames="steps")
def relay_times(samples: Samples, count: Num[Array, "S S"], steps: int) -> Float[Array, "K"]:
    """Return each sample's time over its degree bound, with relay shares after `steps` gradient steps."""

    def sample_time(pairs: Array, cold: Array, limit: Array):
        links, late = samples.links(pairs, count)
        return minimise(links.soft_time, cold, steps, enough=limit * (1 + ENOUGH / 2))[1] + late

    return jax.vmap(sample_time)(samples.pairs, samples.cold, samples.limit)


def weigh_circuits(
    proposal: Int[Array, "S S"],
    forecast: Float[Array, "S S"],
    region: Region,
    *,
    previous: Int[Array, "S S"] | None,
    sigma: Float[Array, ""] | float = 0.0,
    delay: Float[Array, ""] | float = 0.0,
) -> Int[Array, "S S"]:
    """Return the circuits with the least expected time: the current ones, even ones, or the `proposal`.

    - `forecast` [S S] bytes, whose log errors have standard deviation `sigma`. Candidates are timed under relay routing
      for two likely demands.
    - `previous`: current circuits, or None. `delay`: cost of a change, in degree bounds of the forecast.

    Other circuits must save `delay` plus 0.002 degree bounds. The proposal must also beat even circuits, by a margin
    that grows with the errors of the forecast. Illegal current circuits are never kept.
    """
    degrees = region.degrees
    even = uniform_circuits(degrees).astype(proposal.dtype)
    likely = likely_demands(jax.random.key(0), forecast, sigma, SCENARIOS)
    samples = samples_of(likely.astype(jnp.float32), region)
    doubt = jnp.minimum(DOUBT * jnp.asarray(sigma, jnp.float32) ** 2, MOST_DOUBT)
    stacked, extra = jnp.stack([even, proposal]), jnp.stack([jnp.zeros((), jnp.float32), doubt])
    if previous is not None:
        before, cost = previous.astype(proposal.dtype), jnp.asarray(delay, jnp.float32) + RESTING
        changed = jnp.any(stacked != before[None], axis=(1, 2))
        fits = (before.sum(1, dtype=jnp.int32) <= degrees).all()
        extra = jnp.concatenate([jnp.where(fits, 0.0, jnp.inf)[None], extra + jnp.where(changed, cost, 0)])
        stacked = jnp.concatenate([before[None], stacked])
    late = jax.vmap(lambda count: relay_times(samples, count, DESCENT))(stacked).mean(1)
    return stacked[jnp.argmin(late + extra.astype(late.dtype))]


def relative_delay(region: Region, demand: Float[Array, "S S"], hidden_s: Float[Array, ""] | float) -> Float[Array, ""]:
    """Return the region's exposed delay, in degree bounds of the demand; 0 without demand."""
    bound = degree_bound(region, demand)
    exposed = jnp.maximum(jnp.asarray(region.delay_s, bound.dtype) - jnp.asarray(hidden_s, bound.dtype), 0)
    return jnp.where(bound > 0, exposed / jnp.where(bound > 0, bound, 1), 0).astype(jnp.float32)
