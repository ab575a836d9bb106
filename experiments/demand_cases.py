"""Demands for `many_demands`: drawn families and recordings.

- Drawn: the families of `traffic.broad_families`, and those of `UNSEEN`, that nothing was trained on or chosen by:
  partners a power of two away, rows and columns of a grid, and a tree. Only proportions matter: no unit is meant.
- "olmoe": tokens drawn from the packaged expert shares of OLMoE (`traffic.measured`), whose popularity walks; source
  rank r reads text domain r mod 5.
- "smartmoe": the SmartMoE gate trace, source ranks and experts folded to servers.
- "laer": what every rank of LAER-MoE processed (its recording with most records), spread equally over sources. Server s
  stands for the ranks r with r mod S = s, which have one place in their expert-parallel groups of four, so that servers
  differ as experts do.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from mfabric_jax import traffic, workload
from mfabric_jax.checks import InputError
from mfabric_jax.learning.planning import Forecast
from mfabric_jax.traffic.demand_families import (
    BROAD,
    TRACED,
    drawn_of,
    folded,
    gate_trace,
    misjudged_each,
    without_diagonal,
)
from mfabric_jax.traffic.scenarios import error_of

from .script import Ports, check

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


def demands_of(keys: Key[Array, N], family: str, servers: int) -> Float[Array, "N S S"]:
    """One demand of the family of `DRAWN` for every key; diagonals are zero."""
    return drawn_of(keys, DRAWN[family], servers)


def _noise(key: Key[Array, ""], servers: int, spread: float) -> Demand:
    return jnp.exp(spread * jax.random.normal(key, (servers, servers), jnp.float32))


TABLES, GATE_TRACE, LOADS = "olmoe", "smartmoe", "laer"
RECORDED = (TABLES, GATE_TRACE, LOADS)
NEEDS = {GATE_TRACE: "trace", LOADS: "laer"}  # the field of the configuration that names the file
KIND = dict.fromkeys(BROAD, "broad") | dict.fromkeys(UNSEEN, "unseen") | dict.fromkeys(RECORDED, "recorded")
ITERATIONS, DRIFT = 20, 0.1  # of what is drawn from tables: popularity walks
LAER_RANKS = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnCases(Ports):
    """Which demands, between how many servers."""

    servers: tuple[int, ...] = (8, 16)  # Sizes of the region.
    families: tuple[str, ...] = tuple(KIND)  # Kinds of demand; smartmoe needs trace, laer needs laer.
    trace: str | None = None  # Folder of the SmartMoE gate trace.
    laer: str | None = None  # File or folder of LAER-MoE's token analysis.
    seed: int = 0  # Of draws, noise and scenarios.

    def __post_init__(self):
        whole = {2: "servers", 0: "optical_degree electrical_nics seed"}
        check(self, known={"families": KIND}, positive="nic_gbps", whole=whole)
        if not self.cases():
            wanted = " and ".join(f"{name!r} needs {NEEDS[name]}" for name in self.families)
            raise InputError(f"families {wanted}, and nothing else is left.")
        for name in set(self.cases()) & set(RECORDED):
            ranks = LAER_RANKS if name == LOADS else workload.get(TRACED).ep
            for servers in self.servers:
                if ranks % servers:
                    raise InputError(f"servers must divide the {ranks} ranks of {name!r}, got {servers}.")

    def cases(self) -> list[str]:
        """The families whose files are there."""
        return [name for name in self.families if name not in NEEDS or getattr(self, NEEDS[name]) is not None]


class Case(NamedTuple):
    """Demands that are judged, and earlier ones whose forecasts are known to have erred.

    - `true` [N S S], `past` [H S S]: bytes up to a factor, diagonals 0.   - `key`: of the errors of forecasts.
    """

    name: str
    true: Float[jax.Array, "N S S"]
    past: Float[jax.Array, "H S S"]
    key: Key[jax.Array, ""]

    def forecast(self, sigma: float) -> Forecast:
        """The truth times log-normal errors; the same noise for every sigma, only larger."""
        keys = jax.random.split(self.key, len(self.true))
        return Forecast(f"{sigma:g}", misjudged_each(keys, self.true, sigma), sigma, self.true.mean(0))

    def estimated(self, sigma: float) -> float:
        """The standard deviation of the errors of such forecasts, from those of earlier demands."""
        keys = jax.random.split(jax.random.fold_in(self.key, 0), len(self.past))
        return error_of(np.asarray(misjudged_each(keys, self.past, sigma)), np.asarray(self.past))


def case_of(config: OnCases, name: str, servers: int, many: int, past: int) -> Case:
    """So many demands to judge and so many earlier ones: of a recording, from its second and its first half."""
    draw, noise = jax.random.split(key_of(config, name))
    if name not in RECORDED:
        demand = demands_of(jax.random.split(draw, many + past), name, servers)
        return Case(name, demand[:many], demand[many:], noise)
    demand, rng = recorded_demand(config, name, servers), np.random.default_rng(config.seed)
    half = len(demand) // 2
    early, late = demand[:half], demand[half:]
    late, early = (jnp.asarray(_some(rng, part, count)) for part, count in ((late, many), (early, past)))
    return Case(name, late, early, noise)


def key_of(config: OnCases, name: str) -> jax.Array:
    """Random numbers of a family: the same whatever else is run."""
    return jax.random.fold_in(jax.random.key(config.seed), list(KIND).index(name))


def _some(rng: np.random.Generator, demand: Float[np.ndarray, "I L M S S"], many: int) -> Float[np.ndarray, "N S S"]:
    """So many that have bytes, none twice."""
    demand = demand.reshape(-1, *demand.shape[-2:])
    some = np.flatnonzero(demand.any((1, 2)))
    if len(some) < many:
        raise InputError(f"demands must be at most the {len(some)} of half a recording, got {many}.")
    return demand[rng.choice(some, many, replace=False)]


def recorded_demand(config: OnCases, name: str, servers: int) -> Float[np.ndarray, "I L M S S"]:
    """All that a recording holds: records in order, of each its layers, of each its micro-batches."""
    if name == LOADS:
        return _spread(_loads(str(config.laer)), servers)
    count = _gate(str(config.trace)) if name == GATE_TRACE else _tables(config.seed)
    return folded(count, servers).reshape(*count.shape[:3], servers, servers)


@functools.lru_cache(maxsize=1)
def _gate(trace: str) -> np.ndarray:
    return gate_trace(trace, None).count


@functools.lru_cache(maxsize=1)
def _tables(seed: int) -> np.ndarray:
    return traffic.measured(workload.get(TRACED), ITERATIONS, 1, DRIFT, seed).count


@functools.lru_cache(maxsize=1)
def _loads(path: str) -> np.ndarray:
    """Of the recording with most records [record, layer, rank]."""
    count = max((each.count for each in traffic.open_trace(path)), key=len)
    loads = count.reshape(*count.shape[:2], -1)
    if loads.shape[2] != LAER_RANKS:
        raise InputError(f"laer {path} must hold {LAER_RANKS} ranks, got {loads.shape[2]}.")
    return loads


def _spread(loads: np.ndarray, servers: int) -> Float[np.ndarray, "I L M S S"]:
    received = loads.reshape(*loads.shape[:2], 1, -1, 1, servers).sum(3)
    return without_diagonal(np.repeat(received, servers, axis=3) / servers)
