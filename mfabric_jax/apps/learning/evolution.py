"""Evolution strategies: slopes of the expected loss under normal noise on the weights, in pairs of opposite sign.

Source: Salimans et al., arXiv 1703.03864, 2017.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def count_weights(model: Any) -> int:
    """Return the number W of weights of a model."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))


def evolve(
    loss: Callable[[Any], Array], model: Any, noise: Float[Array, "P W"], deviation: float
) -> tuple[Float[Array, ""], Any]:
    """Return the mean loss, and slopes in a tree like the model, from P pairs of opposite weight changes.

    - `noise`: standard normal; `deviation`: its standard deviation on the weights.
    """
    weights, static = eqx.partition(model, eqx.is_inexact_array)
    flat, tree_of = jax.flatten_util.ravel_pytree(weights)

    def loss_at(flat: Array):
        return loss(eqx.combine(tree_of(flat), static))

    def pair(noise: Array):
        away = deviation * noise
        plus, minus = lax.map(loss_at, jnp.stack([flat + away, flat - away]))
        return (plus + minus) / 2, (plus - minus) / 2 * away / deviation**2

    losses, slopes = lax.map(pair, noise)
    return losses.mean(), tree_of(slopes.mean(0))
