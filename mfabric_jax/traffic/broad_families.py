"""Broader families of drawn demand between servers than `demand_families`: other structures than hot experts make.

Networks for scenarios are trained on them. Only proportions matter: no unit is meant.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

Demand = Float[Array, "S S"]
FACTOR = 6.0  # of hot rows and columns over others


def near_permutation(key: Key[Array, ""], servers: int) -> Demand:
    """Every server sends 50 to 90 % to one other, each to another one, and the rest to all, with noise."""
    order, part, noise = jax.random.split(key, 3)
    place = jax.random.permutation(order, servers)
    to = jnp.zeros((servers, servers), jnp.float32).at[place, jnp.roll(place, 1)].set(1)
    much = jax.random.uniform(part, (), jnp.float32, 0.5, 0.9)
    return (much * to + (1 - much) / servers) * jnp.exp(0.3 * jax.random.normal(noise, to.shape, jnp.float32))


def bipartite(key: Key[Array, ""], servers: int) -> Demand:
    """Two halves, chosen at random, that send to each other alone: Pareto 1.5."""
    order, size = jax.random.split(key)
    half = jax.random.permutation(order, servers) % 2
    return jnp.where(half[:, None] != half[None], _pareto(size, servers, 1.5), 0)


def low_rank(key: Key[Array, ""], servers: int) -> Demand:
    """Three outer products of gamma draws of shape 0.5."""
    row, column = jax.random.gamma(key, 0.5, (2, servers, 3), jnp.float32)
    return row @ column.T


def hot_row_and_column(key: Key[Array, ""], servers: int) -> Demand:
    """Pareto 1.2; one server sends, and one receives, six times as much."""
    size, row, column = jax.random.split(key, 3)
    sends, receives = (jax.random.permutation(one, servers) == 0 for one in (row, column))
    return _pareto(size, servers, 1.2) * _factor(sends)[:, None] * _factor(receives)[None]


def hot_rows(key: Key[Array, ""], servers: int) -> Demand:
    """One to three servers send six times as much, with noise."""
    many, which, noise = jax.random.split(key, 3)
    sends = jax.random.permutation(which, servers) < jax.random.randint(many, (), 1, 4)
    size = jnp.exp(0.5 * jax.random.normal(noise, (servers, servers), jnp.float32))
    return size * _factor(sends)[:, None]


def gate(key: Key[Array, ""], servers: int) -> Demand:
    """Tokens of a gate: every server's go to servers by a logistic-normal popularity, common and its own."""
    common, own, tokens = jax.random.split(key, 3)
    logits = jax.random.normal(common, (1, servers), jnp.float32)
    logits += 0.7 * jax.random.normal(own, (servers, servers), jnp.float32)
    chosen = jax.random.categorical(tokens, logits, axis=1, shape=(2048, servers))
    return jax.nn.one_hot(chosen, servers, dtype=jnp.float32).sum(0)


BROAD: dict[str, Callable[[Key[Array, ""], int], Demand]] = {
    "near-permutation": near_permutation,
    "bipartite": bipartite,
    "low-rank": low_rank,
    "hot-row-and-column": hot_row_and_column,
    "hot-rows": hot_rows,
    "gate": gate,
}


@functools.partial(jax.jit, static_argnames=("family", "servers"))
def drawn_of(
    keys: Key[Array, "N"], family: Callable[[Key[Array, ""], int], Demand], servers: int
) -> Float[Array, "N S S"]:
    """One demand of the family, such as those of `BROAD`, for every key; diagonals are zero."""
    demand = jax.vmap(lambda key: family(key, servers))(keys)
    return jnp.where(jnp.eye(servers, dtype=bool), 0, demand)


def _pareto(key: Key[Array, ""], servers: int, power: float) -> Demand:
    return jax.random.pareto(key, power, (servers, servers), jnp.float32)


def _factor(hot: Array) -> Array:
    return jnp.where(hot, FACTOR, 1.0).astype(jnp.float32)
