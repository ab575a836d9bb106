"""The provably earliest schedule for a few servers and configurations: a mixed-integer linear programme (HiGHS).

    min T:  sum of t on each switch + its delays <= T,  sum of s_k + e >= demand,  lines of e <= packet rate T,
            s_k,ij <= t_k,  s_k,ij <= demand_ij x_k,ij,  lines of s_k <= ports t_k,  lines of x_k <= ports,

with binary circuits x and a binary u_k for each configuration in use, which costs a reconfiguration. s_k are the
seconds that one circuit of each pair carries in configuration k; the bounds on lines of s_k are redundant, and tighten
the relaxation. Parallel circuits of a pair are layers of x. Configurations of a switch are interchangeable, so the
longest come first. T is the end that schedulers plan with (`placing.ScheduleProblem.paced_end_s`): packet NICs are
paced, and a reconfiguration stops all circuits. Derived here.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from mfabric_jax.checks import InputError, Misfit, positive, whole
from mfabric_jax.circuit_schedules.durations import programme, schedule_of
from mfabric_jax.circuit_schedules.joint import joint
from mfabric_jax.circuit_schedules.placing import Placed, ScheduleProblem, SwitchNetwork, problem_of
from mfabric_jax.support.extras import extra

with extra("exact", "an exact schedule"):
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

MOST = 400  # limit on binary circuits
GAP = 1e-6  # relative gap at which HiGHS calls a solution optimal
MARGIN = 1e-6  # relative: the limit on T is this much above the end of a known schedule


def exact(demand, *, most: int = 4, limit_s: float = 60.0, **network: Unpack[SwitchNetwork]) -> Placed:
    """Return the schedule that provably ends first, of at most `most` configurations on each switch.

    `limit_s`: seconds for the proof. Raise `InputError` for more binary circuits than `MOST`, and `Misfit` if `most`
    configurations cannot carry everything or no proof is found in time.
    """
    problem = problem_of(demand, **network)
    positive("limit_s", limit_s)
    layers, servers = problem.lanes * whole("most", most), len(problem.need)
    if layers * servers * (servers - 1) > MOST:
        product = f"most x switches x ports x servers x (servers - 1) = {layers * servers * (servers - 1)}"
        raise InputError(f"an exact schedule needs {product} binary circuits: at most {MOST} are allowed.")
    known = joint(demand, **network)
    if not problem.need.any() or not layers:
        return known
    fits = np.bincount(known[2], minlength=problem.switches).max(initial=0) <= most
    circuits = _solve(problem, most, limit_s, problem.paced_end_s(known) if fits else np.inf)
    switch = np.repeat(np.arange(problem.switches), most)
    used = circuits.any((1, 2))
    solution = programme(problem, circuits[used], switch[used], problem.packet)
    assert solution is not None
    return schedule_of(problem, circuits[used], solution.seconds, switch[used])


class _Columns(NamedTuple):
    """Numbers (columns) of the variables."""

    seconds: np.ndarray  # [K]
    used: np.ndarray  # [K]
    circuit: np.ndarray  # [K ports S S]
    carried: np.ndarray  # [K ports S S]
    packets: np.ndarray  # [S S]
    end: int


def _columns(problem: ScheduleProblem, most: int) -> _Columns:
    count, servers = most * problem.switches, len(problem.need)
    shapes = [(count,), (count,), *[(count, problem.ports, servers, servers)] * 2, (servers, servers)]
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    return _Columns(*(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)), int(ends[-1]))  # type: ignore[arg-type]


class _Rows:
    """Constraints low <= sum of coefficient * variable <= high."""

    def __init__(self):
        self.variables, self.values, self.low, self.high = [], [], [], []

    def add(self, terms: Sequence[tuple[Any, float]], low: Any, high: float = np.inf) -> None:
        variables = [np.ravel(variable) for variable, _ in terms]
        self.variables.append(np.concatenate(variables))
        each = [np.full(len(some), value) for some, (_, value) in zip(variables, terms, strict=True)]
        self.values.append(np.concatenate(each))
        self.low.append(low)
        self.high.append(high)

    def matrix(self, columns: int):
        row = np.repeat(np.arange(len(self.values)), [len(values) for values in self.values])
        shape = len(self.values), columns
        return csr_array((np.concatenate(self.values), (row, np.concatenate(self.variables))), shape=shape)


def _solve(problem: ScheduleProblem, most: int, limit_s: float, known_s: float) -> np.ndarray:
    """Return the circuits [K S S] of the best configurations, switch by switch."""
    unit, columns = problem.busiest_s, _columns(problem, most)
    need, rows = problem.need / unit, _Rows()
    for i, j in np.argwhere(need):
        rows.add([(columns.carried[:, :, i, j], 1), (columns.packets[i, j], 1)], need[i, j])
    for k in range(len(columns.seconds)):
        _configuration(rows, columns, k, problem, need)
    for side in (columns.packets, columns.packets.T):
        for line in side:
            rows.add([(line, -1), (columns.end, problem.packet)], 0)
    for lane in range(problem.switches):
        _clock(rows, columns, slice(lane * most, (lane + 1) * most), problem.delay_s / unit, problem.first_free)
    low: Any = np.array(rows.low)
    high: Any = np.array(rows.high)
    upper: Any = np.full(columns.end + 1, np.inf)
    upper[columns.used] = 1
    upper[columns.circuit] = (need > 0) if problem.directed else (problem.wanted > 0)
    upper[columns.end] = known_s / unit * (1 + MARGIN)
    kinds, cost = np.zeros((2, columns.end + 1))
    kinds[columns.used] = kinds[columns.circuit] = cost[columns.end] = 1
    done = milp(
        cost,
        constraints=LinearConstraint(rows.matrix(columns.end + 1), low, high),
        integrality=kinds,
        bounds=Bounds(0, upper),
        options={"time_limit": limit_s, "mip_rel_gap": GAP},
    )
    if done.status == 1:
        raise Misfit(f"no schedule was proven best within limit_s = {limit_s:g}: raise limit_s or lower most.")
    if done.x is None:
        raise Misfit(f"no schedule of most = {most} configurations on each switch carries everything: raise most.")
    return np.rint(done.x[columns.circuit]).astype(np.int64).sum(1)


def _configuration(rows: _Rows, columns: _Columns, k: int, problem: ScheduleProblem, need: np.ndarray) -> None:
    pairs = np.argwhere(need)
    rows.add([(columns.used[k], need.max()), (columns.seconds[k], -1)], 0)
    for layer in range(problem.ports):
        for i, j in pairs:
            carried = columns.carried[k, layer, i, j]
            rows.add([(columns.seconds[k], 1), (carried, -1)], 0)
            rows.add([(columns.circuit[k, layer, i, j], float(need[i, j])), (carried, -1)], 0)
        if not problem.directed:
            for i, j in zip(*np.triu_indices(len(need), 1), strict=True):
                rows.add([(columns.circuit[k, layer, i, j], 1), (columns.circuit[k, layer, j, i], -1)], 0, 0)
    for line in range(len(need)):
        for side in (np.s_[:, line, :], np.s_[:, :, line]):
            rows.add([(columns.seconds[k], problem.ports), (columns.carried[k][side], -1)], 0)
            rows.add([(columns.used[k], problem.ports), (columns.circuit[k][side], -1)], 0)


def _clock(rows: _Rows, columns: _Columns, own: slice, delay: float, first_free: bool) -> None:
    """Require that a switch ends by T, and that its configurations come in falling order of length."""
    reconfigured = columns.used[own][1:] if first_free else columns.used[own]
    rows.add([(columns.end, 1), (columns.seconds[own], -1), (reconfigured, -delay)], 0)
    for part in (columns.seconds[own], columns.used[own]):
        for earlier, other in itertools.pairwise(part):
            rows.add([(earlier, 1), (other, -1)], 0)
