"""Where an environment's demand comes from, step by step: a drifting draw, or a recording."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from mfabric_jax.checks import InputError, not_negative, positive
from mfabric_jax.routing.region import as_demand

BYTES_PER_SERVER = 268e6  # bytes: 4096 tokens, 8 experts each, 8 kB a time


class Drift(eqx.Module):
    """Demand that drifts: every server sends the same bytes, divided over the others by what is popular.

    - `bytes_per_server`: what each sends in a step without a burst.
    - `skew`, `pairs`: standard deviation of the logarithms of a receiver's popularity, and of a pair's beside it; both
      walk at random and are drawn back: `memory` is their correlation from step to step.
    - `heat`: logarithm of the factor on one hot receiver; another is it with probability `moves` a step.
    - `burst`: probability that a step has `burst_times` the bytes.
    """

    bytes_per_server: Any = BYTES_PER_SERVER
    skew: Any = 1.0
    pairs: Any = 0.5
    memory: Any = 0.98
    heat: Any = 1.5
    moves: Any = 0.02
    burst: Any = 0.05
    burst_times: Any = 3.0

    def __check_init__(self):
        positive("bytes_per_server", self.bytes_per_server)
        for field in ("skew", "pairs", "heat", "burst_times"):
            not_negative(field, getattr(self, field))
        for field in ("memory", "moves", "burst"):
            value = not_negative(field, getattr(self, field))
            if not isinstance(value, Tracer) and np.any(np.asarray(value) > 1):
                raise InputError(f"{field} must be at most 1, got {value}.")

    def first(self, key, servers: int, dtype):
        """(state, demand [S S]) of the first step."""
        walk, hot, key = jax.random.split(key, 3)
        place = jax.random.randint(hot, (), 0, servers, jnp.int32)
        return self.next(key, (jax.random.normal(walk, (servers + 1, servers), dtype), place))

    def next(self, key, state):
        """(state, demand [S S]) of the next step."""
        walks, place = state  # walks: one of receivers, then those of pairs
        servers, dtype = walks.shape[1], walks.dtype
        walk, chance = jax.random.split(key)
        at = {field.name: jnp.asarray(getattr(self, field.name), dtype) for field in dataclasses.fields(self)}
        fresh = jax.random.normal(walk, walks.shape, dtype)
        walks = at["memory"] * walks + jnp.sqrt(1 - at["memory"] ** 2) * fresh
        moved, to, burst = jax.random.uniform(chance, (3,), dtype)
        place = jnp.where(moved < at["moves"], (to * servers).astype(jnp.int32), place)
        hot = (jnp.arange(servers, dtype=jnp.int32) == place).astype(dtype)
        logits = (at["skew"] * walks[0] + at["heat"] * hot)[None, :] + at["pairs"] * walks[1:]
        size = at["bytes_per_server"] * jnp.where(burst < at["burst"], at["burst_times"], 1)
        share = jax.nn.softmax(jnp.where(jnp.eye(servers, dtype=bool), -jnp.inf, logits), axis=1)
        return (walks, place), size * share


class Recorded(eqx.Module):
    """A recorded trace, `demands` [T S S] bytes, over and over; every episode starts somewhere in it."""

    demands: Float[Array, "T S S"]

    def __init__(self, demands):
        self.demands = as_demand(demands)
        if self.demands.ndim != 3 or self.demands.shape[1] != self.demands.shape[2] or not len(self.demands):
            raise InputError(f"demands must be [T S S] with at least one step, got {list(self.demands.shape)}.")

    def first(self, key, servers: int, dtype):
        """(state, demand [S S]) of the first step."""
        if self.demands.shape[1] != servers:
            raise InputError(f"demands must be of the region's {servers} servers, got {list(self.demands.shape)}.")
        at = jax.random.randint(key, (), 0, len(self.demands), jnp.int32)
        return at, self.demands[at].astype(dtype)

    def next(self, key, state):
        """(state, demand [S S]) of the next step."""
        at = (state + 1) % len(self.demands)
        return at, self.demands[at]
