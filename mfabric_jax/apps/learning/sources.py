"""Sources of the demand that an environment serves: drawn and drifting, or recorded.

A source has `first(key, servers, dtype) -> (state, demand)` and `next(key, state) -> (state, demand)`.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Float

from mfabric_jax.checks import InputError, not_negative, positive
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.arrays import floats_or_nan
from mfabric_jax.support.host_arrays import NOT_NEGATIVE

BYTES_PER_SERVER = 268e6  # bytes: 4096 tokens, each to 8 experts, 8 kB per copy


class Drift(eqx.Module):
    """Drifting demand: every server sends the same number of bytes, split by the popularity of the receivers.

    - `bytes_per_server`: bytes sent by each server in a step without a burst.
    - `skew`, `pairs`: standard deviation of the log popularity of receivers and of pairs; `memory`: correlation between
      steps.
    - `heat`: log factor of one hot receiver; `moves`: probability per step that another server becomes hot.
    - `burst`: probability of a step with `burst_times` the bytes.
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
        walk, hot, key = jax.random.split(key, 3)
        hot_server = jax.random.randint(hot, (), 0, servers, jnp.int32)
        return self.next(key, (jax.random.normal(walk, (servers + 1, servers), dtype), hot_server))

    def next(self, key, state):
        walks, hot_server = state  # walks: one of receivers, then those of pairs
        servers, dtype = walks.shape[1], walks.dtype
        walk, chance = jax.random.split(key)
        values = {field.name: jnp.asarray(getattr(self, field.name), dtype) for field in dataclasses.fields(self)}
        fresh = jax.random.normal(walk, walks.shape, dtype)
        walks = values["memory"] * walks + jnp.sqrt(1 - values["memory"] ** 2) * fresh
        moved, to, burst = jax.random.uniform(chance, (3,), dtype)
        hot_server = jnp.where(moved < values["moves"], (to * servers).astype(jnp.int32), hot_server)
        hot = (jnp.arange(servers, dtype=jnp.int32) == hot_server).astype(dtype)
        logits = (values["skew"] * walks[0] + values["heat"] * hot)[None, :] + values["pairs"] * walks[1:]
        size = values["bytes_per_server"] * jnp.where(burst < values["burst"], values["burst_times"], 1)
        share = jax.nn.softmax(jnp.where(jnp.eye(servers, dtype=bool), -jnp.inf, logits), axis=1)
        return (walks, hot_server), size * share


class Recorded(eqx.Module):
    """A recorded trace, `demands` [T S S] bytes, that repeats forever; each episode starts at a random step."""

    demands: Float[Array, "T S S"]

    def __init__(self, demands):
        self.demands = floats_or_nan("demands", demands, NOT_NEGATIVE)
        if self.demands.ndim != 3 or self.demands.shape[1] != self.demands.shape[2] or not len(self.demands):
            raise InputError(f"demands must be [T S S] with at least one step, got {list(self.demands.shape)}.")

    def first(self, key, servers: int, dtype):
        if self.demands.shape[1] != servers:
            raise InputError(f"demands must be of the region's {servers} servers, got {list(self.demands.shape)}.")
        step = jax.random.randint(key, (), 0, len(self.demands), jnp.int32)
        return step, self.demands[step].astype(dtype)

    def next(self, key, state):
        step = (state + 1) % len(self.demands)
        return step, self.demands[step]
