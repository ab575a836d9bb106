"""A smooth surrogate of exact times, for optimisation across their kinks.

Exact max-min times are continuous but kinked, wherever another port or another flow becomes the last. Averaged over
Gaussian noise of scale `temperature` on the logarithms of bytes and capacities they are smooth, and they tend to the
exact time with the temperature: what is averaged is exact, so nothing but the noise is given up. (A log-sum-exp over
ports tends to the port bound instead, which is not the max-min time.) The average is over a fixed set of noise, so the
surrogate is a plain deterministic function; the set is antithetic, so the error is second order in the temperature
away from kinks and first order at them: on drawn all-to-alls of 8 servers it ends a mean 49 % late at temperature 0.3,
6.5 % at 0.1, 0.6 % at 0.03, 0.08 % at 0.01 (40 draws; every draw came closer at every step).

Source: Berthet et al., Learning with Differentiable Perturbed Optimizers, 2020.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from mfabric_jax.checks import not_negative, whole

Point = TypeVar("Point")  # a pytree of arrays


def soft_time(
    time: Callable[[Point], Float[Array, ""]],
    at: Point,
    temperature: ArrayLike,
    *,
    pairs: int = 16,
    key: Array | None = None,
) -> Float[Array, ""]:
    """Mean of `time` over 2 * `pairs` points around `at`: every float leaf times exp(temperature * noise).

    - `at`: the bytes and capacities that `time` reads, a pytree; zero, infinity and integers stay as they are.
    - `temperature`: relative scale of the noise, 0 or more; 0 is the exact time. It may be traced.
    - `key`: another set of noise; None: always the same one.

    The derivative is exactly that of this mean, forward and reverse. A kink of `time` becomes 2 * `pairs` kinks beside
    it, each that much smaller: across a kink the slope goes from one side's to the other's over a width of about the
    temperature. Infinite where `time` is infinite at any of the points. Costs 2 * `pairs` times `time`, as one `vmap`.
    """
    not_negative("temperature", temperature)
    whole("pairs", pairs)
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, at))
    keys = jax.random.split(jax.random.key(0) if key is None else key, max(len(leaves), 1))
    around = [_around(leaf, temperature, pairs, key) for leaf, key in zip(leaves, keys, strict=False)]
    return jax.vmap(lambda *leaves: time(jax.tree.unflatten(structure, leaves)))(*around).mean()


def _around(leaf: Array, temperature: ArrayLike, pairs: int, key: Array) -> Array:
    """[2 pairs ...]: the leaf at every point."""
    together = jnp.broadcast_to(leaf[None], (2 * pairs, *leaf.shape))
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return together
    noise = jax.random.normal(key, (pairs, *leaf.shape), jnp.float32).astype(leaf.dtype)  # alike in every dtype
    noise = jnp.concatenate([noise, -noise])
    factor = jnp.exp(jnp.asarray(temperature).astype(leaf.dtype) * noise)
    return together * factor
