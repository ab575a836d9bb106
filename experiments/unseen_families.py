"""Families of drawn demand that nothing was trained on or chosen by: first looked at in the last run.

Their structures are in none of those of `traffic.demand_families`: partners a power of two away,
rows and columns of a grid, and a tree. Only proportions matter: no unit is meant.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from mfabric_jax.traffic.demand_families import BROAD, drawn_of

Demand = Float[Array, "S S"]


def butterfly(key: Key[Array, ""], servers: int) -> Demand:
    """Recursive doubling: to the server 1, 2, 4, ... places on; each distance has its own log-normal bytes."""
    order, size, noise = jax.random.split(key, 3)
    place = jax.random.permutation(order, servers)
    on = (place[None] - place[:, None]) % servers
    much = jnp.exp(jax.random.normal(size, (servers,), jnp.float32))
    power = (on & (on - 1)) == 0
    return jnp.where(power & (on > 0), much[on], 0) * _noise(noise, servers, 0.2)


def grid(key: Key[Array, ""], servers: int) -> Demand:
    """Servers in random order on a grid send along its rows, and along its columns: each way has its own bytes."""
    order, size, noise = jax.random.split(key, 3)
    wide = max(many for many in range(1, math.isqrt(servers) + 1) if servers % many == 0)
    place = jax.random.permutation(order, servers)
    row, column = place // wide, place % wide
    much = jnp.exp(jax.random.normal(size, (2,), jnp.float32))
    along = jnp.where(row[:, None] == row[None], much[0], 0) + jnp.where(column[:, None] == column[None], much[1], 0)
    return along * _noise(noise, servers, 0.3)


def tree(key: Key[Array, ""], servers: int) -> Demand:
    """A gather along a binary tree in random order: more from larger branches; 20 to 100 % come back from the root."""
    order, part, noise = jax.random.split(key, 3)
    parent = (np.arange(servers) - 1) // 2
    size = np.ones(servers, np.float32)
    for child in range(servers - 1, 0, -1):
        size[parent[child]] += size[child]
    up = np.zeros((servers, servers), np.float32)
    up[np.arange(1, servers), parent[1:]] = size[1:]
    both = up + jax.random.uniform(part, (), jnp.float32, 0.2, 1.0) * up.T
    place = jax.random.permutation(order, servers)
    return both[place[:, None], place[None]] * _noise(noise, servers, 0.3)


UNSEEN: dict[str, Callable[[Key[Array, ""], int], Demand]] = {"butterfly": butterfly, "grid": grid, "tree": tree}
DRAWN = BROAD | UNSEEN


def demands_of(keys: Key[Array, "N"], family: str, servers: int) -> Float[Array, "N S S"]:
    """One demand of the family of `DRAWN` for every key; diagonals are zero."""
    return drawn_of(keys, DRAWN[family], servers)


def _noise(key: Key[Array, ""], servers: int, spread: float) -> Demand:
    return jnp.exp(spread * jax.random.normal(key, (servers, servers), jnp.float32))
