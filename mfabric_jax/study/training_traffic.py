"""Demand to train policies on and to judge them by: seven drawn families, and pools from knobs, tables and traces.

Only proportions matter: policies see demand over what the region can carry.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from mfabric_jax import traffic, workload
from mfabric_jax.checks import InputError
from mfabric_jax.traffic.generated import Shape, draw

Demand = Float[Array, "S S"]
POOL = 192  # matrices of a pool at most
SEEN = 0.8  # of a trace's iterations, the first, are learned from
OTHER_SEEDS = 1_000_003  # added to the seed: no run of training comes so far
FOLDED = ("deepseek-r1", "qwen-moe-ep16")  # models of the measured tables, by their ranks: folded to servers
TRACED = "qwen-moe-ep16"  # 16 ranks and 32 experts, as the SmartMoE gate trace has them


def zipf(key: PRNGKeyArray, servers: int) -> Demand:
    """Pairs by rank to the power -s, s from 0.6 to 1.6, in random order."""
    order, power = jax.random.split(key)
    rank = 1 + jax.random.permutation(order, servers * servers).reshape(servers, servers)
    return rank.astype(jnp.float32) ** -_uniform(power, 0.6, 1.6)


def hot(key: PRNGKeyArray, servers: int) -> Demand:
    """One to three servers receive 30 to 80 % of every row, with noise."""
    keys = jax.random.split(key, 4)
    many = jax.random.randint(keys[0], (), 1, min(4, servers))
    part = _uniform(keys[1], 0.3, 0.8)
    chosen = jax.random.permutation(keys[2], servers) < many
    column = jnp.where(chosen, part / many.astype(part.dtype), (1 - part) / (servers - many).astype(part.dtype))
    return column[None, :] * jnp.exp(0.3 * _normal(keys[3], servers))


def sparse(key: PRNGKeyArray, servers: int) -> Demand:
    """Log-normal bytes on 10 to 50 % of the pairs."""
    keys = jax.random.split(key, 3)
    kept = jax.random.uniform(keys[0], (servers, servers), jnp.float32) < _uniform(keys[1], 0.1, 0.5)
    return jnp.where(kept, jnp.exp(_normal(keys[2], servers)), 0)


def block(key: PRNGKeyArray, servers: int) -> Demand:
    """Groups of 2 to 4 servers, 5 to 40 times heavier inside than outside, members at random."""
    keys = jax.random.split(key, 4)
    group = jax.random.permutation(keys[0], servers) // jax.random.randint(keys[1], (), 2, 5)
    heavy = jnp.where(group[:, None] == group[None, :], _uniform(keys[2], 5.0, 40.0), 1)
    return heavy * jnp.exp(0.5 * _normal(keys[3], servers))


def dense(key: PRNGKeyArray, servers: int) -> Demand:
    """Every pair between 0.5 and 1.5."""
    return jax.random.uniform(key, (servers, servers), jnp.float32, 0.5, 1.5)


def lognormal(key: PRNGKeyArray, servers: int) -> Demand:
    """Every pair exp(s z), s from 0.5 to 2 for all."""
    normal, spread = jax.random.split(key)
    spread = _uniform(spread, 0.5, 2.0)
    return jnp.exp(spread * _normal(normal, servers))


def skewed(key: PRNGKeyArray, servers: int) -> Demand:
    """Columns by rank to the power -s, s from 0.4 to 1.4, as popular experts make them, with noise on pairs."""
    keys = jax.random.split(key, 4)
    rank = 1 + jax.random.permutation(keys[0], servers).astype(jnp.float32)
    column = rank ** -_uniform(keys[1], 0.4, 1.4)
    spread = _uniform(keys[2], 0.1, 0.8)
    return column[None, :] * jnp.exp(spread * _normal(keys[3], servers))


FAMILIES: dict[str, Callable[[PRNGKeyArray, int], Demand]] = {
    "zipf": zipf,
    "hot": hot,
    "sparse": sparse,
    "block": block,
    "dense": dense,
    "lognormal": lognormal,
    "skewed": skewed,
}


def _uniform(key: PRNGKeyArray, low: float, high: float) -> Float[Array, ""]:
    return jax.random.uniform(key, (), jnp.float32, low, high)


def _normal(key: PRNGKeyArray, servers: int) -> Demand:
    return jax.random.normal(key, (servers, servers), jnp.float32)


def drawn(key: PRNGKeyArray, family, servers: int) -> Demand:
    """One demand of the family of that number (which may be traced), zero diagonal."""
    demand = lax.switch(family, [lambda key, f=f: f(key, servers) for f in FAMILIES.values()], key)
    return jnp.where(jnp.eye(servers, dtype=bool), 0, demand)


@functools.partial(jax.jit, static_argnames="servers")
def drawn_each(keys, families, servers: int) -> Float[Array, "N S S"]:
    """One demand for every key, of the family beside it."""
    return jax.vmap(lambda key, family: drawn(key, family, servers))(keys, families)


def misjudged(key: PRNGKeyArray, demand: Demand, sigma) -> Demand:
    """A forecast of the demand: every pair times exp(sigma z)."""
    return demand * jnp.exp(jnp.asarray(sigma, demand.dtype) * jax.random.normal(key, demand.shape, demand.dtype))


misjudged_each = jax.jit(jax.vmap(misjudged, (0, 0, None)))  # keys, demands, one sigma


def pool(
    servers: int,
    seed: int,
    trace: str | None = None,
    records: tuple[int, int] | None = None,
    *,
    held_out: bool = False,
) -> np.ndarray:
    """[N S S] float32 demands from the named workloads of `traffic.WORKLOADS`, the measured tables (where their ranks
    divide into so many servers) and, if given, a recorded trace; N is at most 192 from each.

    - `held_out`: other draws of the knobs and tables; the last fifth of the trace, which training does not see.
    """
    seed += OTHER_SEEDS * held_out
    random = np.random.default_rng(seed)
    parts = [_from_knobs(servers, seed)]
    parts += [folded(traffic.measured(job, 1, 2, seed=seed).count, servers) for job in measured_jobs(servers)]
    if trace is not None:
        count = recorded(trace, records).count
        last = max(round(SEEN * len(count)), 1)
        parts.append(folded(count[last:] if held_out and last < len(count) else count[:last], servers))
    return np.concatenate([_some(part, random) for part in parts])


def recorded(trace: str, records: tuple[int, int] | None) -> traffic.Tokens:
    """The recorded selections."""
    return traffic.recorded(trace, workload.get(TRACED), records)


def check_folds(field: str, sizes: Sequence[int]) -> None:
    """`InputError` where the ranks of a trace cannot be folded to so many servers."""
    for servers in sizes:
        if workload.get(TRACED).ep % servers:
            raise InputError(f"{field} must divide the {workload.get(TRACED).ep} ranks of a trace, got {servers}.")


def measured_jobs(servers: int) -> list[workload.Workload]:
    """The models whose ranks can be folded to so many servers."""
    jobs = [workload.get(name) for name in FOLDED]
    return [job for job in jobs if job.ep % servers == 0]


def _from_knobs(servers: int, seed: int) -> np.ndarray:
    shape = Shape(layers=4, micro_batches=1, ranks=servers, experts=4 * servers, selections=4096)
    runs = [dataclasses.replace(knobs, row_noise=0.3) for knobs in traffic.WORKLOADS.values()]
    return np.concatenate([folded(draw(shape, knobs, seed, np.arange(4)), servers) for knobs in runs])


def folded(count: np.ndarray, servers: int) -> np.ndarray:
    """[N S S] from tokens [iteration layer micro_batch rank expert]: neighbouring ranks and experts share a server."""
    *axes, ranks, experts = count.shape
    shape = (int(np.prod(axes)), servers, ranks // servers, servers, experts // servers)
    return between(count.reshape(shape).sum(axis=(2, 4)))


def between(demand: np.ndarray) -> np.ndarray:
    """[... S S] as float32 with zero diagonals."""
    return np.where(np.eye(demand.shape[-1], dtype=bool), 0, demand).astype(np.float32)


def _some(demand: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return demand[random.permutation(len(demand))[:POOL]]
