"""Provably best circuits and heaviest matchings, by mixed-integer linear programmes on the host (SciPy's HiGHS).

`exact` chooses the number of circuits c of every pair within the degrees (x[pair, c] in {0, 1}). It minimises the time
T of paced flows (`routing.fluid_lower_bound`). In one unit of time a NIC carries one unit of bytes:

- unsplit: T >= max(D_ij, D_ji) / c where x[pair, c], and E T >= the bytes of all pairs with c = 0 at every port;
- split: e_ij >= D_ij - c T bytes use the EPS, at most E T at every port. The product y[pair, c] = T x[pair, c] is exact
  by sum_c y = T and x T_low <= y <= x T_high (McCormick; T_low: degree bound, T_high: time of a known plan);
- relay: y is also the capacity c T of a pair's circuits in each direction. Bytes flow over the EPS, direct circuits, or
  two circuits through a third server; the second of the two carries 1 / efficiency times the bytes.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Float, Num

from mfabric_jax.checks import InputError, one_of, positive
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.arguments import ROUTINGS, demand_of, unless_nan
from mfabric_jax.policies.greedy import greedy
from mfabric_jax.routing import Plan
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.extras import load_extra
from mfabric_jax.support.host_arrays import NOT_NEGATIVE

GAP = 1e-6  # relative gap at which HiGHS calls a solution optimal
SLACK = 1e-6  # relative margin of T above the time of the known plan
INFEASIBLE = 2  # SciPy's status


class Instance(NamedTuple):
    """One demand in units of its degree bound, so that T >= 1."""

    demand: np.ndarray  # [S S]
    degree: np.ndarray  # [S]
    port: np.ndarray  # [S] EPS NICs
    efficiency: float
    unit: float  # seconds

    @property
    def eps_pairs(self) -> np.ndarray:
        return (self.port[:, None] > 0) & (self.port[None, :] > 0)

    @property
    def pairs(self) -> Iterator[tuple[int, int]]:
        return itertools.combinations(range(len(self.degree)), 2)

    def both(self, i: int, j: int) -> float:
        return float(max(self.demand[i, j], self.demand[j, i]))


def highs(what: str) -> Any:
    optimize, sparse = (load_extra("exact", what, f"scipy.{part}") for part in ("optimize", "sparse"))
    return optimize.Bounds, optimize.LinearConstraint, optimize.milp, sparse.csr_array


def solve(
    instance: Instance, routing: str, known: float, seconds: float
) -> tuple[np.ndarray | None, np.ndarray | None, float]:
    """Return circuits [S S] and relay shares [S S S+2] (or None) faster than `known`, and a lower bound on T.

    They are the best found in `seconds`. The bound is infinite if no plan has a finite time.
    """
    programme = _Programme(instance, _latest(instance, known))
    carried = {"unsplit": _unsplit, "split": _split, "relay": _relay}[routing](programme)
    programme.degrees()
    programme.ports(carried)
    done = programme.solve(seconds)
    if done.status == INFEASIBLE:
        return None, None, known
    bound = 1.0 if done.mip_dual_bound is None else max(float(done.mip_dual_bound), 1.0)
    if done.x is None:
        return None, None, bound
    count = np.zeros(instance.demand.shape, np.int64)
    for (i, j), chosen in programme.chosen.items():
        count[i, j] = count[j, i] = sum(c for c, variable in chosen.items() if done.x[variable] > 0.5)
    return count, programme.shares(done.x) if routing == "relay" else None, bound


def _latest(instance: Instance, known: float) -> float:
    if np.isfinite(known):
        return known * (1 + SLACK)
    slowest = min([1.0, *(port for port in instance.port if port > 0)])
    return float(instance.demand.sum()) * (1 + 1 / instance.efficiency) / slowest


class _Programme:
    """Minimise variable 0 (T); rows are low <= sum of coefficient * variable <= high."""

    def __init__(self, instance: Instance, latest: float):
        self.instance, self.latest = instance, latest
        self.low, self.high, self.whole = [1.0], [latest], [0]
        self.terms: list[tuple[int, int, float]] = []
        self.limits: list[tuple[float, float]] = []
        self.chosen: dict[tuple[int, int], dict[int, int]] = {}  # [pair][c] -> x
        self.capacity: dict[tuple[int, int], list[tuple[int, float]]] = {}  # [pair] -> terms of c T
        self.flows: dict[tuple[int, int, int], int] = {}  # as shares [i, j, via | direct | EPS]

    def variable(self, high: float, whole: bool = False) -> int:
        self.low.append(0.0)
        self.high.append(high)
        self.whole.append(int(whole))
        return len(self.low) - 1

    def row(self, terms: Any, low: float = -np.inf, high: float = np.inf) -> None:
        self.terms += [(len(self.limits), variable, coefficient) for variable, coefficient in terms]
        self.limits.append((low, high))

    def choose(self, i: int, j: int, numbers: Any) -> None:
        self.chosen[i, j] = {c: self.variable(1, whole=True) for c in numbers}
        self.row([(x, 1) for x in self.chosen[i, j].values()], 1, 1)

    def times(self, i: int, j: int) -> None:
        products = {c: self.variable(self.latest) for c in self.chosen[i, j]}
        for c, product in products.items():
            x = self.chosen[i, j][c]
            self.row([(product, 1), (x, -self.latest)], high=0)
            self.row([(product, 1), (x, -1)], low=0)
        self.row([(0, -1), *((product, 1) for product in products.values())], 0, 0)
        self.capacity[i, j] = [(product, c) for c, product in products.items() if c]

    def degrees(self) -> None:
        for server, degree in enumerate(self.instance.degree):
            taken = [(x, c) for pair, chosen in self.chosen.items() if server in pair for c, x in chosen.items() if c]
            self.row(taken, high=float(degree))

    def ports(self, carried: dict[tuple[int, int], tuple[int, float]]) -> None:
        for server, speed in enumerate(self.instance.port):
            for end in (0, 1):
                terms = [term for pair, term in carried.items() if pair[end] == server]
                self.row([(0, -float(speed)), *terms], high=0)

    def shares(self, x: np.ndarray) -> np.ndarray:
        servers = len(self.instance.degree)
        shares = np.zeros((servers, servers, servers + 2))
        for path, flow in self.flows.items():
            shares[path] = max(x[flow], 0)
        total = shares.sum(2, keepdims=True)
        shares = np.where(total > 0, shares / np.where(total > 0, total, 1), 0)
        idle = (total[..., 0] == 0) & ~np.eye(servers, dtype=bool)
        shares[idle, -1] = 1
        return shares

    def solve(self, seconds: float) -> Any:
        bounds, constraint, milp, csr_array = highs("policy 'exact'")
        row, column, coefficient = (np.array(part) for part in zip(*self.terms, strict=True))
        rows = csr_array((coefficient.astype(float), (row, column)), shape=(len(self.limits), len(self.low)))
        return milp(
            np.eye(1, len(self.low))[0],
            integrality=self.whole,
            bounds=bounds(self.low, self.high),
            constraints=constraint(rows, *np.array(self.limits).T),
            options={"time_limit": seconds, "mip_rel_gap": GAP},
        )


def _useful(instance: Instance, i: int, j: int) -> range:
    most = min(instance.degree[i], instance.degree[j], np.ceil(instance.both(i, j)))
    return range(int(most) + 1)


def _unsplit(programme: _Programme) -> dict[tuple[int, int], tuple[int, float]]:
    instance, latest, carried = programme.instance, programme.latest, {}
    for i, j in instance.pairs:
        larger = instance.both(i, j)
        if not larger:
            continue
        numbers = [c for c in _useful(instance, i, j) if (larger <= c * latest if c else instance.eps_pairs[i, j])]
        programme.choose(i, j, numbers)
        chosen = programme.chosen[i, j]
        programme.row([(0, -1), *((x, larger / c) for c, x in chosen.items() if c)], high=0)
        if 0 in chosen:
            carried |= {(a, b): (chosen[0], instance.demand[a, b]) for a, b in ((i, j), (j, i))}
    return carried


def _split(programme: _Programme) -> dict[tuple[int, int], tuple[int, float]]:
    instance, carried = programme.instance, {}
    for i, j in instance.pairs:
        if not instance.both(i, j):
            continue
        programme.choose(i, j, _useful(instance, i, j))
        programme.times(i, j)
        for a, b in ((i, j), (j, i)):
            if instance.demand[a, b]:
                eps_bytes = programme.variable(instance.demand[a, b] if instance.eps_pairs[a, b] else 0)
                programme.row([(eps_bytes, 1), *programme.capacity[i, j]], low=instance.demand[a, b])
                carried[a, b] = eps_bytes, 1
    return carried


def _relay(programme: _Programme) -> dict[tuple[int, int], tuple[int, float]]:
    instance, carried = programme.instance, {}
    for i, j in instance.pairs:
        programme.choose(i, j, range(int(min(instance.degree[i], instance.degree[j])) + 1))
        programme.times(i, j)
    load: dict[tuple[int, int], list[tuple[int, float]]] = {(i, j): [] for i, j in np.ndindex(instance.demand.shape)}
    servers = len(instance.degree)
    for (i, j), size in np.ndenumerate(instance.demand):
        if not size:
            continue
        flows = {path: programme.variable(size) for path in range(servers + 2) if path not in (i, j)}
        programme.flows |= {(i, j, path): flow for path, flow in flows.items()}
        programme.row([(flow, 1) for flow in flows.values()], size, size)
        *via, direct, eps = flows
        for k in via:
            load[i, k].append((flows[k], 1))
            load[k, j].append((flows[k], 1 / instance.efficiency))
        load[i, j].append((flows[direct], 1))
        carried[i, j] = flows[eps], 1
        programme.high[flows[eps]] = size if instance.eps_pairs[i, j] else 0
    for (i, j), terms in load.items():
        if terms:
            circuits = programme.capacity[min(i, j), max(i, j)]
            programme.row([*terms, *((product, -c) for product, c in circuits)], high=0)
    return carried


class _Found(NamedTuple):
    # [S S]
    count: np.ndarray  # pyright: ignore[reportIncompatibleMethodOverride]
    shares: np.ndarray | None  # [S S S+2] of relay routing
    time: float  # units
    bound: float  # units


def exact(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: Array | None = None,
    routing: str = "unsplit",
    seconds: float = 60.0,
) -> Plan:
    """Return the circuits that minimise the time of one all-to-all with paced flows, or the best found in `seconds`.

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored.
    - `routing`: "unsplit", "split", or "relay", whose plan also has the best shares.
    - `seconds`: time limit; if the search finds nothing better, the circuits are those of `greedy_next`.

    Works in `jit` and `vmap`, which solve one instance at a time. `previous` and `key` are not used. `exact_circuits`
    also returns the lower bound.
    """
    one_of("routing", routing, ROUTINGS)
    positive("seconds", seconds)
    highs("policy 'exact'")
    demand = demand_of(demand, region)
    solution = _on_host(demand, region, routing, float(seconds))
    return Plan(Circuits(unless_nan(solution[0], demand)), solution[1] if routing == "relay" else None)


@functools.partial(jax.jit, static_argnames=("routing", "seconds"))
def _on_host(demand: Any, region: Region, routing: str, seconds: float):
    servers = region.servers
    start = greedy(demand, region, rule="next").circuits.count
    shape = servers, servers, servers + 2 if routing == "relay" else 0
    result = jax.ShapeDtypeStruct((servers, servers), jnp.int32), jax.ShapeDtypeStruct(shape, demand.dtype)

    def search(demand: Any, start: Array, *numbers: Any):
        best = _best(_instance(demand, *numbers), np.asarray(start), routing, seconds)
        shares = np.zeros(shape) if best.shares is None else best.shares
        return best.count.astype(np.int32), shares.astype(demand.dtype)

    numbers = region.degrees, region.electrical_nics, region.nic_Bps, region.relay_efficiency
    return jax.pure_callback(search, result, demand, start, *numbers, vmap_method="sequential")


def exact_circuits(
    region: Region, demand: Any, *, routing: str = "unsplit", seconds: float = 60.0
) -> tuple[np.ndarray, float, float]:
    """Return the best circuits [S S], their time, and a lower bound for all circuits [s].

    Circuits are proved optimal if both times are equal. Arguments as in `exact`. It runs on the host, not in `jit`.
    Times are infinite if some bytes have no path.
    """
    one_of("routing", routing, ROUTINGS)
    positive("seconds", seconds)
    if isinstance(demand, Tracer):
        raise InputError("exact_circuits runs on the host: demand must be known, got a value that JAX traces.")
    demand = demand_of(demand, region, rule=NOT_NEGATIVE)
    known = greedy(demand, region, rule="next").circuits
    numbers = region.degrees, region.electrical_nics, region.nic_Bps, region.relay_efficiency
    instance = _instance(demand, *numbers)
    best = _best(instance, np.asarray(known.count), routing, seconds)
    return best.count, best.time * instance.unit, best.bound * instance.unit


def _instance(demand: Any, degree: Any, electrical: Any, nic: Any, efficiency: Any) -> Instance:
    demand, degree = np.asarray(demand, np.float64), np.asarray(degree)
    port = np.broadcast_to(np.asarray(electrical, np.float64), degree.shape)
    speed = (degree + port) * float(nic)
    busiest = np.maximum(demand.sum(0), demand.sum(1)) / np.where(speed > 0, speed, np.inf)
    unit = float(busiest.max(initial=0)) or 1.0
    return Instance(demand / (float(nic) * unit), degree, port, float(efficiency), unit)


def _best(instance: Instance, start: np.ndarray, routing: str, seconds: float) -> _Found:
    shares = _split_shares(instance, start) if routing == "relay" else None
    known = _Found(start, shares, _time(instance, start, shares, routing), 1.0)
    if not instance.demand.any():
        return known._replace(bound=0.0)
    if known.time <= 1 or not np.isfinite(instance.demand).all():
        return known
    count, shares, bound = solve(instance, routing, known.time, seconds)
    if count is None:
        return known._replace(bound=min(bound, known.time))
    solution = _Found(count, shares, _time(instance, count, shares, routing), bound)
    best = solution if solution.time < known.time else known
    return best._replace(bound=min(bound, best.time))


def _time(instance: Instance, count: np.ndarray, shares: np.ndarray | None, routing: str) -> float:
    """Return `routing.fluid_lower_bound` in NumPy [units]."""
    demand = instance.demand
    if shares is not None:
        return _relay_time(instance, count, shares)
    if routing == "split":
        return _split_time(instance, count)
    slowest = (demand[count > 0] / count[count > 0]).max(initial=0)
    return max(slowest, _port_time(instance, np.where(count > 0, 0, demand)))


def _port_time(instance: Instance, carried: np.ndarray) -> float:
    return _ratio(np.maximum(carried.sum(0), carried.sum(1)), instance.port)


def _ratio(load: np.ndarray, capacity: np.ndarray) -> float:
    some = capacity > 0
    return float(np.where(load > 0, np.where(some, load / np.where(some, capacity, 1), np.inf), 0).max(initial=0))


def _split_time(instance: Instance, count: np.ndarray) -> float:
    demand, port = instance.demand, instance.port
    if ((demand > 0) & (count == 0) & ~instance.eps_pairs).any():
        return np.inf
    time, after = -1.0, 0.0
    while after > time:
        time = after
        load, help_ = (np.where(demand > count * time, part, 0) for part in (demand, count))
        after = max(time, *(_ratio(load.sum(axis), help_.sum(axis) + port) for axis in (0, 1)))
    return time


def _split_shares(instance: Instance, count: np.ndarray) -> np.ndarray:
    demand, servers = instance.demand, len(count)
    time = _split_time(instance, count)
    shares = np.zeros((servers, servers, servers + 2))
    some = (demand > 0) & (count > 0)
    within = np.minimum(count * min(time, demand.sum()), demand)
    shares[..., -2] = np.where(some, within / np.where(some, demand, 1), count > 0)
    shares[..., -1] = 1 - shares[..., -2]
    return shares * ~np.eye(servers, dtype=bool)[..., None]


def _relay_time(instance: Instance, count: np.ndarray, shares: np.ndarray) -> float:
    load = shares * instance.demand[..., None]
    via, direct, eps = load[..., :-2], load[..., -2], load[..., -1]
    links = via.sum(1) + via.sum(0).T / instance.efficiency + direct
    return max(_ratio(links, count), _port_time(instance, eps))


def matching(
    demand: Num[ArrayLike, "S S"], region: Region, *, previous: Plan | None = None, key: Array | None = None
) -> Plan:
    """Repeatedly give one circuit to each pair of the heaviest set of pairs that the free NICs allow.

    - `demand` [S S]: bytes from server i to server j in one phase; the diagonal is ignored.

    A pair's weight is its bytes in both directions; each set is exact. Works in `jit` and `vmap`, which solve one
    instance at a time. `previous` and `key` are not used.
    Source: the baseline of Helios and c-Through, SIGCOMM 2010, extended to several circuits per server.
    """
    highs("policy 'matching'")
    demand = demand_of(demand, region)
    result = jax.ShapeDtypeStruct(demand.shape, jnp.int32)
    count = jax.pure_callback(_match_pairs, result, demand, region.degrees, vmap_method="sequential")
    return Plan(Circuits(unless_nan(count, demand)))


def _match_pairs(demand: Any, degree: Any) -> np.ndarray:
    demand = np.asarray(demand, np.float64)
    weight = demand + demand.T
    i, j = np.nonzero(np.triu(np.where(np.isfinite(weight), weight, 0), 1) > 0)
    free, taken = np.array(degree), np.zeros(len(i), np.int32)
    while True:
        able = np.flatnonzero((free[i] > 0) & (free[j] > 0))
        if not len(able):
            break
        chosen = able[_heaviest(weight[i, j][able], i[able], j[able], free)]
        taken[chosen] += 1
        np.subtract.at(free, np.concatenate([i[chosen], j[chosen]]), 1)
    count = np.zeros(demand.shape, np.int32)
    count[i, j] = taken
    return count + count.T


def _heaviest(weight: np.ndarray, i: np.ndarray, j: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return the indices of a heaviest set of pairs with at most free[s] of server s; never empty."""
    bounds, constraint, milp, csr_array = highs("policy 'matching'")
    pairs = np.arange(len(i))
    ends = csr_array((np.ones(2 * len(i)), (np.concatenate([i, j]), np.tile(pairs, 2))), shape=(len(free), len(i)))
    solution = milp(
        -weight / weight.max(),
        integrality=np.ones(len(i)),
        bounds=bounds(0, 1),
        constraints=constraint(ends, ub=free),
        options={"mip_rel_gap": 0.0},
    )
    if solution.x is None:
        raise RuntimeError(f"HiGHS found no matching: {solution.message}")
    return np.flatnonzero(solution.x > 0.5)
