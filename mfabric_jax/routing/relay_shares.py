"""Shares for relay routing: the best ones by linear programming, and nearly the best by gradient steps.

Both spread every pair's bytes over its direct circuits, the EPS and circuits through a third server so that the busiest
link is through as early as possible (`relay_bound`). With paced flows that is when the all-to-all ends: rates in
proportion to bytes, which are max-min rates with bytes as weights. Under plain max-min sharing (`all_to_all_time`) the
same shares end later, since a pair waits for the slowest of its parts: 1.4 times the bound on average, 1.9 at worst on
75 of the instances below. Rows sum to 1, rows of a server to itself are 0; a pair without bytes keeps to its circuits
or else the EPS.

How much later the busiest link is than the best, after gradient steps in float32 (210 drawn all-to-alls a size, of the
seven families of `traffic.demand_families`; greedy or uniform circuits, 6 + 2 NICs; efficiency 1, 0.8, 0.5), and CPU
time in a batch on one core:

| steps | S = 8: mean | p90    | worst | ms   | S = 16: mean | p90    | worst | ms  |
|-------|-------------|--------|-------|------|--------------|--------|-------|-----|
| 50    | 0.58 %      | 1.6 %  | 5.1 % | 0.2  | 0.48 %       | 1.7 %  | 4.6 % | 0.5 |
| 100   | 0.14 %      | 0.24 % | 2.2 % | 0.3  | 0.17 %       | 0.63 % | 2.8 % | 1.0 |
| 200   | 0.04 %      | 0.07 % | 0.5 % | 0.7  | 0.09 %       | 0.29 % | 2.4 % | 1.6 |
| 400   | 0.03 %      | 0.05 % | 0.6 % | 1.3  | 0.07 %       | 0.16 % | 1.4 % | 3.1 |
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from mfabric_jax.checks import InputError, whole
from mfabric_jax.extras import extra
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing.potentials import Links, descended, level
from mfabric_jax.routing.region import between_servers, circuit_rates, degree_bound, joined, split_seconds
from mfabric_jax.routing.relay import is_path, link_seconds

SMALLEST = 1e-9  # share that the programme tells from 0
FEW = 1e-4  # share below which gradient steps drop a path
NEAR = 1e-5  # above the degree bound: no more steps


class _Links(NamedTuple):
    """One all-to-all and what it runs over; `path` marks the shares that may be above 0."""

    demand: Float[Array, "S S"]
    circuit: Float[Array, "S S"]
    port: Float[Array, "S"]
    efficiency: Float[Array, ""]
    path: Bool[Array, "S S S+2"]

    def seconds(self, shares: Float[Array, "S S S+2"]) -> Float[Array, "L"]:
        """Of every link."""
        return link_seconds(self.demand, self.circuit, self.port, shares, self.efficiency)

    def served(self) -> "_Links":
        """Without the bytes that have no path."""
        return self._replace(demand=jnp.where(self.path.any(2), self.demand, 0))


def best_relay_shares(region: Region, circuits: Circuits, demand) -> tuple[np.ndarray, float]:
    """The shares [S S S+2] with which one all-to-all ends first when its flows are paced, and when that is [s].

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored.

    Exact, on the host: a linear programme for SciPy's HiGHS (extra `exact`) of the least T by which every circuit and
    EPS port has carried its bytes, a relayed byte counting 1 / efficiency on its second circuit. Not for `jit`.
    Infinity where a pair with bytes has no path; its shares are then on the EPS, and the others' still the best.
    """
    links, first, wide, unit = jax.tree.map(np.asarray, _given(region, circuits, demand))
    _check_bytes(links.demand)
    best = np.array(first, np.float64)
    if unit > 0:
        sent = np.where(links.path.any(2), links.demand, 0)[..., None]
        path = links.path & (sent > 0) & (SMALLEST * sent < unit * wide)
        best[sent[..., 0] > 0] = 0
        served = links._replace(demand=sent[..., 0])
        best[path] = _optimum(jax.tree.map(lambda x: np.asarray(x, np.float64), served), path, float(unit))
    found, seconds = _settled(links, best.astype(first.dtype))
    return np.asarray(found), float(seconds)


@jax.jit
def _given(region: Region, circuits: Circuits, demand):
    """The links, the first shares, how wide every path is, and how long what has a path takes with these shares."""
    links, first = _start(region, circuits, demand)
    return links, first, _widths(links), links.served().seconds(first).max(initial=0)


@jax.jit
def _settled(links: _Links, shares):
    """The shares made to sum to 1, and when the busiest link is through."""
    found = _normal(shares, links.path)
    return found, links.seconds(found).max(initial=0)


def _check_bytes(demand: np.ndarray) -> None:
    bad = np.argwhere(~(np.isfinite(demand) & (demand >= 0)))
    if len(bad):
        i, j = bad[0]
        raise InputError(f"demand must be finite and not negative, got {demand[i, j]} from server {i} to {j}.")


def _optimum(links: _Links, path: np.ndarray, unit: float) -> np.ndarray:
    """The best shares on the paths marked, row-major; in HiGHS one time unit is `unit` seconds."""
    with extra("exact", "best_relay_shares"):
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, hstack
    column, link, seconds = _loads(links, path)
    many, servers = np.count_nonzero(path), len(path)
    count = servers * (servers + 2)
    load = csr_array((seconds / unit, (link, column)), shape=(count, many))
    within = hstack([load, -np.ones((count, 1))], format="csr")  # load <= T
    pair = np.nonzero(path.reshape(servers * servers, -1))[0]
    complete = csr_array((np.ones(many), (pair, np.arange(many))), shape=(servers * servers, many + 1))
    sent = path.any(2).reshape(-1)
    least = np.append(np.zeros(many), 1)
    nothing = np.zeros(count)
    done = linprog(least, A_ub=within, b_ub=nothing, A_eq=complete, b_eq=sent.astype(float), method="highs")
    if done.x is None:
        raise RuntimeError(f"HiGHS found no shares: {done.message}")
    return np.where(done.x[:-1] < SMALLEST, 0, done.x[:-1])


def _loads(links: _Links, path: np.ndarray):
    """What every path puts on the links it crosses: path number, link number as in `link_seconds`, seconds of it."""
    servers = len(path)
    i, j, k = np.nonzero(path)
    via, direct, eps = k < servers, k == servers, k > servers
    up, down = servers * servers + i, servers * (servers + 1) + j
    hops = ((via, i * servers + k, 1), (via, k * servers + j, 1 / links.efficiency))
    hops = (*hops, (direct, i * servers + j, 1), (eps, up, 1), (eps, down, 1))
    column = np.concatenate([np.flatnonzero(taken) for taken, _, _ in hops])
    link = np.concatenate([at[taken] for taken, at, _ in hops])
    weight = np.concatenate([np.full(np.count_nonzero(taken), factor) for taken, _, factor in hops])
    capacity = np.concatenate([links.circuit.ravel(), links.port, links.port])
    return column, link, weight * links.demand[i, j][column] / capacity[link]


def relay_shares(
    region: Region, circuits: Circuits, demand: Float[Array, "S S"], *, steps: int = 200
) -> Float[Array, "S S S+2"]:
    """Shares near the best by at most `steps` of Adam on the links' `potentials`; never worse than those of split
    routing.

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored.

    The largest link time is softened by a log-sum-exp whose temperature falls; of all steps the best counts, and they
    end early within 1e-5 of the degree bound. Shares below 1e-4 are dropped. Compiled, batched by `vmap`. Derivatives
    do not flow through: at the best shares the time changes with demand, circuits and bandwidth as if they were fixed.
    """
    whole("steps", steps, at_least=0)
    return _descended(*lax.stop_gradient((region, circuits, demand)), steps)


@functools.partial(jax.jit, static_argnames="steps")
def _descended(region: Region, circuits: Circuits, demand, steps: int) -> Float[Array, "S S S+2"]:
    links, first = _start(region, circuits, demand)
    links = links.served()
    unit = links.seconds(first).max()
    scaled = Links(links.demand / jnp.where(unit > 0, unit, 1), links.circuit, links.port, links.efficiency)
    enough = degree_bound(region, links.demand) * jnp.asarray(1 + NEAR, unit.dtype) / jnp.where(unit > 0, unit, 1)
    start = level(region.servers, first.dtype)
    found = scaled.shares(descended(scaled.softened, start, steps, enough=enough)[0])
    few = jnp.asarray(FEW, found.dtype)
    found = _normal(jnp.where(found < few, 0, found), links.path)
    found = jnp.where(links.demand[..., None] > 0, found, first)
    return jnp.where(links.seconds(found).max() < links.seconds(first).max(), found, first)


@jax.jit
def _start(region: Region, circuits: Circuits, demand) -> tuple[_Links, Float[Array, "S S S+2"]]:
    demand = between_servers(region, demand)
    if circuits.count.shape != demand.shape:
        servers = region.servers
        raise InputError(f"circuits must be [S S] with S = {servers} servers, got {list(circuits.count.shape)}.")
    circuit = jnp.maximum(circuit_rates(region, circuits, demand), 0)
    port = jnp.broadcast_to(jnp.asarray(region.eps_Bps, demand.dtype), region.servers)
    active = circuit > 0
    way = jnp.concatenate([active[:, None, :] & active.T[None], active[..., None], joined(port)[..., None]], axis=2)
    efficiency = jnp.asarray(region.relay_efficiency, demand.dtype)
    links = _Links(demand, circuit, port, efficiency, way & is_path(len(port)))
    return links, _first_shares(links)


def _widths(links: _Links) -> Float[Array, "S S S+2"]:
    """What every path could carry alone [bytes/s]."""
    circuit, port = links.circuit, links.port
    via = jnp.minimum(circuit[:, None, :], circuit.T[None])
    return jnp.concatenate([via, circuit[..., None], jnp.minimum(port[:, None], port[None, :])[..., None]], axis=2)


def _first_shares(links: _Links) -> Float[Array, "S S S+2"]:
    """Those of split routing; pairs with neither circuit nor EPS relay over all their paths, as wide as these are."""
    apart = jnp.where(links.path[..., -2:].any(2), links.demand, 0)
    seconds = split_seconds(apart, links.circuit, links.port)
    some = (links.circuit > 0) & (links.demand > 0)
    within = jnp.where(some, links.circuit * seconds / jnp.where(some, links.demand, 1), 1)
    direct = jnp.where(links.circuit > 0, jnp.minimum(within, 1), 0)
    split = jnp.where(links.path[..., -2:], jnp.stack([direct, 1 - direct], axis=2), 0)
    split = jnp.concatenate([jnp.zeros_like(links.path[..., :-2], split.dtype), split], axis=2)
    return _normal(jnp.where(split.any(2, keepdims=True), split, _widths(links)), links.path)


def _normal(parts: Float[Array, "S S S+2"], path) -> Float[Array, "S S S+2"]:
    """Scaled to sum to 1 over the paths of every pair; a pair without any has everything on the EPS."""
    parts = jnp.where(path, parts, 0)
    total = parts.sum(2, keepdims=True)
    servers = parts.shape[0]
    eps = np.zeros(parts.shape, bool)
    eps[..., -1] = ~np.eye(servers, dtype=bool)
    return jnp.where(total > 0, parts / jnp.where(total > 0, total, 1), jnp.asarray(eps, parts.dtype))
