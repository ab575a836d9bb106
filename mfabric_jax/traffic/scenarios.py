"""What the true demand may be where only a forecast is known: scenarios for policies that plan for many demands.

A forecast is taken to be the truth times log-normal errors. What pairs have beyond their rows and columns is believed
as far as it is larger than such errors would make it: empirical Bayes, with row and column means of the logarithms as
the prior. How large errors are is given, or estimated from past forecasts (`error_of`), whose errors can also be drawn
again as they were (`resampled`).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from mfabric_jax.checks import InputError, whole

TURNS = 8  # between rows and columns until both means are those of what the others leave


@functools.partial(jax.jit, static_argnames=("count", "shrink"))
def likely_demands(
    key: Key[Array, ""],
    forecast: Float[Array, "S S"],
    sigma: Float[Array, ""] | float,
    count: int,
    *,
    shrink: bool = True,
) -> Float[Array, "K S S"]:
    """`count` demands that may be true, in the forecast's unit; pairs forecast as silent are silent.

    - `sigma`: standard deviation of the logarithm of an error.
    - `shrink`: by empirical Bayes; otherwise the forecast itself is the middle of the scenarios.

    Scenarios come in pairs of opposite noise. Works for one forecast; `vmap` over keys and forecasts.
    """
    whole("count", count)
    middle, spread = believed(forecast, sigma) if shrink else (_logarithm(forecast)[0], jnp.asarray(sigma))
    spread = spread.astype(forecast.dtype)
    noise = jax.random.normal(key, (-(-count // 2), *forecast.shape), forecast.dtype)
    noise = jnp.stack([noise, -noise], axis=1).reshape(-1, *forecast.shape)[:count]
    return jnp.where(forecast[None] > 0, jnp.exp(middle[None] + spread * noise), 0)


def expected(
    forecast: Float[Array, "S S"], sigma: Float[Array, ""] | float
) -> tuple[Float[Array, "S S"], Float[Array, ""]]:
    """The mean of `likely_demands`, and the standard deviation of their logarithms."""
    largest = forecast.max(initial=0)
    relative = forecast / jnp.where(largest > 0, largest, 1)  # whatever the unit, the same numbers
    middle, spread = believed(relative, sigma)
    spread = spread.astype(forecast.dtype)
    log, some = _logarithm(relative)
    return forecast * jnp.where(some, jnp.exp(middle - log + spread**2 / 2), 1), spread


def believed(
    forecast: Float[Array, "S S"], sigma: Float[Array, ""] | float
) -> tuple[Float[Array, "S S"], Float[Array, ""]]:
    """Mean and standard deviation of the logarithm of the truth, given the forecast.

    Logarithms are row + column + rest; of the variance of the rest, what is above `sigma`^2 is the pairs' own.
    """
    log, some = _logarithm(forecast)
    dtype = log.dtype
    weight = some.astype(dtype)

    def mean(values, axis):
        total = weight.sum(axis, keepdims=True)
        return (weight * values).sum(axis, keepdims=True) / jnp.maximum(total, 1)

    row, column = jnp.zeros((len(log), 1), dtype), jnp.zeros((1, len(log)), dtype)
    for _ in range(TURNS):
        row = mean(log - column, 1)
        column = mean(log - row, 0)
    rest = jnp.where(some, log - row - column, 0)
    free = jnp.maximum(weight.sum() - some.any(1).sum().astype(dtype) - some.any(0).sum().astype(dtype) + 1, 1)
    error = jnp.asarray(sigma, dtype) ** 2
    own = jnp.maximum((rest**2).sum() / free - error, 0)
    part = jnp.where(own + error > 0, own / jnp.where(own + error > 0, own + error, 1), 1)
    return row + column + part * rest, jnp.sqrt(part * error)


def _logarithm(forecast):
    some = forecast > 0
    return jnp.where(some, jnp.log(jnp.where(some, forecast, 1)), 0), some


def resampled(
    key: Key[Array, ""],
    forecast: Float[Array, "S S"],
    past: Float[Array, "H S S"],
    true: Float[Array, "H S S"],
    count: int,
) -> Float[Array, "K S S"]:
    """`count` demands: the forecast with the errors that `past` forecasts of `true` demand had, drawn with replacement.

    A pair that one of the two had without bytes keeps its forecast.
    """
    whole("count", count)
    both = (past > 0) & (true > 0)
    factor = jnp.where(both, true / jnp.where(both, past, 1), 1)
    total = past.sum((1, 2)) / jnp.maximum(true.sum((1, 2)), jnp.finfo(true.dtype).tiny)
    drawn = jax.random.randint(key, (count,), 0, len(past))
    return forecast[None] * (factor * total[:, None, None])[drawn]


def error_of(past: Float[np.ndarray, "H S S"], true: Float[np.ndarray, "H S S"]) -> float:
    """The standard deviation of the logarithms of errors that past forecasts had, their common scale apart."""
    past, true = np.asarray(past, float), np.asarray(true, float)
    if past.shape != true.shape or past.ndim != 3 or not len(past):
        raise InputError(f"past must be [H S S] as true is, got {list(past.shape)} and {list(true.shape)}.")
    both = (past > 0) & (true > 0)
    log = np.log(np.where(both, past, 1)) - np.log(np.where(both, true, 1))
    count = np.maximum(both.sum((1, 2), keepdims=True), 1)
    rest = np.where(both, log - log.sum((1, 2), keepdims=True) / count, 0)
    free = max(both.sum() - both.any((1, 2)).sum(), 1)
    return float(np.sqrt((rest**2).sum() / free))
