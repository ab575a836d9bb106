"""Samplers of demand with fixed splits: one to train policies, one to choose among them, one to judge them.

For drawn families, the split is folded into the key, so one key gives different demand in every split. Of a recording,
the first four fifths of the records train, half of the others validate, and the rest test.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key

from mfabric_jax.checks import InputError, fraction, not_negative, one_of, whole
from mfabric_jax.traffic.demand_families import BROAD, FAMILIES, check_folds, fold_to_servers, gate_trace

SPLITS = ("train", "validation", "test")
TRAINED = 0.8  # leading fraction of a recording in "train"; "validation" has half of the others
APART = 0x5B1175  # folded into keys with the split, so that no other use derives the same keys


def even(key: Key[Array, ""], servers: int) -> Float[Array, "S S"]:
    """Return the same bytes from every server to every other."""
    return jnp.ones((servers, servers), jnp.float32)


DRIFT = "drift"
SAMPLED: dict[str, Callable[..., Float[Array, "S S"]]] = FAMILIES | BROAD | {DRIFT: even}


def split_key(key: Key[Array, ""], split: str) -> Key[Array, ""]:
    """Return the key of a split; no key derived from it equals a key derived for another split."""
    return jax.random.fold_in(jax.random.fold_in(key, APART), SPLITS.index(one_of("split", split, SPLITS)))


def split_records(records: int, split: str) -> slice:
    """Return which of `records` records belong to the split; if there are few, "test" is the first to be empty."""
    trained = max(round(TRAINED * records), 1)
    chosen = trained + -(-(records - trained) // 2)
    first, last = {"train": (0, trained), "validation": (trained, chosen), "test": (chosen, records)}[
        one_of("split", split, SPLITS)
    ]
    return slice(first, last)


def drifting(
    key: Key[Array, ""],
    demand: Float[Array, "S S"],
    steps: int,
    *,
    skew: Any = 0.5,
    pairs: Any = 0.5,
    memory: Any = 0.9,
) -> Float[Array, "T S S"]:
    """Return `steps` demands around `demand`: its pairs times exp(walk), as the popularity of experts drifts.

    - `skew`, `pairs`: standard deviations of the walk that all senders to a receiver share and of each pair's walk.
    - `memory`: correlation of a walk from one step to the next.

    Every demand has the total bytes of `demand`. Diagonals are zero.
    """
    servers, dtype = len(demand), demand.dtype
    begin, on = jax.random.split(key)
    skew, pairs, memory = (jnp.asarray(value, dtype) for value in (skew, pairs, memory))
    demand = jnp.where(jnp.eye(servers, dtype=bool), 0, demand)

    def move(walks, key):
        fresh = jax.random.normal(key, walks.shape, dtype)
        return (memory * walks + jnp.sqrt(1 - memory**2) * fresh,) * 2

    first = jax.random.normal(begin, (servers + 1, servers), dtype)
    later = lax.scan(move, first, jax.random.split(on, steps - 1))[1]
    walks = jnp.concatenate([first[None], later])
    demands = demand[None] * jnp.exp(skew * walks[:, :1] + pairs * walks[:, 1:])
    total = demands.sum((1, 2), keepdims=True)
    return demands * demand.sum() / jnp.where(total > 0, total, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
    """`sampler(key, servers) -> demand [S S]`; with `steps`, consecutive demands [steps S S].

    Only proportions matter; diagonals are zero. Works under `jit` and `vmap` over keys. Made by `traffic.sampler`.
    """

    family: str
    split: str
    skew: float = 0.5
    pairs: float = 0.5
    memory: float = 0.9
    count: np.ndarray | None = None  # a recording's records in the split

    def __call__(self, key: Key[Array, ""], servers: int, steps: int | None = None) -> Array:
        whole("servers", servers, at_least=2)
        if steps is not None:
            whole("steps", steps)
        key = split_key(key, self.split)
        if self.count is not None:
            return self._draw_recorded(key, servers, steps)
        draw, walk = jax.random.split(key)
        demand = SAMPLED[self.family](draw, servers)
        if steps is None and self.family != DRIFT:
            return jnp.where(jnp.eye(servers, dtype=bool), 0, demand)
        demands = drifting(walk, demand, steps or 1, skew=self.skew, pairs=self.pairs, memory=self.memory)
        return demands[0] if steps is None else demands

    def recorded_demands(self, servers: int) -> Float[np.ndarray, "T C S S"]:
        """Return all demands of a recording's split, [record, layer and micro-batch, S, S]."""
        assert self.count is not None
        return _cached_demands(self, servers)

    def _draw_recorded(self, key, servers: int, steps: int | None) -> Array:
        demands = jnp.asarray(self.recorded_demands(servers))
        many = 1 if steps is None else steps
        if many > len(demands):
            raise InputError(f"steps must be at most the {len(demands)} records of the {self.split} split, got {many}.")
        begin, which = jax.random.split(key)
        start = jax.random.randint(begin, (), 0, len(demands) - many + 1)
        chosen = lax.dynamic_slice_in_dim(demands, start, many)[:, jax.random.randint(which, (), 0, demands.shape[1])]
        return chosen[0] if steps is None else chosen


@functools.lru_cache(maxsize=8)
def _cached_demands(of: Sampler, servers: int) -> np.ndarray:
    check_folds("servers", (servers,))
    assert of.count is not None
    return fold_to_servers(of.count, servers).reshape(len(of.count), -1, servers, servers)


def sampler(
    family: str,
    split: str = "train",
    *,
    records: tuple[int, int] | None = None,
    skew: float = 0.5,
    pairs: float = 0.5,
    memory: float = 0.9,
) -> Sampler:
    """Return a sampler of one family of demand in one of its fixed splits: train, validation or test.

    - `family`: a name in `samplers.SAMPLED` (drawn), or the path of a recording. Each of its records, layers and
      micro-batches is a demand. It must fold to the requested servers. `records`: its first and last one.
    - `skew`, `pairs`, `memory`: as in `drifting`, for steps of drawn families. "drift" is even demand that drifts; its
      servers send unequal bytes, unlike those of `apps.learning.Drift` and so of `mfabric policies regimes`.

    Example: `traffic.sampler("zipf", "test")(jax.random.key(0), 8)`. Raise `InputError` if the family or split is
    unknown or the recording has no records in the split.
    """
    one_of("split", split, SPLITS)
    not_negative("skew", skew)
    not_negative("pairs", pairs)
    memory = 0.0 if memory == 0 else fraction("memory", memory)
    if family in SAMPLED:
        if records is not None:
            raise InputError(f"records is for a recording; family {family!r} is drawn, got {list(records)}.")
        return Sampler(family, split, skew, pairs, memory)
    if not any(mark in family for mark in "./"):
        one_of("family", family, SAMPLED)
    count = gate_trace(family, records).count
    chosen = count[split_records(len(count), split)]
    if not len(chosen):
        raise InputError(f"split {split!r} of {family!r} is empty: it has {len(count)} records in all.")
    return Sampler(family, split, count=chosen)
