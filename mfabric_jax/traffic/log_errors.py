"""How far guesses about demand are off: errors of logarithms, after removing the common scale of each guess."""

import numpy as np
from jaxtyping import Bool, Float

from mfabric_jax.checks import InputError
from mfabric_jax.support.array_module import Array, array_module


def log_errors(
    guess: Float[Array, "*B S S"], demand: Float[Array, "*B S S"]
) -> tuple[Float[Array, "*B S S"], Bool[Array, "*B S S"]]:
    """Return the log errors around their mean over the pairs with bytes in both, and which pairs these are.

    The error of any other pair is 0.
    """
    xp, both = array_module(guess, demand), (guess > 0) & (demand > 0)
    many = xp.maximum(both.sum((-2, -1), keepdims=True), 1).astype(guess.dtype)
    error = xp.where(both, xp.log(xp.where(both, guess, 1)) - xp.log(xp.where(both, demand, 1)), 0)
    return xp.where(both, error - error.sum((-2, -1), keepdims=True) / many, 0), both


def mean_squared_error(guess: Float[Array, "*B S S"], demand: Float[Array, "*B S S"]) -> Float[Array, "*B"]:
    """Return the mean square of each guess's `log_errors`; 0 if no pair has bytes in both."""
    error, both = log_errors(guess, demand)
    return (error**2).sum((-2, -1)) / array_module(error).maximum(both.sum((-2, -1)), 1).astype(error.dtype)


def error_of(past: Float[np.ndarray, "H S S"], true: Float[np.ndarray, "H S S"]) -> float:
    """Return the standard deviation of past forecasts' `log_errors`; each scale takes a degree of freedom."""
    past, true = np.asarray(past, float), np.asarray(true, float)
    if past.shape != true.shape or past.ndim != 3 or not len(past):
        raise InputError(f"past and true must both be [H S S], got {list(past.shape)} and {list(true.shape)}.")
    error, both = log_errors(past, true)
    free = max(both.sum() - both.any((1, 2)).sum(), 1)
    return float(np.sqrt((error**2).sum() / free))
