"""Scenarios of the true demand, given a forecast with log-normal errors, for policies that plan for many demands.

Empirical Bayes: the logarithm of a pair deviates from its row and column means. The model believes these deviations
only as far as they exceed the forecast's errors.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Key

from mfabric_jax.checks import InputError, whole
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.arrays import floats_or_nan
from mfabric_jax.support.host_arrays import NOT_NEGATIVE

ROUNDS = 8  # alternations between fitting row means and column means; both then agree


class Belief(NamedTuple):
    """Logarithms of a forecast, divided into `level` [S S] (row + column) and `residual` [S S].

    `residual` has `variance` with `free` degrees of freedom. `senders` [S 1] and `receivers` [1 S] count pairs, at
    least 1. `error` is the variance of errors.
    """

    level: Float[Array, "S S"]
    residual: Float[Array, "S S"]
    variance: Float[Array, ""]
    free: Float[Array, ""]
    senders: Float[Array, "S 1"]
    receivers: Float[Array, "1 S"]
    error: Float[Array, ""]

    def own(self, variance: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return the pairs' own part of the residual's variance, and the factor by which to believe the residual."""
        own = jnp.maximum(variance - self.error, 0)
        total = own + self.error
        return own, jnp.where(total > 0, own / jnp.where(total > 0, total, 1), 1)


def likely_demands(
    key: Key[Array, ""],
    forecast: Float[Array, "S S"],
    sigma: Float[Array, ""] | float,
    count: int,
) -> Float[Array, "K S S"]:
    """Return `count` plausible true demands, in the forecast's unit; pairs with a forecast of 0 stay 0.

    `sigma` is the standard deviation of log errors. Uncertain means and variances are drawn too. Scenarios come in
    pairs of opposite noise. The function takes one forecast; `vmap` it over keys and forecasts.
    """
    forecast = floats_or_nan("forecast", forecast, NOT_NEGATIVE)
    if forecast.ndim != 2:
        raise InputError(f"forecast must be [S S], got {list(forecast.shape)}; use vmap for a batch.")
    return _draw(key, forecast, floats_or_nan("sigma", sigma, NOT_NEGATIVE, forecast.dtype), whole("count", count))


@functools.partial(jax.jit, static_argnames="count")
def _draw(
    key: Key[Array, ""], forecast: Float[Array, "S S"], sigma: Float[Array, ""], count: int
) -> Float[Array, "K S S"]:
    log, some = _logarithm(forecast)
    belief = _belief(forecast, sigma)
    dtype = log.dtype

    def noise(key):
        variance, row, column, pair = jax.random.split(key, 4)
        chi = 2 * jax.random.gamma(variance, belief.free / 2, dtype=dtype)
        own, part = belief.own(belief.variance * belief.free / chi)
        mean = jnp.sqrt(own + belief.error)
        row = mean * jax.random.normal(row, belief.senders.shape, dtype) / jnp.sqrt(belief.senders)
        column = mean * jax.random.normal(column, belief.receivers.shape, dtype) / jnp.sqrt(belief.receivers)
        pair = jnp.sqrt(part * belief.error) * jax.random.normal(pair, log.shape, dtype)
        return belief.level + part * belief.residual, (1 - part) * (row + column) + pair

    middle, apart = jax.vmap(noise)(jax.random.split(key, -(-count // 2)))
    drawn = jnp.stack([middle + apart, middle - apart], axis=1).reshape(-1, *forecast.shape)[:count]
    return jnp.where(some[None], jnp.exp(drawn), 0 * forecast[None])  # NaN stays


def expected_demand(
    forecast: Float[Array, "S S"], sigma: Float[Array, ""] | float
) -> tuple[Float[Array, "S S"], Float[Array, ""]]:
    """Return the mean of the true demand and the standard deviation of its logarithm, as in `log_moments`."""
    largest = forecast.max(initial=0)
    relative = forecast / jnp.where(largest > 0, largest, 1)  # so that the unit does not matter
    middle, spread = log_moments(relative, sigma)
    spread = spread.astype(forecast.dtype)
    log, some = _logarithm(relative)
    return forecast * jnp.where(some, jnp.exp(middle - log + spread**2 / 2), 1), spread


def log_moments(
    forecast: Float[Array, "S S"], sigma: Float[Array, ""] | float
) -> tuple[Float[Array, "S S"], Float[Array, ""]]:
    """Return the mean and standard deviation of the true demand's logarithm, taking row and column means as exact."""
    belief = _belief(forecast, sigma)
    _, part = belief.own(belief.variance)
    return belief.level + part * belief.residual, jnp.sqrt(part * belief.error)


def _belief(forecast: Float[Array, "S S"], sigma) -> Belief:
    log, some = _logarithm(forecast)
    dtype = log.dtype
    weight = some.astype(dtype)
    senders, receivers = (jnp.maximum(weight.sum(axis, keepdims=True), 1) for axis in (1, 0))
    row, column = jnp.zeros((len(log), 1), dtype), jnp.zeros((1, len(log)), dtype)
    for _ in range(ROUNDS):
        row = (weight * (log - column)).sum(1, keepdims=True) / senders
        column = (weight * (log - row)).sum(0, keepdims=True) / receivers
    residual = jnp.where(some, log - row - column, 0)
    free = jnp.maximum(weight.sum() - some.any(1).sum().astype(dtype) - some.any(0).sum().astype(dtype) + 1, 1)
    error = jnp.asarray(sigma, dtype) ** 2
    return Belief(row + column, residual, (residual**2).sum() / free, free, senders, receivers, error)


def _logarithm(forecast):
    some = forecast > 0
    return jnp.where(some, jnp.log(jnp.where(some, forecast, 1)), 0), some
