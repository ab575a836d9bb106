"""Families of drawn demand that nothing was trained on or chosen by: first looked at in the last run.

Their structures are in none of `traffic.demand_families` and `traffic.broad_families`: distance on a ring, partners a
power of two away, and servers in an order in which nobody sends back. Only proportions matter: no unit is meant.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from mfabric_jax.traffic.broad_families import BROAD

Demand = Float[Array, "S S"]


def ring(key: Key[Array, ""], servers: int) -> Demand:
    """Servers on a ring in random order send less to those further away, by 0.4 to 0.7 a step, with noise."""
    order, part, noise = jax.random.split(key, 3)
    place = jax.random.permutation(order, servers)
    apart = jnp.abs(place[:, None] - place[None])
    apart = jnp.minimum(apart, servers - apart).astype(jnp.float32)
    return jax.random.uniform(part, (), jnp.float32, 0.4, 0.7) ** apart * _noise(noise, servers, 0.3)


def butterfly(key: Key[Array, ""], servers: int) -> Demand:
    """Recursive doubling: to the server 1, 2, 4, ... places on; each distance has its own log-normal bytes."""
    order, size, noise = jax.random.split(key, 3)
    place = jax.random.permutation(order, servers)
    on = (place[None] - place[:, None]) % servers
    much = jnp.exp(jax.random.normal(size, (servers,), jnp.float32))
    power = (on & (on - 1)) == 0
    return jnp.where(power & (on > 0), much[on], 0) * _noise(noise, servers, 0.2)


def one_way(key: Key[Array, ""], servers: int) -> Demand:
    """Servers in random order send to later ones alone: gamma draws of shape 0.7."""
    order, size = jax.random.split(key)
    place = jax.random.permutation(order, servers)
    return jnp.where(place[:, None] < place[None], jax.random.gamma(size, 0.7, (servers, servers), jnp.float32), 0)


UNSEEN: dict[str, Callable[[Key[Array, ""], int], Demand]] = {"ring": ring, "butterfly": butterfly, "one-way": one_way}
DRAWN = BROAD | UNSEEN


@functools.partial(jax.jit, static_argnames=("family", "servers"))
def demands_of(keys: Key[Array, "N"], family: str, servers: int) -> Float[Array, "N S S"]:
    """One demand of the family of `DRAWN` for every key; diagonals are zero."""
    demand = jax.vmap(lambda key: DRAWN[family](key, servers))(keys)
    return jnp.where(jnp.eye(servers, dtype=bool), 0, demand)


def _noise(key: Key[Array, ""], servers: int, spread: float) -> Demand:
    return jnp.exp(spread * jax.random.normal(key, (servers, servers), jnp.float32))
