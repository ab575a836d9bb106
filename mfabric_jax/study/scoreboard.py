"""Every policy on every kind of demand: how much later than the best, and how fast it decides.

A policy sees a forecast of the demand (`sigmas`: log-normal errors), its circuits then carry the true one. Under relay
routing shares are chosen for the true demand, whatever the policy: what servers forward is decided when it is there.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax import policies
from mfabric_jax.checks import InputError, distinct, listed, not_negative, one_of, positive, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing import ROUTINGS, all_to_all_time, degree_bound
from mfabric_jax.study._provenance import provenance
from mfabric_jax.study.evaluation_traffic import MEAN_OF, check_unseen
from mfabric_jax.study.judged import SHARE_STEPS, over_bound
from mfabric_jax.study.settings import DTYPES
from mfabric_jax.study.training_traffic import FAMILIES, check_folds, drawn_each, folded, misjudged_each, recorded

RECORDED = "recorded"
BENCHED = tuple(name for name in policies.REGISTRY if name not in ("previous", "exact"))
PROVED = 1e-4  # relative gap to the bound at which an optimum counts as proved
MOST_PROVED = 16  # servers for which optima are worth waiting for


@dataclasses.dataclass(frozen=True)
class Scoreboard:
    """What to score.

    - `policies`: names, or paths of trained files.   - `workloads`: of `FAMILIES`, and "recorded" (needs `trace`).
    - `servers`, `routings`, `sigmas`: one row for each combination with a policy and a workload.
    - `instances`: demands of a workload.
    - `optimum_s`: seconds for the exact programme of each instance without forecast error (unsplit and split, up to 16
      servers); 0: none. Optima that are not proved by then do not count.
    - the region: `nic_gbps`, `optical_degree`, `electrical_nics`, `relay_efficiency`.

    "static" chooses greedy-next's circuits for the mean of other demands of the workload, and sees no forecast.
    """

    policies: tuple[str, ...] = BENCHED
    workloads: tuple[str, ...] = tuple(FAMILIES)
    servers: tuple[int, ...] = (8, 16)
    routings: tuple[str, ...] = ("unsplit", "split", "relay")
    sigmas: tuple[float, ...] = (0.0,)
    instances: int = 60
    optimum_s: float = 0.0
    trace: str | None = None
    records: tuple[int, int] | None = None
    nic_gbps: float = 400.0
    optical_degree: int = 6
    electrical_nics: int = 2
    relay_efficiency: float = 1.0
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self):
        for field in ("policies", "workloads", "servers", "routings", "sigmas"):
            distinct(field, listed(field, getattr(self, field)))
        for name in self.policies:
            policies.suited(name, routing="split")
        for name in self.workloads:
            one_of("workloads", name, (*FAMILIES, RECORDED))
        if RECORDED in self.workloads and self.trace is None:
            raise InputError("workloads 'recorded' needs trace, the recording.")
        for name in self.routings:
            one_of("routings", name, ROUTINGS)
        for servers in self.servers:
            whole("servers", servers, at_least=2)
        if self.trace is not None:
            check_folds("servers", self.servers)
            check_unseen(self.policies, self.trace, self.records)
        for sigma in self.sigmas:
            not_negative("sigmas", sigma)
        whole("instances", self.instances)
        not_negative("optimum_s", self.optimum_s)
        positive("nic_gbps", self.nic_gbps)
        whole("optical_degree", self.optical_degree, at_least=0)
        whole("electrical_nics", self.electrical_nics)
        if not 0 < self.relay_efficiency <= 1:
            raise InputError(f"relay_efficiency must be above 0 and at most 1, got {self.relay_efficiency}.")
        whole("seed", self.seed, at_least=0)
        one_of("dtype", self.dtype, DTYPES)

    @property
    def rows(self) -> int:
        """How many there will be."""
        axes = (self.policies, self.workloads, self.servers, self.routings, self.sigmas)
        return math.prod(len(axis) for axis in axes)

    def region(self, servers: int) -> Region:
        """So many servers, its numbers as arrays."""
        gbps, nics, efficiency = (
            jnp.asarray(x, self.dtype) for x in (self.nic_gbps, self.electrical_nics, self.relay_efficiency)
        )
        degree = jnp.asarray(self.optical_degree, jnp.int32)
        return Region(servers, gbps, degree, nics, relay_efficiency=efficiency)


class Cell(NamedTuple):
    """One workload at one size: `true` and, by sigma, forecast demand [N S S]; the `mean` [S S] of others."""

    workload: str
    servers: int
    true: Float[Array, "N S S"]
    seen: dict[float, Float[Array, "N S S"]]
    mean: Float[Array, "S S"]


def cells(config: Scoreboard) -> list[Cell]:
    """The demands; the recording is read here."""
    found = []
    for servers in config.servers:
        for workload in config.workloads:
            true, others = (jnp.asarray(part, config.dtype) for part in _demands(config, workload, servers))
            keys = jax.random.split(jax.random.key(config.seed + 1), len(true))
            seen = {sigma: misjudged_each(keys, true, sigma) for sigma in config.sigmas}
            found.append(Cell(workload, servers, true, seen, others.mean(axis=0)))
    return found


def _demands(config: Scoreboard, workload: str, servers: int):
    """Those of the workload, and others of it (the same where a recording has no more)."""
    if workload != RECORDED:
        keys = jax.random.split(jax.random.key(config.seed), config.instances + MEAN_OF)
        every = drawn_each(keys, np.full(len(keys), list(FAMILIES).index(workload)), servers)
        return every[: config.instances], every[config.instances :]
    assert config.trace is not None
    every = folded(recorded(config.trace, config.records).count, servers)
    mixed = np.random.default_rng(config.seed).permutation(len(every))
    chosen, others = np.sort(mixed[: config.instances]), mixed[config.instances :]
    return every[chosen], every[others if len(others) else chosen]


def scoreboard(config: Scoreboard, *, progress: Callable[[str], None] | None = None) -> Iterator[dict[str, Any]]:
    """Rows as they are ready: size by size, workload by workload, routing by routing, then the policies.

    Time over the degree bound: `mean`, `median`, `p90` (None where no instance has bytes) of paced flows;
    `max_min_mean` of flows that share ports max-min fairly, None under relay routing. Over the `proved` optima:
    `of_optimum`, `of_optimum_p90`. `decisions_per_s`: in one batch of all instances; `compile_s` is apart.
    """
    tell = progress or (lambda said: None)
    for cell in cells(config):
        for routing in config.routings:
            place = f"{cell.servers} servers, {cell.workload}, {routing}"
            optimum = _optima(config, cell, routing, lambda at, place=place: tell(f"{place}, optimum {at}"))
            for name in config.policies:
                tell(f"{place}, {name}")
                for sigma in config.sigmas:
                    yield _row(config, name, cell, routing, sigma, optimum)


def _row(config: Scoreboard, name: str, cell: Cell, routing: str, sigma: float, optimum: np.ndarray) -> dict[str, Any]:
    region, seen = config.region(cell.servers), cell.seen[sigma]
    policy = policies.suited(name, routing=routing)
    if name == "static":
        policy = jax.tree_util.Partial(policy, mean=cell.mean)
    keys = jax.random.split(jax.random.key(config.seed + 2), len(seen))
    count, compile_s, decide_s = _timed(_decide, policy, region, seen, keys)
    bound, over, max_min = (np.asarray(x, np.float64) for x in _carry(region, count, cell.true, routing))
    some = bound > 0
    row = {"policy": name, "workload": cell.workload, "servers": cell.servers, "routing": routing, "sigma": sigma}
    row |= {"instances": int(some.sum()), "mean": _of(np.mean, over[some]), "median": _of(np.median, over[some])}
    row |= {"p90": _of(_late, over[some]), "max_min_mean": _of(np.mean, max_min[some]) if routing != "relay" else None}
    proved = some & np.isfinite(optimum) & (sigma == 0)
    of = over[proved] * bound[proved] / optimum[proved]
    row |= {"proved": int(proved.sum()), "of_optimum": _of(np.mean, of), "of_optimum_p90": _of(_late, of)}
    return row | {"decisions_per_s": len(seen) / decide_s, "compile_s": compile_s}


def _of(measure: Callable, values: np.ndarray) -> float | None:
    return float(measure(values)) if len(values) else None


def _late(values: np.ndarray) -> float:
    return np.quantile(values, 0.9)


def _timed(work: Callable, *given) -> tuple[Any, float, float]:
    """What it gives, seconds that compiling took, and seconds of a call."""
    marks = [time.perf_counter()]
    for _ in range(2):
        found = jax.block_until_ready(work(*given))
        marks.append(time.perf_counter())
    first, again = np.diff(marks)
    return found, max(first - again, 0.0), again


@eqx.filter_jit
def _decide(policy, region: Region, seen: Float[Array, "N S S"], keys) -> Array:
    return jax.vmap(lambda demand, key: policy(demand, region, previous=None, key=key).circuits.count)(seen, keys)


@eqx.filter_jit
def _carry(region: Region, count: Array, true: Float[Array, "N S S"], routing: str):
    """Degree bound [N] s; over it the time of paced flows and, but for relay routing, of max-min fair ones [N]."""

    def one(count, demand):
        circuits, bound = Circuits(count), degree_bound(region, demand)
        over = over_bound(region, circuits, demand, routing, SHARE_STEPS)
        if routing == "relay":
            return bound, over, over
        fair = all_to_all_time(region, circuits, demand, routing=routing)
        return bound, over, fair / jnp.where(bound > 0, bound, 1)

    return jax.vmap(one)(count, true)


def _optima(config: Scoreboard, cell: Cell, routing: str, tell: Callable[[int], None]) -> np.ndarray:
    """The least paced time of every instance [N] s, NaN where it is not proved or not asked for."""
    found = np.full(len(cell.true), np.nan)
    if not config.optimum_s or cell.servers > MOST_PROVED or routing not in ("unsplit", "split"):
        return found
    region = config.region(cell.servers)
    for at, demand in enumerate(np.asarray(cell.true, np.float64)):
        tell(at)
        _, seconds, bound = policies.exact_circuits(region, demand, routing=routing, seconds=config.optimum_s)
        if seconds <= bound * (1 + PROVED):
            found[at] = seconds
    return found


def effective_scoreboard(config: Scoreboard) -> dict[str, Any]:
    """The configuration and where the result comes from."""
    return {"command": "policies bench"} | dataclasses.asdict(config) | provenance(config.dtype)
