"""SWOT: a collective in steps over parallel optical switches; some reconfigure while others send.

In step i each node sends `step_bytes` [N] over its configuration [N]; a step begins when the one before has ended. Its
bytes are split over the switches that show its configuration. A switch either sends or reconfigures, whatever the other
switches do. `find_overlap` finds the split that ends first, by a mixed-integer linear programme (HiGHS):

- x[i, j]: seconds of sending; u[i, j]: whether switch j serves step i, which adds `step_s`; sum_j x = bytes / rate;
- a[j, h, i]: step i is the next that switch j serves after step h, a delay later if their configurations differ.

The arcs a record what a switch holds. Deviation: the published programme compares each step with the step before, so
there a switch that skips a step reconfigures to the configuration that it still holds. Source: arXiv 2510.19322 and its
code (overlap4ocs).
"""

import itertools
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, Misfit, not_negative, positive, whole
from mfabric_jax.support.extras import extra

with extra("exact", "overlapping reconfiguration with sending"):
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

GAP = 1e-7  # relative gap at which HiGHS calls a solution optimal


class CollectiveSteps(NamedTuple):
    step_bytes: np.ndarray  # [N] that a node sends
    configuration: np.ndarray  # [N]


class ParallelSwitches(NamedTuple):
    count: int
    circuit_Bps: float
    delay_s: float  # of a reconfiguration
    step_s: float = 0.0  # latency of a step
    first_free: bool = False  # every switch begins with the configuration that it serves first


class Overlap(NamedTuple):
    seconds: float
    bound_s: float  # proven lower bound
    sending_s: np.ndarray  # [N switches]
    start_s: np.ndarray  # [N switches] of sending


def reduce_scatter(nodes: int, buffer_bytes: float) -> CollectiveSteps:
    """Return the steps of recursive halving: each sends half of what is left to the partner at half the distance.

    Raise `InputError` unless `nodes` is a power of two.
    """
    rounds = _rounds(nodes)
    return CollectiveSteps(buffer_bytes / 2.0 ** np.arange(1, rounds + 1), np.arange(rounds))


def all_reduce(nodes: int, buffer_bytes: float) -> CollectiveSteps:
    """Return the steps of recursive halving, then of doubling with the same partners in reverse order."""
    half = reduce_scatter(nodes, buffer_bytes)
    return CollectiveSteps(*(np.concatenate([part, part[::-1]]) for part in half))


def pairwise(nodes: int, buffer_bytes: float) -> CollectiveSteps:
    """Return an all-to-all in nodes - 1 shift steps."""
    others = whole("nodes", nodes, at_least=2) - 1
    return CollectiveSteps(np.full(others, buffer_bytes / others), np.arange(others))


def bruck(nodes: int, buffer_bytes: float) -> CollectiveSteps:
    """Return Bruck's all-to-all as the source counts it: the whole buffer in every step."""
    rounds = _rounds(nodes)
    return CollectiveSteps(np.full(rounds, float(buffer_bytes)), np.arange(rounds))


def _rounds(nodes: int) -> int:
    if whole("nodes", nodes, at_least=2) & (nodes - 1):
        raise InputError(f"nodes must be a power of two, got {nodes}.")
    return nodes.bit_length() - 1


def without_reconfiguration(steps: CollectiveSteps, switches: ParallelSwitches) -> float:
    """Return the seconds without any reconfiguration: all switches send in every step."""
    _check(steps, switches)
    return _sending(steps, switches).sum() / switches.count + len(steps.step_bytes) * switches.step_s


def strawman(steps: CollectiveSteps, switches: ParallelSwitches) -> float:
    """Return the seconds if all switches reconfigure together whenever the configuration changes."""
    reconfigurations = int((np.diff(steps.configuration) != 0).sum()) + (not switches.first_free)
    return without_reconfiguration(steps, switches) + reconfigurations * switches.delay_s


def one_shot(steps: CollectiveSteps, switches: ParallelSwitches) -> float:
    """Return the seconds if every configuration keeps an equal number of switches: one reconfiguration at the start.

    Raise `Misfit` for more configurations than switches. Deviation: the source rounds the number of switches up.
    """
    _check(steps, switches)
    each = switches.count // len(np.unique(steps.configuration))
    if not each:
        raise Misfit("one-shot needs a switch for every configuration: use more switches or fewer steps.")
    sending = _sending(steps, switches).sum() / each + len(steps.step_bytes) * switches.step_s
    return sending + (0.0 if switches.first_free else switches.delay_s)


def find_overlap(steps: CollectiveSteps, switches: ParallelSwitches, limit_s: float = 60.0) -> Overlap:
    """Return the best split found in `limit_s` seconds, and the lower bound proven by then.

    Raise `Misfit` if no split is found in that time.
    """
    _check(steps, switches)
    unit = without_reconfiguration(steps, switches)
    if not unit:
        nothing = np.zeros((len(steps.step_bytes), switches.count))
        return Overlap(0.0, 0.0, nothing, nothing)
    programme = _Programme(steps, switches, unit)
    done = programme.solve(positive("limit_s", limit_s))
    if done.x is None:
        raise Misfit("no schedule was found within limit_s: allow more seconds or use fewer steps.")
    return Overlap(
        done.fun * unit,
        done.mip_dual_bound * unit,
        done.x[programme.sending] * unit,
        done.x[programme.start] * unit,
    )


def _sending(steps: CollectiveSteps, switches: ParallelSwitches) -> np.ndarray:
    return np.asarray(steps.step_bytes, float) / switches.circuit_Bps


def _check(steps: CollectiveSteps, switches: ParallelSwitches) -> None:
    not_negative("step_bytes", np.asarray(steps.step_bytes, float))
    whole("switches", switches.count)
    positive("circuit_Bps", switches.circuit_Bps)
    not_negative("delay_s", switches.delay_s)
    not_negative("step_s", switches.step_s)
    if len(steps.step_bytes) != len(steps.configuration) or not len(steps.step_bytes):
        raise InputError("step_bytes and configuration must have one value per step, for at least one step.")


class _Programme:
    """The linear programme in units of `unit` seconds; rows are low <= sum of coefficient * variable <= high."""

    def __init__(self, steps: CollectiveSteps, switches: ParallelSwitches, unit: float):
        count, lanes = len(steps.step_bytes), switches.count
        self.need = _sending(steps, switches) / unit
        self.delay, self.latency = switches.delay_s / unit, switches.step_s / unit
        self.latest = strawman(steps, switches) / unit
        self.steps, self.first = steps, 0.0 if switches.first_free else self.delay
        grid = np.arange(count * lanes).reshape(count, lanes)
        self.sending, self.start, self.used = grid, grid + grid.size, grid + 2 * grid.size
        self.end = 3 * grid.size + np.arange(count)
        self.variables = 3 * grid.size + count
        self.rows: list[tuple[list[tuple[int, float]], float, float]] = []
        for step in range(count):
            self._step(step, lanes)
        for lane in range(lanes):
            self._switch(lane, count)

    def row(self, terms: list[tuple[int, float]], low: float, high: float = np.inf) -> None:
        self.rows.append((terms, low, high))

    def _step(self, step: int, lanes: int) -> None:
        before = [(self.end[step - 1], -1.0)] if step else []
        self.row([(x, 1.0) for x in self.sending[step]], self.need[step], self.need[step])
        self.row([(self.end[step], 1.0), *before], self.need[step] / lanes + self.latency * (self.need[step] > 0))
        for x, start, used in zip(self.sending[step], self.start[step], self.used[step], strict=True):
            self.row([(used, float(self.need[step])), (x, -1.0)], 0)
            self.row([(start, 1.0), *before], 0)
            self.row([(self.end[step], 1.0), (start, -1.0), (x, -1.0), (used, -self.latency)], 0)

    def _switch(self, lane: int, count: int) -> None:
        """Require one chain of arcs over the steps that a switch serves."""
        arcs = {pair: self.variables + n for n, pair in enumerate(itertools.combinations(range(-1, count), 2))}
        self.variables += len(arcs)
        for step in range(count):
            into = [(arc, 1.0) for (_, to), arc in arcs.items() if to == step]
            self.row([*into, (self.used[step, lane], -1.0)], 0, 0)
        for step in range(-1, count - 1):
            out = [(arc, -1.0) for (since, _), arc in arcs.items() if since == step]
            self.row([*out, (self.used[step, lane], 1.0)] if step >= 0 else out, 0 if step >= 0 else -1)
        for (since, step), arc in arcs.items():
            late = [(self.start[step, lane], 1.0), (arc, -self.latest)]
            if since < 0:
                self.row(late, self.first - self.latest)
                continue
            other = self.steps.configuration[since] != self.steps.configuration[step]
            busy = [(self.start[since, lane], -1.0), (self.sending[since, lane], -1.0)]
            self.row([*late, *busy], self.latency + self.delay * other - self.latest)

    def solve(self, limit_s: float) -> Any:
        entries = [
            (row_index, variable, value)
            for row_index, (terms, _, _) in enumerate(self.rows)
            for variable, value in terms
        ]
        row_index, variable, value = zip(*entries, strict=True)
        matrix = csr_array((value, (row_index, variable)), shape=(len(self.rows), self.variables))
        whole_numbers = np.ones(self.variables)
        whole_numbers[self.sending] = whole_numbers[self.start] = 0
        whole_numbers[self.end] = 0
        low: Any = np.array([low for _, low, _ in self.rows])
        high: Any = np.array([high for _, _, high in self.rows])
        most: Any = np.where(whole_numbers > 0, 1, self.latest)
        cost = np.zeros(self.variables)
        cost[self.end[-1]] = 1
        return milp(
            cost,
            constraints=LinearConstraint(matrix, low, high),
            integrality=whole_numbers,
            bounds=Bounds(0, most),
            options={"time_limit": limit_s, "mip_rel_gap": GAP},
        )
