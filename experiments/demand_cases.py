"""Demands that belong together, for the experiments on many demands at once: drawn families and recordings.

- Drawn: the families of `traffic.demand_families`, and those of `unseen_families`.
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
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Key

from mfabric_jax import checks, traffic, workload
from mfabric_jax.checks import InputError
from mfabric_jax.learning.planning import Forecast
from mfabric_jax.traffic.demand_families import BROAD, TRACED, folded, gate_trace, misjudged_each, without_diagonal
from mfabric_jax.traffic.scenarios import error_of

from .recording import Ports
from .script import check
from .unseen_families import UNSEEN, demands_of

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
        check(self, distinct="servers", known={"families": KIND}, positive="nic_gbps", whole=whole)
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


def prepared(config: OnCases, many: int, past: int) -> Iterator[tuple[dict[str, Any], Case, Any]]:
    """Where in a table, the demands and the region, for each number of servers and each case."""
    for servers in config.servers:
        region = config.region(servers)
        for name in config.cases():
            place = {"servers": servers, "kind": KIND[name], "family": name}
            yield place, case_of(config, name, servers, many, past), region


def check_counts(config: Any, **least: int) -> None:
    """Check that these fields are whole numbers of at least so much."""
    for field, at_least in least.items():
        checks.whole(field, getattr(config, field), at_least=at_least)
