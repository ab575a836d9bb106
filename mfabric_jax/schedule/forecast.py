"""Forecasts of demand from what was seen, for `follow`."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from mfabric_jax.checks import positive, whole
from mfabric_jax.routing.region import as_demand


def last(demands: Float[Array, "T S S"], period: int = 1) -> Float[Array, "T S S"]:
    """A forecast for `follow`: the demand of `period` steps ago (as many as there are blocks in turn); 0 before."""
    demands, period = as_demand(demands), whole("period", period)
    return jnp.concatenate([jnp.zeros_like(demands[:period]), demands[:-period]])


def moving_average(demands: Float[Array, "T S S"], weight: Any, period: int = 1) -> Float[Array, "T S S"]:
    """A forecast for `follow`: what was `period`, 2 `period`, ... steps ago, weighed by 1, 1 - `weight`,
    (1 - `weight`)^2, ... over the sum of these; 0 before. `weight` is above 0; 1 is `last`."""
    before = last(demands, period)
    stays = 1 - jnp.asarray(positive("weight", weight), before.dtype)

    def add(state, now):
        (sums, masses), (demand, at) = state, now
        turn = at % period
        one = jnp.where(at < period, 0, 1).astype(before.dtype)
        sums, masses = sums.at[turn].set(stays * sums[turn] + demand), masses.at[turn].set(stays * masses[turn] + one)
        return (sums, masses), sums[turn] / jnp.maximum(masses[turn], one / 2 + 0.5)

    empty = jnp.zeros((period, *before.shape[1:]), before.dtype), jnp.zeros(period, before.dtype)
    return lax.scan(add, empty, (before, jnp.arange(len(before))))[1]
