"""Families of random demand between servers, to train and compare policies; only proportions matter."""

import functools
import hashlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key, Num

from mfabric_jax import traffic, workload
from mfabric_jax.checks import InputError
from mfabric_jax.traffic.recording import recording_of

# `BROAD`: further families, whose structures do not come from hot experts. They also train networks for scenarios.

Demand = Float[Array, "S S"]
FACTOR = 6.0  # bytes of hot rows and columns over bytes of others


def near_permutation(key: Key[Array, ""], servers: int) -> Demand:
    """Every server sends 50 to 90 % to one server and spreads the rest evenly over all, with noise."""
    order, part, noise = jax.random.split(key, 3)
    senders = jax.random.permutation(order, servers)
    to = jnp.zeros((servers, servers), jnp.float32).at[senders, jnp.roll(senders, 1)].set(1)
    much = _between(part, 0.5, 0.9)
    return (much * to + (1 - much) / servers) * jnp.exp(0.3 * _normal(noise, servers))


def bipartite(key: Key[Array, ""], servers: int) -> Demand:
    """Two random halves send only to each other, with Pareto 1.5 sizes."""
    order, size = jax.random.split(key)
    half = jax.random.permutation(order, servers) % 2
    return jnp.where(half[:, None] != half[None], _pareto(size, servers, 1.5), 0)


def low_rank(key: Key[Array, ""], servers: int) -> Demand:
    """Sum of three outer products of gamma draws of shape 0.5."""
    row, column = jax.random.gamma(key, 0.5, (2, servers, 3), jnp.float32)
    return row @ column.T


def hot_row_and_column(key: Key[Array, ""], servers: int) -> Demand:
    """Pareto 1.2 sizes; one server sends six times as much, and one receives six times as much."""
    size, row, column = jax.random.split(key, 3)
    sends, receives = (jax.random.permutation(part, servers) == 0 for part in (row, column))
    return _pareto(size, servers, 1.2) * _factor(sends)[:, None] * _factor(receives)[None]


def hot_rows(key: Key[Array, ""], servers: int) -> Demand:
    """One to three servers send six times as much, with noise."""
    many, which, noise = jax.random.split(key, 3)
    sends = jax.random.permutation(which, servers) < jax.random.randint(many, (), 1, 4)
    size = jnp.exp(0.5 * _normal(noise, servers))
    return size * _factor(sends)[:, None]


def gate(key: Key[Array, ""], servers: int) -> Demand:
    """Token counts of a gate: servers' log popularity is normal, with a common and a per-source part."""
    common, apart, tokens = jax.random.split(key, 3)
    logits = jax.random.normal(common, (1, servers), jnp.float32)
    logits += 0.7 * _normal(apart, servers)
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
def draw_family(
    keys: Key[Array, "N"], family: Callable[[Key[Array, ""], int], Demand], servers: int
) -> Float[Array, "N S S"]:
    """Return one demand of `family` per key; diagonals are zero."""
    demand = jax.vmap(lambda key: family(key, servers))(keys)
    return jnp.where(jnp.eye(servers, dtype=bool), 0, demand)


def _pareto(key: Key[Array, ""], servers: int, power: float) -> Demand:
    return jax.random.pareto(key, power, (servers, servers), jnp.float32)


def _factor(hot: Array) -> Array:
    return jnp.where(hot, FACTOR, 1.0).astype(jnp.float32)


Scalar = Float[Array, ""]
GRID = 10_000 / np.pi  # steps per unit of share in a digest; irrational, so that no ratio of counts is half-way
TRACED = "qwen-moe-ep16"  # 16 ranks and 32 experts, like the SmartMoE gate trace


def zipf(key: Key[Array, ""], servers: int) -> Demand:
    """The pair of random rank r has size r^-s, with s from 0.6 to 1.6."""
    order, power = jax.random.split(key)
    rank = 1 + jax.random.permutation(order, servers * servers).reshape(servers, servers)
    return rank.astype(jnp.float32) ** -_between(power, 0.6, 1.6)


def hot(key: Key[Array, ""], servers: int) -> Demand:
    """One to three servers receive 30 to 80 % of every row, with noise."""
    keys = jax.random.split(key, 4)
    many = jax.random.randint(keys[0], (), 1, min(4, servers))
    part = _between(keys[1], 0.3, 0.8)
    chosen = jax.random.permutation(keys[2], servers) < many
    column = jnp.where(chosen, part / many.astype(part.dtype), (1 - part) / (servers - many).astype(part.dtype))
    return column[None, :] * jnp.exp(0.3 * _normal(keys[3], servers))


def sparse(key: Key[Array, ""], servers: int) -> Demand:
    """Log-normal bytes on 10 to 50 % of the pairs."""
    keys = jax.random.split(key, 3)
    kept = jax.random.uniform(keys[0], (servers, servers), jnp.float32) < _between(keys[1], 0.1, 0.5)
    return jnp.where(kept, jnp.exp(_normal(keys[2], servers)), 0)


def block(key: Key[Array, ""], servers: int) -> Demand:
    """Random groups of 2 to 4 servers, 5 to 40 times heavier inside than outside."""
    keys = jax.random.split(key, 4)
    group = jax.random.permutation(keys[0], servers) // jax.random.randint(keys[1], (), 2, 5)
    heavy = jnp.where(group[:, None] == group[None, :], _between(keys[2], 5.0, 40.0), 1)
    return heavy * jnp.exp(0.5 * _normal(keys[3], servers))


def dense(key: Key[Array, ""], servers: int) -> Demand:
    """Every pair between 0.5 and 1.5."""
    return jax.random.uniform(key, (servers, servers), jnp.float32, 0.5, 1.5)


def lognormal(key: Key[Array, ""], servers: int) -> Demand:
    """Every pair has size exp(s z), with z standard normal and one s from 0.5 to 2."""
    normal, spread = jax.random.split(key)
    return jnp.exp(_between(spread, 0.5, 2.0) * _normal(normal, servers))


def skewed(key: Key[Array, ""], servers: int) -> Demand:
    """Columns have size rank^-s, s from 0.4 to 1.4, like popular experts; pairs have noise."""
    keys = jax.random.split(key, 4)
    rank = 1 + jax.random.permutation(keys[0], servers).astype(jnp.float32)
    column = rank ** -_between(keys[1], 0.4, 1.4)
    return column[None, :] * jnp.exp(_between(keys[2], 0.1, 0.8) * _normal(keys[3], servers))


FAMILIES: dict[str, Callable[[Key[Array, ""], int], Demand]] = {
    family.__name__: family for family in (zipf, hot, sparse, block, dense, lognormal, skewed)
}


def _between(key: Key[Array, ""], low: float, high: float) -> Scalar:
    return jax.random.uniform(key, (), jnp.float32, low, high)


def _normal(key: Key[Array, ""], servers: int) -> Demand:
    return jax.random.normal(key, (servers, servers), jnp.float32)


def draw_demand(key: Key[Array, ""], family: int | Int[Array, ""], servers: int) -> Demand:
    """Return one demand of the family with index `family` in `FAMILIES`; the diagonal is zero."""
    demand = lax.switch(family, [lambda key, f=f: f(key, servers) for f in FAMILIES.values()], key)
    return jnp.where(jnp.eye(servers, dtype=bool), 0, demand)


@functools.partial(jax.jit, static_argnames="servers")
def draw_demands(keys: Key[Array, "N"], families: Int[Array, "N"], servers: int) -> Float[Array, "N S S"]:
    """Return one demand per key, each of the family at the same place in `families`."""
    return jax.vmap(lambda key, family: draw_demand(key, family, servers))(keys, families)


def noisy_forecast(key: Key[Array, ""], demand: Demand, sigma: float | Scalar) -> Demand:
    """Return a forecast with errors: every pair times exp(sigma z), z standard normal."""
    return demand * jnp.exp(jnp.asarray(sigma, demand.dtype) * jax.random.normal(key, demand.shape, demand.dtype))


@jax.jit
def noisy_forecasts(
    keys: Key[Array, "N"], demand: Float[Array, "N S S"], sigma: float | Scalar
) -> Float[Array, "N S S"]:
    """Return `noisy_forecast` of each key and demand."""
    return jax.vmap(noisy_forecast, (0, 0, None))(keys, demand, sigma)


def fold_to_servers(count: Num[np.ndarray, "I L M R E"], servers: int) -> Float[np.ndarray, "N S S"]:
    """Return selections as server demands [N S S], one per iteration, layer and micro-batch.

    Neighbouring ranks, and neighbouring experts, share a server.
    """
    *axes, ranks, experts = count.shape
    shape = (int(np.prod(axes)), servers, ranks // servers, servers, experts // servers)
    return without_diagonal(count.reshape(shape).sum(axis=(2, 4)))


def without_diagonal(demand: Num[np.ndarray, "... S S"]) -> Float[np.ndarray, "... S S"]:
    """Return the demand as float32 with zero diagonals, because traffic inside a server crosses no fabric."""
    return np.where(np.eye(demand.shape[-1], dtype=bool), 0, demand).astype(np.float32)


def gate_trace(trace: str, records: tuple[int, int] | None, axes: str | None = None) -> traffic.Tokens:
    """Return a recording's selections, fitted to the ranks and experts of the SmartMoE gate trace."""
    return traffic.recorded_tokens(workload.get(TRACED), trace, records, axes=axes)


def record_digests(trace: str, records: tuple[int, int] | None, axes: str | None = None) -> list[tuple[int, str]]:
    """Return the number and digest of every record.

    The digest covers each source rank's shares of experts. They are rounded to 1 / `GRID`, so float32 rarely changes
    it, and other formats of the same routing have the same digest.
    """
    recording = recording_of(workload.get(TRACED), trace, axes).select(records)
    count = recording.fit(workload.get(TRACED)).count
    total = count.sum(axis=-1, keepdims=True, dtype=np.float64)
    share = np.divide(count, total, out=np.zeros(count.shape), where=total > 0)
    steps = np.rint(GRID * share).astype("<u2")
    digests = (hashlib.sha256(each.tobytes()).hexdigest()[:16] for each in steps)
    return list(zip(recording.number.tolist(), digests, strict=True))


def check_folds(field: str, sizes: Sequence[int]) -> None:
    """Raise `InputError` unless the ranks of a trace fold to each number of servers in `sizes`."""
    for servers in sizes:
        if workload.get(TRACED).ep % servers:
            raise InputError(f"{field} must divide the {workload.get(TRACED).ep} ranks of a trace, got {servers}.")
