"""Mixed-integer linear programmes for the best circuits of a region, by SciPy's HiGHS (extra `exact`).

All of them choose one number c of circuits for every pair, x[pair, c] in {0, 1}, under the degree limits, and minimise
the time T of paced flows (`routing.fluid_lower_bound`). With bytes in units of what a NIC carries in one unit of time:

- unsplit: T >= max(D_ij, D_ji) / c where x[pair, c], and E T >= the bytes of all pairs with c = 0 at every port;
- split: e_ij >= D_ij - c T bytes on the EPS, whose ports carry them in time. The product y[pair, c] = T x[pair, c] is
  exact by sum_c y = T and x T_low <= y <= x T_high (McCormick; T_low is the degree bound, T_high a known plan's time);
- relay: the same y as capacity c T of a pair's circuits in each direction, and flows over the EPS, the direct circuits
  and two circuits through a third server, which count 1 / efficiency on the second.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.extras import extra

ROUTINGS = ("unsplit", "split", "relay")
GAP = 1e-6  # relative gap at which HiGHS takes a solution for the best
SLACK = 1e-6  # by which T may exceed that of a plan already known
INFEASIBLE = 2  # SciPy's status


class Instance(NamedTuple):
    """Bytes in units of what a NIC carries in `unit` seconds, the degree bound: no T is below 1."""

    demand: np.ndarray  # [S S]
    degree: np.ndarray  # [S]
    port: np.ndarray  # [S] EPS NICs
    efficiency: float
    unit: float  # seconds

    @property
    def joined(self) -> np.ndarray:
        """[S S] Pairs with EPS ports at both ends."""
        return (self.port[:, None] > 0) & (self.port[None, :] > 0)

    @property
    def pairs(self) -> Iterator[tuple[int, int]]:
        return itertools.combinations(range(len(self.degree)), 2)

    def both(self, i: int, j: int) -> float:
        """Bytes of the pair's larger direction."""
        return float(max(self.demand[i, j], self.demand[j, i]))


def highs(what: str) -> Any:
    """SciPy's `Bounds`, `LinearConstraint`, `milp` and `csr_array`, or the sentence that `what` needs it."""
    with extra("exact", what):
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array
    return Bounds, LinearConstraint, milp, csr_array


def solved(
    instance: Instance, routing: str, known: float, seconds: float
) -> tuple[np.ndarray | None, np.ndarray | None, float]:
    """Circuits [S S] and, of relay routing, shares [S S S+2], with a bound on T: none are below it [units].

    - `known`: time of a plan; only better ones are looked for. Infinity: whatever is finite.
    - `seconds`: after which the best so far counts; None where there is none. The bound is infinite where no plan is.
    """
    programme = {"unsplit": _unsplit, "split": _split, "relay": _relay}[routing](instance, _latest(instance, known))
    done = programme.solved(seconds)
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
    """No better plan is later than this: what is known, or all bytes one after the other over relays."""
    if np.isfinite(known):
        return known * (1 + SLACK)
    slowest = min([1.0, *(port for port in instance.port if port > 0)])
    return float(instance.demand.sum()) * (1 + 1 / instance.efficiency) / slowest


class _Programme:
    """Minimise variable 0 (T), collected row by row: low <= sum of coefficient * variable <= high."""

    def __init__(self, instance: Instance, latest: float):
        self.instance, self.latest = instance, latest
        self.low, self.high, self.whole = [1.0], [latest], [0]
        self.terms: list[tuple[int, int, float]] = []
        self.limits: list[tuple[float, float]] = []
        self.chosen: dict[tuple[int, int], dict[int, int]] = {}  # [pair][c] -> x
        self.capacity: dict[tuple[int, int], list[tuple[int, float]]] = {}  # [pair] -> terms of c T
        self.flows: dict[tuple[int, int, int], int] = {}  # as shares [i, j, via | direct | EPS]

    def variable(self, high: float, whole: bool = False) -> int:
        """A new one, from 0 to `high`."""
        self.low.append(0.0)
        self.high.append(high)
        self.whole.append(int(whole))
        return len(self.low) - 1

    def row(self, terms, low: float = -np.inf, high: float = np.inf) -> None:
        """A new row of (variable, coefficient)."""
        self.terms += [(len(self.limits), variable, coefficient) for variable, coefficient in terms]
        self.limits.append((low, high))

    def choose(self, i: int, j: int, numbers) -> None:
        """One number of circuits for the pair."""
        self.chosen[i, j] = {c: self.variable(1, whole=True) for c in numbers}
        self.row([(x, 1) for x in self.chosen[i, j].values()], 1, 1)

    def times(self, i: int, j: int) -> None:
        """The pair's `capacity`: products of its number of circuits and T."""
        products = {c: self.variable(self.latest) for c in self.chosen[i, j]}
        for c, product in products.items():
            x = self.chosen[i, j][c]
            self.row([(product, 1), (x, -self.latest)], high=0)
            self.row([(product, 1), (x, -1)], low=0)
        self.row([(0, -1), *((product, 1) for product in products.values())], 0, 0)
        self.capacity[i, j] = [(product, c) for c, product in products.items() if c]

    def degrees(self) -> None:
        """No server has more circuits than optical NICs."""
        for server, degree in enumerate(self.instance.degree):
            taken = [(x, c) for pair, chosen in self.chosen.items() if server in pair for c, x in chosen.items() if c]
            self.row(taken, high=float(degree))

    def ports(self, carried: dict[tuple[int, int], tuple[int, float]]) -> None:
        """EPS ports carry in time what `carried` [i, j] says, as one term."""
        for server, speed in enumerate(self.instance.port):
            for end in (0, 1):
                terms = [term for pair, term in carried.items() if pair[end] == server]
                self.row([(0, -float(speed)), *terms], high=0)

    def shares(self, x: np.ndarray) -> np.ndarray:
        """Of the flows found; pairs without bytes have theirs on the EPS."""
        servers = len(self.instance.degree)
        shares = np.zeros((servers, servers, servers + 2))
        for path, flow in self.flows.items():
            shares[path] = max(x[flow], 0)
        total = shares.sum(2, keepdims=True)
        shares = np.where(total > 0, shares / np.where(total > 0, total, 1), 0)
        idle = (total[..., 0] == 0) & ~np.eye(servers, dtype=bool)
        shares[idle, -1] = 1
        return shares

    def solved(self, seconds: float) -> Any:
        """What HiGHS says."""
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
    """Numbers of circuits worth having: more than carry the bytes by the degree bound help only relays."""
    most = min(instance.degree[i], instance.degree[j], np.ceil(instance.both(i, j)))
    return range(int(most) + 1)


def _unsplit(instance: Instance, latest: float) -> _Programme:
    programme, carried = _Programme(instance, latest), {}
    for i, j in instance.pairs:
        larger = instance.both(i, j)
        if not larger:
            continue
        numbers = [c for c in _useful(instance, i, j) if (larger <= c * latest if c else instance.joined[i, j])]
        programme.choose(i, j, numbers)
        chosen = programme.chosen[i, j]
        programme.row([(0, -1), *((x, larger / c) for c, x in chosen.items() if c)], high=0)
        if 0 in chosen:
            carried |= {(a, b): (chosen[0], instance.demand[a, b]) for a, b in ((i, j), (j, i))}
    programme.degrees()
    programme.ports(carried)
    return programme


def _split(instance: Instance, latest: float) -> _Programme:
    programme, carried = _Programme(instance, latest), {}
    for i, j in instance.pairs:
        if not instance.both(i, j):
            continue
        programme.choose(i, j, _useful(instance, i, j))
        programme.times(i, j)
        for a, b in ((i, j), (j, i)):
            if instance.demand[a, b]:
                rest = programme.variable(instance.demand[a, b] if instance.joined[a, b] else 0)
                programme.row([(rest, 1), *programme.capacity[i, j]], low=instance.demand[a, b])
                carried[a, b] = rest, 1
    programme.degrees()
    programme.ports(carried)
    return programme


def _relay(instance: Instance, latest: float) -> _Programme:
    programme, carried = _Programme(instance, latest), {}
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
        programme.high[flows[eps]] = size if instance.joined[i, j] else 0
    for (i, j), terms in load.items():
        if terms:
            circuits = programme.capacity[min(i, j), max(i, j)]
            programme.row([*terms, *((product, -c) for product, c in circuits)], high=0)
    programme.degrees()
    programme.ports(carried)
    return programme
